"""The problem and plan of one round over a shared radio channel: batches and frame slots.

Seconds of one round, Eq. 15 and 29 of Ren, Yu and Ding::

    round_s = max(gradient_s + upload_s) + max(download_s + apply_s)
    gradient_s = base_s + slope_s * max(0, batch - threshold)                     (Eq. 9 and 27)
    upload_s = gradient_bits / uplink_bps * frame_s / uplink_slot_s               (Eq. 10)
    download_s = gradient_bits / downlink_bps * frame_s / downlink_slot_s         (Eq. 11)

A CPU has base 0 and threshold 0. The loss decay of a round grows with the square root of the sum of
batches (Eq. 8). Its coefficient xi is the same for every plan and left out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    as_counts,
    as_floats,
    as_scalar,
    broadcast_to,
    common_shape,
    require,
)
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints

# Between these no sum, square or quotient of seconds leaves double precision.
MIN_SECONDS, MAX_SECONDS = 1e-60, 1e60


@dataclass(frozen=True, init=False, eq=False)
class RadioProblem:
    """Speed, link rates and bounds of each learner, the size of a gradient, and the frame.

    All fields are one number for all learners or one for each, except `gradient_bits` and
    `frame_s`, which are single numbers. Uplink and downlink have separate frames of one length.
    """

    slope_s: Floats
    uplink_bps: Floats
    downlink_bps: Floats
    gradient_bits: float
    frame_s: float
    apply_s: Floats
    base_s: Floats
    threshold: Ints
    min_batch: Ints
    max_batch: Ints

    def __init__(  # noqa: PLR0913 - a record of the contract's fields, by keyword
        self,
        *,
        slope_s: ArrayLike,
        uplink_bps: ArrayLike,
        downlink_bps: ArrayLike,
        gradient_bits: float,
        frame_s: float,
        apply_s: ArrayLike,
        base_s: ArrayLike = 0.0,
        threshold: ArrayLike = 0,
        min_batch: ArrayLike = 1,
        max_batch: ArrayLike = 128,
    ) -> None:
        learners = {
            "slope_s": as_floats("slope_s", slope_s, above=True),
            "uplink_bps": as_floats("uplink_bps", uplink_bps, above=True),
            "downlink_bps": as_floats("downlink_bps", downlink_bps, above=True),
            "apply_s": as_floats("apply_s", apply_s),
            "base_s": as_floats("base_s", base_s),
            "threshold": as_counts("threshold", threshold),
            "min_batch": as_counts("min_batch", min_batch, least=1),
            "max_batch": as_counts("max_batch", max_batch, least=1),
        }
        fields: dict[str, Any] = broadcast_to(common_shape(learners, axes=1), learners)
        for name, value in (("gradient_bits", gradient_bits), ("frame_s", frame_s)):
            fields[name] = as_scalar(name, as_floats(name, value, above=True))
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check_bounds()
        self._check_range()

    def _check_bounds(self) -> None:
        valid = self.min_batch <= self.max_batch
        require("min_batch", self.min_batch, valid, "at most the max_batch of the same learner")

    def _check_range(self) -> None:
        with np.errstate(over="ignore", under="ignore"):
            spans = {
                "slope_s": (self.slope_s, MIN_SECONDS),
                "gradient_bits / uplink_bps": (self.uplink_s, MIN_SECONDS),
                "gradient_bits / downlink_bps": (self.downlink_s, MIN_SECONDS),
                "the gradient of max_batch": (self.gradient_s(self.max_batch), 0.0),
                "apply_s": (self.apply_s, 0.0),
            }
        for name, (seconds, least_s) in spans.items():
            outside = np.flatnonzero((seconds < least_s) | (seconds > MAX_SECONDS))
            if outside.size:
                k = int(outside[0])
                raise SettingError(
                    f"{name} is {seconds[k]:g} s for learner {k}; "
                    f"expected {least_s:g} to {MAX_SECONDS:g}"
                )

    @property
    def learners(self) -> int:
        """The number of learners."""
        return int(self.slope_s.size)

    @property
    def uplink_s(self) -> Floats:
        """Seconds to send the gradient with every uplink frame to oneself."""
        return self.gradient_bits / self.uplink_bps

    @property
    def downlink_s(self) -> Floats:
        """Seconds to receive the gradient with every downlink frame to oneself."""
        return self.gradient_bits / self.downlink_bps

    @property
    def least_batch(self) -> Ints:
        """The smallest useful batch: below the threshold more samples are free (Lemma 2)."""
        return np.clip(self.threshold, self.min_batch, self.max_batch)

    def gradient_s(self, batch: Floats | Ints) -> Floats:
        """Return the seconds of each learner for the gradient of a batch (Eq. 9 and 27)."""
        return self.base_s + self.slope_s * np.maximum(batch - self.threshold, 0)

    def round_s(
        self,
        batch: Floats | Ints,
        uplink_slot_s: Floats,
        downlink_slot_s: Floats,
        broadcast: bool = False,
    ) -> float:
        """Return the seconds of one round (Eq. 15); a broadcast has the rate of the slowest."""
        up_s = self.gradient_s(batch) + self.uplink_s * self.frame_s / uplink_slot_s
        sent_s = self.downlink_s.max() if broadcast else self.downlink_s
        down_s = sent_s * self.frame_s / downlink_slot_s + self.apply_s
        return float(up_s.max() + down_s.max())


@dataclass(frozen=True, eq=False)
class RadioPlan:
    """A batch and two slots for each learner, the seconds of the round, and its efficiency.

    `round_s` is `RadioProblem.round_s` of the other fields. `efficiency` is
    sqrt(sum of batches) / round_s (Eq. 16 without its constant xi): comparable for one model only.
    """

    batch: Ints | Floats
    uplink_slot_s: Floats
    downlink_slot_s: Floats
    round_s: float
    efficiency: float

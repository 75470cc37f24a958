"""A bound on updates: the size of one is compared with those of this node and its other neighbours.

An update whose norm exceeds 4 times their median is scaled down to that limit ("clip") or left out
("drop"); above 100 times the median it is left out in both. The updates of the sender itself do not
count, so that it cannot raise its own limit. Until there is an update to compare with, the median
is taken to be a quarter of the norm of the model.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from melisma.peer.neighbour import Vector

GuardMode = Literal["clip", "drop", "off"]
GUARD_MODES: tuple[GuardMode, ...] = get_args(GuardMode)
CLIP_MEDIANS = 4.0
DROP_MEDIANS = 100.0
WINDOW = 5
"""The number of updates of each node that count."""


class NeighbourGuard:
    """The sizes of recent updates by node, and the decision on a new one."""

    def __init__(self, mode: GuardMode) -> None:
        self.mode = mode
        self._norms: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))

    def record(self, name: str, norm: float) -> None:
        """Record the size of an update that counts; one without a change does not count."""
        if norm > 0 and np.isfinite(norm):
            self._norms[name].append(norm)

    def norms(self) -> dict[str, list[float]]:
        """Return the sizes of recent updates by node."""
        return {name: [*norms] for name, norms in self._norms.items()}

    def restore(self, norms: Mapping[str, list[float]]) -> None:
        """Set the sizes of recent updates."""
        for name, values in norms.items():
            self._norms[name].extend(values)

    def factor(self, sender: str, norm: float, model_norm: float) -> float:
        """Return the factor by which to scale an update; 0 to leave it out."""
        if self.mode == "off":
            return 1.0
        others = [norms for name, norms in self._norms.items() if name != sender and norms]
        median = float(np.median(np.concatenate(others))) if others else model_norm / CLIP_MEDIANS
        # A model of zeros, or without parameters, is no measure.
        if median <= 0 or norm <= CLIP_MEDIANS * median:
            return 1.0
        if self.mode == "drop" or not norm <= DROP_MEDIANS * median:
            return 0.0
        return CLIP_MEDIANS * median / norm


def norm_of(vector: Vector) -> float:
    """Return the Euclidean norm; squares of large float32 numbers do not overflow."""
    return float(np.linalg.norm(vector.astype(np.float64)))

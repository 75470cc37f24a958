"""The device that a learner stands for: this one as it is, or another, by pacing and shaping.

An emulated device is drawn into one of its states for each cycle, by the fleet's seed and its own
number: the state that `Fleet.states_in` says. It leaves a part of its compute and of its bandwidth.
"""

import time

import msgspec
import numpy as np

from melisma.fleet.emulation import Link, Pace, Tempo
from melisma.fleet.states import states_in


class EmulatedDevice(msgspec.Struct, frozen=True):
    """A device to stand for: share of a core, link, and (probability, compute, bandwidth) rows.

    One whose speed is said in time takes `sample_s` for a sample, whatever that is of a core.
    """

    core_share: float
    bandwidth_bps: float
    latency_s: float
    states: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, 1.0),)
    seed: int = 1
    sample_s: float | None = None


class Device:
    """Makes compute and transfers take as long as they would there; a real one just passes."""

    def __init__(self, emulated: EmulatedDevice | None, number: int = 0) -> None:
        self._emulated, self._number = emulated, number
        self.start_cycle(0)

    def start_cycle(self, cycle: int) -> None:
        """A cycle begins, in a state of its own."""
        self._pace: Pace | Tempo | None = None
        self._link: Link | None = None
        if (what := self._emulated) is None:
            return
        _, compute, bandwidth = what.states[self._state(what, cycle)]
        self._sample_s = (what.sample_s or 0.0) / compute
        if what.sample_s is None:
            share = what.core_share * compute
            self._pace = Pace(share, time.process_time, time.monotonic, time.sleep)
        else:
            self._pace = Tempo(time.monotonic, time.sleep)
        self._link = Link(
            what.bandwidth_bps * bandwidth, what.latency_s, time.monotonic, time.sleep
        )

    def _state(self, what: EmulatedDevice, cycle: int) -> int:
        chances = np.array([[state[0] for state in what.states]])
        return int(states_in(cycle, chances, what.seed, np.array([self._number]))[0])

    def now(self) -> float:
        """The time on the device: it is still at what this machine did sooner."""
        return time.monotonic() if self._pace is None else self._pace.now()

    def start_compute(self) -> None:
        """Compute begins here."""
        if self._pace is not None:
            self._pace.begin()

    def add_samples(self, samples: int) -> None:
        """So many samples are trained since the last call, or since work began."""
        if isinstance(self._pace, Tempo):
            self._pace.worked(samples * self._sample_s)

    def throttle(self) -> None:
        """Wait for the device now and then; called after every small piece of work."""
        if self._pace is not None:
            self._pace.rest()

    def finish_compute(self) -> None:
        """Wait until the device would be done, too."""
        if self._pace is not None:
            self._pace.settle()

    def start_transfer(self) -> None:
        """A transfer begins here."""
        if self._link is not None:
            self._link.begin()

    def add_bytes(self, size_bytes: int) -> None:
        """So many bytes have gone over the link."""
        if self._link is not None:
            self._link.passed(size_bytes)

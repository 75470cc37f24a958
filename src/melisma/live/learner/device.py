"""The device that a learner runs on: this machine, or an emulated device by pacing and shaping.

An emulated device with several states is in the one that `Fleet.states_in` draws for each cycle
from the fleet's seed; a state scales its compute and its bandwidth.
"""

import time

import msgspec
import numpy as np

from melisma.fleet.emulation import ComputePacer, DurationPacer, LinkShaper
from melisma.fleet.states import cycle_states


class EmulatedDevice(msgspec.Struct, frozen=True):
    """An emulated device: share of a core, link, and states (probability, compute, bandwidth).

    With `sample_s` it trains a sample in that time, whatever its share of a core.
    """

    core_share: float
    downlink_bps: float
    uplink_bps: float
    latency_s: float
    states: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, 1.0),)
    seed: int = 1
    sample_s: float | None = None


class Device:
    """Delays compute and transfers to the speed of the emulated device; without one, does nothing.

    `number` is the learner's number, which its states are drawn for.
    """

    def __init__(self, emulated: EmulatedDevice | None, number: int = 0) -> None:
        self._emulated, self._number = emulated, number
        self.start_cycle(0)

    def start_cycle(self, cycle: int) -> None:
        """Enter the state of a cycle."""
        self._pace: ComputePacer | DurationPacer | None = None
        self._downlink: LinkShaper | None = None
        self._uplink: LinkShaper | None = None
        if (emulated := self._emulated) is None:
            return
        _, compute, bandwidth = emulated.states[self._state(emulated, cycle)]
        self._sample_s = (emulated.sample_s or 0.0) / compute
        if emulated.sample_s is None:
            share = emulated.core_share * compute
            self._pace = ComputePacer(share, time.process_time, time.monotonic, time.sleep)
        else:
            self._pace = DurationPacer(time.monotonic, time.sleep)
        self._downlink, self._uplink = (
            LinkShaper(bps * bandwidth, emulated.latency_s, time.monotonic, time.sleep)
            for bps in (emulated.downlink_bps, emulated.uplink_bps)
        )

    def _state(self, emulated: EmulatedDevice, cycle: int) -> int:
        probabilities = np.array([[state[0] for state in emulated.states]])
        return int(cycle_states(cycle, probabilities, emulated.seed, np.array([self._number]))[0])

    def now(self) -> float:
        """Return the device's time: ahead of the wall clock while the device lags behind."""
        return time.monotonic() if self._pace is None else self._pace.now()

    def start_compute(self) -> None:
        """Start pacing."""
        if self._pace is not None:
            self._pace.begin()

    def add_samples(self, samples: int) -> None:
        """Count samples trained since the previous call."""
        if isinstance(self._pace, DurationPacer):
            self._pace.finish_piece(samples * self._sample_s)

    def throttle(self) -> None:
        """Sleep if the device lags behind far enough; call after every small piece of work."""
        if self._pace is not None:
            self._pace.throttle()

    def finish_compute(self) -> None:
        """Sleep until the device would have finished."""
        if self._pace is not None:
            self._pace.catch_up()

    def start_download(self) -> None:
        """Start a download, which pays the latency."""
        if self._downlink is not None:
            self._downlink.begin()

    def add_downloaded(self, size_bytes: int) -> None:
        """Sleep until the downlink would have carried these bytes."""
        if self._downlink is not None:
            self._downlink.transfer(size_bytes)

    def delay_upload(self, size_bytes: int) -> None:
        """Sleep for the latency, and until the uplink would have carried these bytes."""
        if self._uplink is not None:
            self._uplink.begin()
            self._uplink.transfer(size_bytes)

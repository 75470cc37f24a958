"""The device that a learner runs on: this machine, or an emulated device by pacing and shaping.

An emulated device with several states is in the one that `Fleet.states_in_cycle` draws for each
cycle from the fleet's seed. A state scales its compute and its bandwidth, or has a stressor that
competes for them. Noise and a bandwidth trace scale them further, by factors of the run's time that
`fleet.variation` computes.

A stressor shares the emulated core with training, as two processes share a core: it is paced to
half of the core, and the processor time that it uses while training has work delays training.
"""

import time
from collections.abc import Callable, Iterator
from math import inf

import numpy as np

from melisma.fleet.array_types import Floats
from melisma.fleet.emulation import (
    ComputePacer,
    Contention,
    DurationPacer,
    LinkShaper,
    Rate,
    constant_rate,
    never,
)
from melisma.fleet.files.states_file import read_states
from melisma.fleet.observed_states import ProbabilitySource
from melisma.fleet.states import cycle_states
from melisma.fleet.variation import BandwidthTrace, Noise, Resource, Variation, VaryingLearners
from melisma.learning.data.datasets import Split
from melisma.live.learner.learner_settings import EmulatedDevice, OperatingState, OwnStates

STRESS_SHARE = 0.5
"""The part of the core that a stressor gets beside training."""
NOMINAL_SHARE = 0.1
"""The share of a core for the stressor of a device whose speed is given in time.

Its share for one model says nothing about other work; training is slowed by the same at any share.
"""


class VaryingRate:
    """The factor of one resource of a device, on this machine's clock; computed once per change."""

    def __init__(self, varying: VaryingLearners, resource: Resource, began_at: float) -> None:
        self._varying, self._resource, self._began_at = varying, resource, began_at
        self._from, self._factor, self._until = inf, 1.0, -inf

    def __call__(self, at: float) -> tuple[float, float]:
        """Return the factor at a time, and when it changes next."""
        if not self._from <= at < self._until:
            # The device's clock may be a moment before the start of the run.
            at_s = np.array([max(at - self._began_at, 0.0)])
            factor, until_s = self._varying.rate(self._resource, np.array([0]), at_s)
            # At least a microsecond, since the sum of the two clocks is rounded.
            until = max(self._began_at + float(until_s[0]), at + 1e-6)
            self._from, self._factor, self._until = at, float(factor[0]), until
        return self._factor, self._until


class Device:
    """Delays compute and transfers to the speed of the emulated device; without one, does nothing.

    `number` is the learner's number, which its states and noise are drawn for; `began_at` the
    start of the run on this machine's monotonic clock. `own` are the operating states of a real
    device. `state` is the index of its present state in
    `states`, and `contention` what a stressor takes from training.
    """

    def __init__(
        self,
        emulated: EmulatedDevice | None,
        number: int = 0,
        began_at: float = 0.0,
        own: OwnStates | None = None,
    ) -> None:
        self._emulated, self._number = emulated, number
        self._began_at = began_at
        self._variation = None if emulated is None else _device_variation(emulated, number)
        self._drawn = emulated or own or OwnStates()
        self.states = tuple(OperatingState(*row) for row in self._drawn.states)
        self.knows_next_state = emulated is not None or own is not None
        self.contention = Contention()
        self.start_cycle(0)

    @property
    def probability(self) -> Floats:
        """The probability of each state with which states are drawn, as one row."""
        return np.array([[state.probability for state in self.states]])

    @property
    def probability_source(self) -> ProbabilitySource:
        """Whether the learner knows these probabilities."""
        return self._drawn.state_probabilities

    @property
    def stress(self) -> str:
        """The name of the stressor of the present state; empty without one."""
        return self.states[self.state].stress

    def state_in(self, cycle: int) -> int:
        """Return the state that is drawn for a cycle."""
        numbers = np.array([self._number])
        return int(cycle_states(cycle, self.probability, self._drawn.seed, numbers)[0])

    def start_cycle(self, cycle: int) -> None:
        """Enter the state of a cycle."""
        self.enter(self.state_in(cycle))

    def enter(self, state: int) -> None:
        """Enter a state."""
        self.state = state
        self._pace: ComputePacer | DurationPacer | None = None
        self._downlink: LinkShaper | None = None
        self._uplink: LinkShaper | None = None
        if (emulated := self._emulated) is None:
            return
        _, compute, bandwidth, stress = self.states[state]
        if stress:
            compute = bandwidth = 1.0
        self._sample_s = (emulated.sample_s or 0.0) / compute
        if emulated.sample_s is None:
            share = self._core_share if stress else emulated.core_share * compute
            self._pace = ComputePacer(
                share, self._used_s, time.monotonic, time.sleep, self._rate("compute")
            )
        else:
            self._pace = DurationPacer(time.monotonic, time.sleep, self._rate("compute"))
        latency_s, clock = emulated.latency_s, (time.monotonic, time.sleep)
        down_bps, up_bps = emulated.downlink_bps * bandwidth, emulated.uplink_bps * bandwidth
        self._downlink = LinkShaper(down_bps, latency_s, *clock, self._rate("downlink"))
        self._uplink = LinkShaper(up_bps, latency_s, *clock, self._rate("uplink"))

    @property
    def _core_share(self) -> float:
        """The share of one core that training and a stressor have together."""
        if self._emulated is None:
            return 1.0
        return NOMINAL_SHARE if self._emulated.sample_s else min(self._emulated.core_share, 1.0)

    def _used_s(self) -> float:
        """Return the processor time of training, and what a stressor took from it."""
        # Of the thread that trains: others fetch and poll meanwhile.
        return time.thread_time() + self.contention.count()

    def stress_pacer(self, sleep: Callable[[float], None]) -> ComputePacer | None:
        """Return a pacer for the stressor that runs in the calling thread; None if not emulated."""
        if self._emulated is None:
            return None
        share, rate = STRESS_SHARE * self._core_share, self._rate("compute")
        return ComputePacer(share, time.thread_time, time.monotonic, sleep, rate)

    def _rate(self, resource: Resource) -> Rate:
        if self._variation is None or self._variation.is_constant:
            return constant_rate
        return VaryingRate(self._variation.of(np.array([0])), resource, self._began_at)

    def now(self) -> float:
        """Return the device's time: ahead of the wall clock while the device lags behind."""
        return time.monotonic() if self._pace is None else self._pace.now()

    def start_compute(self) -> None:
        """Start pacing."""
        self.contention.discard()
        if self._pace is not None:
            self._pace.begin()

    def add_samples(self, samples: int) -> None:
        """Count samples trained since the previous call."""
        if isinstance(self._pace, DurationPacer):
            before_s = self.contention.counted_s
            taken_s = self.contention.count() - before_s
            self._pace.finish_piece(samples * self._sample_s + taken_s / self._core_share)

    def pace(self, batches: Iterator[Split]) -> Iterator[Split]:
        """Yield batches; count the samples of each when the next one is requested."""
        self.add_samples(0)
        for batch in batches:
            yield batch
            self.add_samples(len(batch))

    def skip(self, seconds: float) -> None:
        """Record that there was nothing to compute for this long until now."""
        if seconds > 0:
            self.contention.discard()
        if isinstance(self._pace, ComputePacer):
            self._pace.skip(seconds)
        elif seconds > 0:
            # Not after each batch: the device would lose the time by which sleeps are too long.
            self.add_samples(0)

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

    def add_downloaded(self, size_bytes: int, is_over: Callable[[], bool] = never) -> None:
        """Sleep until the downlink would have carried these bytes, or `is_over`."""
        if self._downlink is not None:
            self._downlink.transfer(size_bytes, is_over)

    def delay_upload(self, size_bytes: int) -> None:
        """Sleep for the latency, and until the uplink would have carried these bytes."""
        if self._uplink is not None:
            self._uplink.begin()
            self._uplink.transfer(size_bytes)


def _device_variation(emulated: EmulatedDevice, number: int) -> Variation:
    compute, bandwidth, correlation_s = (np.array([value]) for value in emulated.noise)
    # Its benchmark and its first cycle have a bias and a cold start of their own.
    noise = Noise(compute, bandwidth, correlation_s, np.ones(1), np.zeros(1))
    traces = (BandwidthTrace(emulated.trace),) if emulated.trace else ()
    trace_ids = np.array([len(traces) - 1])
    return Variation(emulated.seed, np.array([number]), noise, trace_ids, traces)


def read_own_states(path: str) -> OwnStates:
    """Read the operating states of a real device from its file."""
    file = read_states(path)
    states = tuple(OperatingState(each.probability, stress=each.stress) for each in file.state)
    return OwnStates(states, file.seed, file.state_probabilities)

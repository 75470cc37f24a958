"""Speeds and links that vary during a run: noise, and bandwidth traces.

A factor of mean 1 multiplies the speed of a device, and another one its link. Both are constant
for a piece of the run's time. Noise is log-normal, exp(s * z - s^2 / 2) with
s^2 = ln(1 + deviation^2), with a new z for each slot of `correlation_s` seconds; z is a hash of
seed, purpose, learner and slot, so that an emulated device has the same factors as a simulated one.
A trace has the rates of a file, relative to their mean. Work is in seconds at the mean rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.rng import uniform

Resource = Literal["compute", "downlink", "uplink"]
Purpose = Literal["compute", "bandwidth"]  # of noise: both directions of a link have the same
# After this many pieces the rest of a span is taken at the mean rate: its factors average out.
MAX_PIECES = 1000


@dataclass(frozen=True, eq=False)
class Noise:
    """Random changes of each learner's speed and link during a run.

    `compute` and `bandwidth` are relative standard deviations, drawn anew every `correlation_s`
    seconds. Only simulated learners use the others: a benchmark measures `benchmark_bias` times
    the true cost of training, and the first cycle begins with `cold_start_s` seconds of set-up.
    """

    compute: Floats
    bandwidth: Floats
    correlation_s: Floats
    benchmark_bias: Floats
    cold_start_s: Floats


class BandwidthTrace:
    """Rates of a link over time; they repeat after the last one.

    Rows are the second at which a rate begins, the downlink and the uplink in bits per second. The
    last rate lasts as long as the one before it.
    """

    def __init__(self, rows: Sequence[tuple[float, float, float]]) -> None:
        self.rows = tuple(rows)
        self.starts_s, downlink_bps, uplink_bps = np.array(rows, dtype=np.float64).T
        self._rates_bps = {"downlink": downlink_bps, "uplink": uplink_bps}
        last_s = self.starts_s[-1] - self.starts_s[-2] if len(rows) > 1 else 1.0
        self.period_s = float(self.starts_s[-1] + last_s)

    def mean_bps(self, resource: Resource) -> float:
        """Return the mean rate over a period."""
        seconds = np.diff(self.starts_s, append=self.period_s)
        return float(np.average(self._rates_bps[resource], weights=seconds))

    def factors(self, resource: Resource) -> Floats:
        """Return the rates relative to their mean."""
        return np.asarray(self._rates_bps[resource] / self.mean_bps(resource))


class TraceIndex:
    """The rates of many traces in one array, one trace after another."""

    def __init__(self, traces: Sequence[BandwidthTrace]) -> None:
        self._period_s = np.array([trace.period_s for trace in traces])
        self._offset_s = np.cumsum(self._period_s) - self._period_s
        counts = np.array([trace.starts_s.size for trace in traces])
        self._last = np.cumsum(counts) - 1
        self._first = self._last - counts + 1
        self._ends_s = np.concatenate(
            [np.append(trace.starts_s[1:], trace.period_s) for trace in traces]
        )
        starts_s = np.concatenate([trace.starts_s for trace in traces])
        self._keys_s = starts_s + np.repeat(self._offset_s, counts)
        self._factors = {
            resource: np.concatenate([trace.factors(resource) for trace in traces])
            for resource in LINKS
        }

    def rate(self, resource: Resource, traces: Ints, at_s: Floats) -> tuple[Floats, Floats]:
        """Return the factor of each trace at a time, and when it changes."""
        period_s, first, last = (x[traces] for x in (self._period_s, self._first, self._last))
        repeats = np.floor(at_s / period_s)
        keys_s = self._offset_s[traces] + (at_s - repeats * period_s)
        piece = np.clip(np.searchsorted(self._keys_s, keys_s, side="right") - 1, first, last)
        # Rounding may give a piece that has just ended.
        piece += repeats * period_s + self._ends_s[piece] <= at_s
        repeats += piece > last
        piece = np.where(piece > last, first, piece)
        return self._factors[resource][piece], repeats * period_s + self._ends_s[piece]


LINKS: tuple[Resource, ...] = ("downlink", "uplink")


@dataclass(frozen=True, eq=False)
class Variation:
    """How the speed and the link of each learner vary.

    `learners` are the numbers that noise is drawn for; `trace_ids` the index of each learner's
    trace, -1 without one. Rows are indices into these arrays.
    """

    seed: int
    learners: Ints
    noise: Noise
    trace_ids: Ints
    traces: tuple[BandwidthTrace, ...] = ()

    @cached_property
    def is_constant(self) -> bool:
        """Whether no speed and no link varies."""
        noisy = self.noise.compute.any() or self.noise.bandwidth.any()
        return not (noisy or (self.trace_ids >= 0).any())

    def of(self, rows: Ints) -> "VaryingLearners":
        """Return how the learners in these rows vary."""
        return VaryingLearners(self, rows)

    @cached_property
    def index(self) -> TraceIndex:
        """The rates of all traces."""
        return TraceIndex(self.traces)


class SlotNoise:
    """The noise of some learners in their speed or in their link: a factor for each slot.

    The factors of the last two slots of each learner are kept, as most phases of a cycle are in
    the same ones.
    """

    def __init__(self, variation: Variation, rows: Ints, purpose: Purpose) -> None:
        self._seed, self._purpose = variation.seed, f"{purpose} noise"
        self._learners = variation.learners[rows]
        self._slot_s = variation.noise.correlation_s[rows]
        variance = np.log1p(getattr(variation.noise, purpose)[rows] ** 2)
        self._deviation, self._shift = np.sqrt(variance), variance / 2
        self._slot, self._factor = np.full(2 * rows.size, -1.0), np.ones(2 * rows.size)

    def rate(self, which: Ints, at_s: Floats) -> tuple[Floats, Floats]:
        """Return the factor of each learner at a time, and when it changes next."""
        deviation = self._deviation[which]
        if not deviation.any():
            return np.ones(which.size), np.full(which.size, np.inf)
        slot_s = self._slot_s[which]
        slot = np.floor(at_s / slot_s)
        # Rounding may give a slot that has just ended.
        slot += (slot + 1) * slot_s <= at_s
        kept = 2 * which + (slot % 2).astype(np.int64)
        new = np.flatnonzero((self._slot[kept] != slot) & (deviation > 0))
        if new.size:
            self._factor[kept[new]] = self._draw(which[new], slot[new])
            self._slot[kept[new]] = slot[new]
        return self._factor[kept], np.where(deviation > 0, (slot + 1) * slot_s, np.inf)

    def _draw(self, which: Ints, slot: Floats) -> Floats:
        """Return the factors of these learners in these slots (Box and Muller 1958)."""
        draws = 2 * slot.astype(np.int64) + np.array([[0], [1]])
        first, second = uniform(self._seed, self._purpose, 0, self._learners[which], draws)
        z = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
        return np.asarray(np.exp(self._deviation[which] * z - self._shift[which]))


class VaryingLearners:
    """The changing speeds and links of some learners; times are seconds since the run began."""

    def __init__(self, variation: Variation, rows: Ints) -> None:
        self._variation, self._trace_ids = variation, variation.trace_ids[rows]
        self._compute = SlotNoise(variation, rows, "compute")
        self._bandwidth = SlotNoise(variation, rows, "bandwidth")

    def rate(self, resource: Resource, which: Ints, at_s: Floats) -> tuple[Floats, Floats]:
        """Return the factor of each of these learners at a time, and when it changes next.

        `which` are different indices into the learners.
        """
        if resource == "compute":
            return self._compute.rate(which, at_s)
        factor, until_s = self._bandwidth.rate(which, at_s)
        if self._variation.traces:
            trace_ids = self._trace_ids[which]
            traced = np.flatnonzero(trace_ids >= 0)
            of_trace, changes_s = self._variation.index.rate(
                resource, trace_ids[traced], at_s[traced]
            )
            factor[traced] *= of_trace
            until_s[traced] = np.minimum(until_s[traced], changes_s)
        return factor, until_s

    def seconds(self, resource: Resource, begin_s: Floats, work_s: Floats) -> Floats:
        """Return the seconds that each learner needs from `begin_s` for an amount of work.

        A learner that sleeps for ever begins at infinity; its work takes the mean time.
        """
        begins = np.isfinite(begin_s)
        begin_s, left_s = np.where(begins, begin_s, 0.0), work_s.copy()
        now_s, active = begin_s.copy(), np.flatnonzero(begins & (work_s > 0))
        for _ in range(MAX_PIECES):
            if not active.size:
                break
            factor, until_s = self.rate(resource, active, now_s[active])
            possible_s = factor * (until_s - now_s[active])
            ends = possible_s >= left_s[active]
            done, others = active[ends], active[~ends]
            now_s[done] += left_s[done] / factor[ends]
            left_s[done] = 0.0
            now_s[others], left_s[others] = until_s[~ends], left_s[others] - possible_s[~ends]
            active = others
        seconds: Floats = now_s - begin_s + left_s
        return seconds

    def work_s(self, resource: Resource, begin_s: Floats, span_s: Floats) -> Floats:
        """Return the work that each learner does in the `span_s` seconds from `begin_s`."""
        now_s, end_s, work_s = begin_s.copy(), begin_s + span_s, np.zeros(begin_s.size)
        active = np.flatnonzero(np.isfinite(end_s) & (span_s > 0))
        for _ in range(MAX_PIECES):
            if not active.size:
                break
            factor, until_s = self.rate(resource, active, now_s[active])
            next_s = np.minimum(until_s, end_s[active])
            work_s[active] += factor * (next_s - now_s[active])
            now_s[active] = next_s
            active = active[next_s < end_s[active]]
        work_s[active] += end_s[active] - now_s[active]
        return work_s

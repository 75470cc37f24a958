"""Decisions that a learner makes itself, for one learner or many at once, live and simulated.

A learner knows its costs from its benchmark and refreshes them in every cycle. They give its bound,
when to stop training so that its update arrives by the deadline, and when to request further shards
or release some. `silence_limit_s` says how soon a learner that has died is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.allocation.costs import cautious_costs
from melisma.allocation.dab import dab_bounds
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import (
    BENCHMARK_COUNT,
    PRIOR_SPREAD,
    TINY_S,
    Estimate,
    Estimates,
    sum_of,
)
from melisma.fleet.rng import uniform
from melisma.fleet.task import Task

# Fraction of the deadline reserved for the work between the last batch and the upload.
RESERVE_FRACTION = 0.01
# A learner requests further shards this part of the deadline before it needs them.
LEAD_FRACTION = 0.05
# It judges after this part of the deadline whether it will get to all of its shards.
RELEASE_FRACTION = 0.1
# With extension, a benchmark takes up to this part of the deadline.
BENCHMARK_FRACTION = 0.15
# In a benchmark, model and shards are fetched for up to this part of it; the rest is for training.
BENCHMARK_FETCH_FRACTION = 1 / 3
# A benchmark uploads this part of an update to measure the uplink, or the whole of a small one: a
# few bytes take as long as a call does, and its delays must not be extrapolated.
PROBE_FRACTION, MIN_PROBE_BYTES = 1 / 8, 1 << 14
# A learner requests shards at most once in this part of the deadline.
REQUEST_FRACTION = 0.1
# A learner at work has left if it is silent for this part of its predicted time, within these
# limits: a busy machine may delay a message, and a line that is cut for a second during long work
# must not count, for TCP sends again what was lost up to 2.4 s later.
SILENCE_FRACTION, MIN_SILENCE_S, MAX_SILENCE_S = 1 / 3, 2.0, 3.5
# A run whose learners are all gone waits this long for one; a learner tries as long to call.
MAX_ABSENCE_S = 600.0
# Shards in the benchmark of a learner.
SUBSET_SHARDS = 8
# Do not extrapolate the seconds to fetch a shard from less than this fraction of it.
MIN_SHARD_FRACTION = 0.01
# A benchmark is expected to measure what a cycle takes; the first cycle after it says more.
UNKNOWN_BIAS = Estimate(1.0, PRIOR_SPREAD, 1.0)


@dataclass(frozen=True, eq=False)
class CostHistory:
    """Estimates of what a task costs one learner, or many in arrays.

    Seconds to train a shard once, to fetch a shard, to fetch the model, to upload an update, and
    everything else in a cycle; `estimates` sums the last three to `fixed_s` of the cost model.
    `first_ship_s` are the seconds to fetch a shard in the benchmark, and `train_bias` is how many
    times as long training takes in a cycle as in a benchmark.
    """

    train_s: Estimate
    ship_s: Estimate
    down_s: Estimate
    up_s: Estimate
    rest_s: Estimate
    first_ship_s: Estimate
    train_bias: Estimate = UNKNOWN_BIAS

    @classmethod
    def from_benchmark(
        cls,
        *,
        train_s: ArrayLike,
        ship_s: ArrayLike,
        down_s: ArrayLike,
        up_s: ArrayLike,
        rest_s: ArrayLike,
        train_bias: Estimate = UNKNOWN_BIAS,
    ) -> "CostHistory":
        """Return the history of a learner that has measured itself, but has not trained since.

        `up_s` is extrapolated from a part of an update, so the first upload replaces it.
        `train_bias` is known from cycles that followed earlier benchmarks.
        """
        ship = Estimate.from_benchmark(ship_s)
        return cls(
            train_s=Estimate.from_benchmark(np.asarray(train_s) * train_bias.mean),
            ship_s=ship,
            down_s=Estimate.from_benchmark(down_s),
            up_s=Estimate.from_guess(up_s),
            rest_s=Estimate.from_guess(rest_s),
            first_ship_s=ship,
            train_bias=train_bias,
        )

    def after(self, **took_s: ArrayLike) -> "CostHistory":
        """Return the history after one more measurement of the named costs, NaN where none.

        A `ship_s` of NaN means that all shards of a cycle were in the cache. With an estimate that
        is too high a learner asks for cached shards only and never corrects it, so a higher
        estimate returns to that of the benchmark by half in each such cycle.
        """
        changed = {name: getattr(self, name).with_observation(v) for name, v in took_s.items()}
        if "ship_s" in changed:
            changed["ship_s"] = changed["ship_s"].with_lower_mean(
                self.first_ship_s.mean, np.isnan(took_s["ship_s"])
            )
        if "train_s" in changed:
            changed["train_bias"] = self._learn_bias(took_s["train_s"])
        return replace(self, **changed)

    def _learn_bias(self, train_s: ArrayLike) -> Estimate:
        """Return the bias after a cycle; the first one after a benchmark shows it."""
        first = self.train_s.count == BENCHMARK_COUNT
        if not first.any():
            return self.train_bias
        benchmark_s = self.train_s.mean / self.train_bias.mean
        ratio = np.asarray(train_s) / np.maximum(benchmark_s, TINY_S)
        return self.train_bias.with_observation(np.where(first, ratio, np.nan))

    @property
    def estimates(self) -> Estimates:
        """The three costs of the cost model."""
        return Estimates(self.train_s, self.ship_s, sum_of([self.down_s, self.up_s, self.rest_s]))

    def costs(self) -> Floats:
        """Return the three costs as `CostsReported` has them: costs by parts by learners."""
        costs = [getattr(self.estimates, field.name) for field in fields(Estimates)]
        return np.array([[cost.mean, cost.spread, cost.count] for cost in costs])


def benchmark_s(task: Task) -> float:
    """Return how long a benchmark may take; with extension cycles soon tell more than it can."""
    return task.deadline_s * (BENCHMARK_FRACTION if task.extension else 1.0)


def subset_shards(task: Task, learners: Ints) -> RaggedArray:
    """Return consecutive shards for the benchmark of each learner, from a random start."""
    first = np.floor(uniform(task.seed, "subset", 0, learners) * task.shards).astype(np.int64)
    count = min(SUBSET_SHARDS, task.shards)
    numbers = (first[:, None] + np.arange(count)) % task.shards
    return RaggedArray(np.full(learners.size, count), numbers.ravel())


def probe_bytes(update_bytes: int) -> int:
    """Return how many bytes of an update a benchmark uploads."""
    return min(update_bytes, max(MIN_PROBE_BYTES, round(PROBE_FRACTION * update_bytes)))


def shard_bound(history: CostHistory, task: Task, deadline_s: float, held: ArrayLike) -> Ints:
    """Return the shards that a learner can train by a deadline if it already holds `held`.

    This is the largest number with which its cycle ends in time with probability `caution`; if
    that is 0, one shard that it can train at its mean costs.
    """
    costs, passes = history.estimates, task.passes or 1
    cautious = bound_by_costs(costs, task, deadline_s, passes, held)
    means: Mapping[str, Any] = costs.mean()
    mean = dab_bounds(deadline_s, **means, passes=passes, held=held, overlap=task.overlap)
    return np.maximum(cautious, np.minimum(mean, 1))


def bound_by_costs(
    estimates: Estimates, task: Task, deadline_s: float, passes: int, held: ArrayLike
) -> Ints:
    """Return the shards that learners with these costs can train in time, with `caution`."""
    overlap = task.overlap
    costs: Mapping[str, Any] = cautious_costs(
        estimates, task.caution, deadline_s=deadline_s, passes=passes, held=held, overlap=overlap
    )
    return dab_bounds(deadline_s, **costs, passes=passes, held=held, overlap=overlap)


def reserve_s(history: CostHistory | None, task: Task, down_s: ArrayLike) -> Floats:
    """Return the seconds to reserve for the upload.

    Without a benchmark the first upload is assumed to take as long as fetching the model, `down_s`.
    """
    up_s = np.asarray(down_s)
    if history is not None:
        learned_s = history.up_s.quantile(task.caution)
        up_s = np.where(learned_s > 0, learned_s, up_s)
    return up_s + RESERVE_FRACTION * task.deadline_s


def lead_s(ship_s: ArrayLike, deadline_s: float) -> Floats:
    """Return how long before its work is done a learner requests more: in time to fetch it."""
    return np.asarray(ship_s) + LEAD_FRACTION * deadline_s


def request_delay_s(
    work_s: ArrayLike, fetch_s: ArrayLike, ship_s: ArrayLike, deadline_s: float
) -> Floats:
    """Return the seconds until a learner requests more: before it has fetched and trained all."""
    delay_s: Floats = np.maximum(np.maximum(work_s, fetch_s) - lead_s(ship_s, deadline_s), 0.0)
    return delay_s


def shards_to_request(
    left_s: ArrayLike,
    work_s: ArrayLike,
    fetch_s: ArrayLike,
    train_s: ArrayLike,
    ship_s: ArrayLike,
) -> Ints:
    """Return the shards to request when `work_s` of the `left_s` seconds are planned.

    `fetch_s` are the seconds to fetch the shards that were given and are not there yet; requested
    shards come after them. `train_s` are the seconds to train a shard in all passes. Fetching goes
    on while the planned work is trained; no shard is requested that would arrive too late. A
    learner halts in time, so the last shard need not be finished.
    """
    arrival_s = np.asarray(fetch_s) + np.asarray(ship_s)
    spare_s = np.asarray(left_s) - np.maximum(work_s, arrival_s)
    shards = np.ceil(spare_s / np.maximum(train_s, ship_s))
    requested: Ints = np.where(spare_s > 0, shards, 0.0).astype(np.int64)
    return requested


def shards_to_release(
    left_s: ArrayLike,
    work_s: ArrayLike,
    fetch_s: ArrayLike,
    train_s: ArrayLike,
    ship_s: ArrayLike,
) -> Ints:
    """Return how many shards a learner will not begin in the `left_s` seconds it has.

    `work_s` are the seconds until the last shard is begun if all are there, `train_s` those to
    train a shard once, and `fetch_s` those until all are fetched.
    """
    late_s = np.maximum(work_s, fetch_s) - np.asarray(left_s)
    beyond = np.floor(late_s / np.maximum(train_s, ship_s))
    released: Ints = np.maximum(beyond, 0.0).astype(np.int64)
    return released


def silence_limit_s(predicted_s: ArrayLike, deadline_s: ArrayLike) -> Floats:
    """Return the seconds of silence after which a learner at work counts as gone.

    `predicted_s` is the predicted duration of its work, NaN if unknown.
    """
    fraction_s = SILENCE_FRACTION * np.fmin(predicted_s, deadline_s)
    limit: Floats = np.clip(fraction_s, MIN_SILENCE_S, MAX_SILENCE_S)
    return limit


def time_is_up(left_s: ArrayLike, reserved_s: ArrayLike) -> NDArray[np.bool_]:
    """Return whether to stop training: no more than the reserved seconds are left.

    Before every batch but the first, the reserve includes the seconds of the previous batch, so
    that no batch begins that would end too late.
    """
    return np.less_equal(left_s, reserved_s)


def batches_in_time(
    spare_s: ArrayLike, sample_s: ArrayLike, samples: Ints, passes: Ints, batch: int
) -> Ints:
    """Return how many batches begin before `time_is_up`, if every sample takes `sample_s`.

    `spare_s` is the time left at the first batch, without the reserve for the upload. Counted in
    samples, batch i begins at v(i), and time is up there if v(i) + the size of batch i - 1 is at
    least `time_for`. This happens first in pass `last_pass`, at its first batch or a later one.
    """
    time_for = np.asarray(spare_s) / np.asarray(sample_s)
    per_pass = -(-samples // batch)
    short = samples - (per_pass - 1) * batch
    # With more than one batch per pass, v(i) + size is largest at the last batch.
    largest = np.where(per_pass > 1, per_pass * batch, short)
    last_pass = np.maximum(np.ceil((time_for - largest) / samples), 0.0)
    left = time_for - last_pass * samples
    later = np.maximum(np.ceil(left / batch) - 1.0, 1.0)
    nth = np.where((last_pass > 0) & (left <= short), 0.0, later)
    begun = np.where(time_for > 0, last_pass * per_pass + nth, 0.0)
    done: Ints = np.minimum(begun, passes * per_pass).astype(np.int64)
    return done


def count_steps(visits: Ints, samples: Ints, batch: int) -> Ints:
    """Return the batches in which these samples were visited, the inverse of `count_visits`."""
    known = np.maximum(samples, 1)
    steps: Ints = visits // known * -(-known // batch) + -(-(visits % known) // batch)
    return steps


def count_visits(batches: Ints, samples: Ints, batch: int) -> Ints:
    """Return the samples visited in a number of batches; the last batch of a pass may be short."""
    per_pass = -(-samples // batch)
    visits: Ints = batches // per_pass * samples + batches % per_pass * batch
    return visits

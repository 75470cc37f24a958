"""Decisions that a learner makes itself, for one learner or many at once, live and simulated.

A learner knows its costs from its benchmark and refreshes them in every cycle. They give its bound
and when to stop training so that its update arrives by the deadline.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.allocation.dab import dab_bounds
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.rng import uniform
from melisma.fleet.task import Task

# Fraction of the deadline reserved for the work between the last batch and the upload.
RESERVE_FRACTION = 0.01
# Shards in the benchmark of a learner.
SUBSET_SHARDS = 8
# Do not extrapolate the seconds to fetch a shard from less than this fraction of it.
MIN_SHARD_FRACTION = 0.01


@dataclass(frozen=True, eq=False)
class CostHistory:
    """Estimates of what a task costs one learner, or many in arrays.

    Seconds to train a shard once, to fetch a shard, to fetch the model, to upload an update, and
    everything else in a cycle; `estimates` sums the last three to `fixed_s` of the cost model.
    """

    train_s: Estimate
    ship_s: Estimate
    down_s: Estimate
    up_s: Estimate
    rest_s: Estimate

    def after(self, **took_s: ArrayLike) -> "CostHistory":
        """Return the history after one more measurement of the named costs, NaN where none."""
        return replace(
            self, **{name: getattr(self, name).with_observation(v) for name, v in took_s.items()}
        )

    @property
    def estimates(self) -> Estimates:
        """The three costs of the cost model."""
        parts = (self.down_s, self.up_s, self.rest_s)
        fixed_s = Estimate(
            np.sum([part.mean for part in parts], axis=0),
            np.sqrt(np.sum([part.spread**2 for part in parts], axis=0)),
            np.min([part.count for part in parts], axis=0),
        )
        return Estimates(self.train_s, self.ship_s, fixed_s)

    def costs(self) -> Floats:
        """Return the three costs as `EstimatesReported` has them: costs by parts by learners."""
        costs = [getattr(self.estimates, field.name) for field in fields(Estimates)]
        return np.array([[cost.mean, cost.spread, cost.count] for cost in costs])


def subset_shards(task: Task, learners: Ints) -> RaggedArray:
    """Return consecutive shards for the benchmark of each learner, from a random start."""
    first = np.floor(uniform(task.seed, "subset", 0, learners) * task.shards).astype(np.int64)
    count = min(SUBSET_SHARDS, task.shards)
    numbers = (first[:, None] + np.arange(count)) % task.shards
    return RaggedArray(np.full(learners.size, count), numbers.ravel())


def shard_bound(history: CostHistory, task: Task, deadline_s: float, held: ArrayLike) -> Ints:
    """Return the shards that a learner can train by a deadline if it already holds `held`."""
    costs = history.estimates.quantile(task.caution)
    return dab_bounds(deadline_s, **costs, passes=task.passes or 1, held=held)


def reserve_s(history: CostHistory | None, task: Task, down_s: ArrayLike) -> Floats:
    """Return the seconds to reserve for the upload.

    Until an upload was measured, it is assumed to take as long as fetching the model, `down_s`.
    """
    up_s = np.asarray(down_s)
    if history is not None:
        learned_s = history.up_s.quantile(task.caution)
        up_s = np.where(learned_s > 0, learned_s, up_s)
    return up_s + RESERVE_FRACTION * task.deadline_s


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


def count_visits(batches: Ints, samples: Ints, batch: int) -> Ints:
    """Return the samples visited in a number of batches; the last batch of a pass may be short."""
    per_pass = -(-samples // batch)
    visits: Ints = batches // per_pass * samples + batches % per_pass * batch
    return visits

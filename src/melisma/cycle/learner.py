"""What a learner decides by itself, of one learner or of many at once: live and simulated alike.

It knows its own costs: from its benchmark, then from every cycle. Kept apart are the seconds to
train a shard once, to fetch one, to fetch the model, to upload an update, and whatever else there
is in a cycle; together they are the three costs of the cost model. By these it bounds its share,
and stops so early that its update is in by the deadline.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.allocation.dab import dab_bounds
from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints, RaggedArray
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.rng import uniform
from melisma.fleet.task import Task

# This part of the deadline is kept for what lies between the last batch and the upload.
RESERVE_FRACTION = 0.01
# Shards that a learner measures itself on.
SUBSET_SHARDS = 8
# Where less of a shard came than this, no more is made of how long a whole one takes.
MIN_SHARD_FRACTION = 0.01


@dataclass(frozen=True, eq=False)
class CostHistory:
    """Estimates at one task, of one learner or in arrays over many."""

    train_s: Estimate
    ship_s: Estimate
    down_s: Estimate
    up_s: Estimate
    rest_s: Estimate

    def after(self, **took_s: ArrayLike) -> "CostHistory":
        """With what one cycle took, by name; what is NaN was not measured."""
        return replace(self, **{name: getattr(self, name).after(v) for name, v in took_s.items()})

    @property
    def estimates(self) -> Estimates:
        """As the cost model counts: what does not depend on shards is one sum."""
        parts = (self.down_s, self.up_s, self.rest_s)
        fixed_s = Estimate(
            np.sum([part.mean for part in parts], axis=0),
            np.sqrt(np.sum([part.spread**2 for part in parts], axis=0)),
            np.min([part.count for part in parts], axis=0),
        )
        return Estimates(self.train_s, self.ship_s, fixed_s)

    def costs(self) -> Floats:
        """To report: costs by parts, in the order that events have; learners last."""
        three = [getattr(self.estimates, field.name) for field in fields(Estimates)]
        return np.array([[cost.mean, cost.spread, cost.count] for cost in three])


def subset_shards(task: Task, learners: Ints) -> RaggedArray:
    """Which shards each measures itself on: some in a row, from anywhere; samples are shuffled."""
    first = np.floor(uniform(task.seed, "subset", 0, learners) * task.shards).astype(np.int64)
    count = min(SUBSET_SHARDS, task.shards)
    numbers = (first[:, None] + np.arange(count)) % task.shards
    return RaggedArray(np.full(learners.size, count), numbers.ravel())


def shard_bound(experience: CostHistory, task: Task, deadline_s: float, held: ArrayLike) -> Ints:
    """Shards that it asks for by a deadline, `held` of which are there already."""
    costs = experience.estimates.quantile(task.caution)
    return dab_bounds(deadline_s, **costs, passes=task.passes or 1, held=held)


def reserve_s(experience: CostHistory | None, task: Task, down_s: ArrayLike) -> Floats:
    """What is kept of the deadline for the upload; at first what came down goes up again."""
    up_s = np.asarray(down_s)
    if experience is not None:
        learned_s = experience.up_s.quantile(task.caution)
        up_s = np.where(learned_s > 0, learned_s, up_s)
    return up_s + RESERVE_FRACTION * task.deadline_s


def time_is_up(left_s: ArrayLike, kept_s: ArrayLike) -> NDArray[np.bool_]:
    """Whether it is time to hand in, with so long left and so long kept for what is to come.

    Before every batch but the first, as long as the last one took is kept as well: one that would
    end too late is not begun.
    """
    return np.less_equal(left_s, kept_s)


def batches_in_time(
    spare_s: ArrayLike, sample_s: ArrayLike, samples: Ints, passes: Ints, batch: int
) -> Ints:
    """How many batches are begun before it is `over`, where each sample takes as long.

    `spare_s` is what is left at the first batch, without what is kept for the upload. In samples:
    batch i begins at v(i), and it is over there if v(i) + size of batch i - 1 is at least what
    there is time for. That is first so in the pass `turn`; there at its first batch or a later one.
    """
    time_for = np.asarray(spare_s) / np.asarray(sample_s)
    each = -(-samples // batch)
    short = samples - (each - 1) * batch
    # With more than one batch a pass, the largest v(i) + size in it is that of its last batch.
    largest = np.where(each > 1, each * batch, short)
    turn = np.maximum(np.ceil((time_for - largest) / samples), 0.0)
    left = time_for - turn * samples
    later = np.maximum(np.ceil(left / batch) - 1.0, 1.0)
    nth = np.where((turn > 0) & (left <= short), 0.0, later)
    begun = np.where(time_for > 0, turn * each + nth, 0.0)
    done: Ints = np.minimum(begun, passes * each).astype(np.int64)
    return done


def count_visits(batches: Ints, samples: Ints, batch: int) -> Ints:
    """Samples visited in so many batches; the last batch of a pass may be short."""
    each = -(-samples // batch)
    visits: Ints = batches // each * samples + batches % each * batch
    return visits

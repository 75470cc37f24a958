"""One task, one cycle: who trains how many shards, how often, by the deadline."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    MIN_COST_S,
    Floats,
    Ints,
    Numbers,
    as_counts,
    as_floats,
    as_scalar,
    broadcast_to,
    common_shape,
    refuse,
)
from melisma.allocation.costs import CycleCosts
from melisma.errors import SettingError

# Bounds, cut to all data, add up to less than this for any learners.
MAX_BOUND_SUM = 2**62


@dataclass(frozen=True, init=False, eq=False)
class CycleProblem:
    """Costs and bounds of each learner, and the data to hand out by the deadline.

    `min_shards`, `max_shards` and `held` are one number for all learners or one for each;
    no `max_shards` means all the data. `shards` in all and `deadline_s` are single numbers.
    Whether there is room for all data, and time, is for each scheme to ask.
    """

    train_s: Floats
    ship_s: Floats
    fixed_s: Floats
    deadline_s: float
    shards: int
    min_shards: Ints
    max_shards: Ints
    held: Ints

    def __init__(  # noqa: PLR0913 - a record of the contract's fields, by keyword
        self,
        *,
        train_s: ArrayLike,
        ship_s: ArrayLike,
        fixed_s: ArrayLike,
        deadline_s: float,
        shards: int,
        min_shards: ArrayLike = 1,
        max_shards: ArrayLike | None = None,
        held: ArrayLike = 0,
    ) -> None:
        costs = {
            "train_s": as_floats("train_s", train_s, least=MIN_COST_S),
            "ship_s": as_floats("ship_s", ship_s),
            "fixed_s": as_floats("fixed_s", fixed_s),
        }
        total = as_scalar("shards", as_counts("shards", shards, least=1))
        least = as_counts("min_shards", min_shards)
        bounds = {
            "min_shards": least,
            "max_shards": as_counts(
                "max_shards", np.maximum(least, total) if max_shards is None else max_shards
            ),
            "held": as_counts("held", held),
        }
        shape = common_shape(costs | bounds, axes=1)
        fields: dict[str, Any] = broadcast_to(shape, costs | bounds)
        fields["deadline_s"] = as_scalar(
            "deadline_s", as_floats("deadline_s", deadline_s, above=True)
        )
        fields["shards"] = total
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        refuse(
            "min_shards",
            self.min_shards,
            self.min_shards > self.max_shards,
            "at most the max_shards of the same learner",
        )
        if self.learners * total > MAX_BOUND_SUM:
            raise SettingError(
                f"shards is {total}; expected at most {MAX_BOUND_SUM // self.learners} for "
                f"{self.learners} learners, so that sums over all stay whole numbers"
            )

    @property
    def learners(self) -> int:
        """How many learners there are."""
        return int(self.train_s.size)

    @property
    def has_costs(self) -> bool:
        """Whether anything is known of the costs."""
        return not np.isnan(self.train_s[0])

    def require_costs(self) -> None:
        """`SettingError` if nothing is known of the costs."""
        if not self.has_costs:
            raise SettingError("this scheme needs the costs of learners, and they are not known")

    def without_costs(self) -> Self:
        """The same problem with nothing known of the costs: they are NaN."""
        unknown = np.full(self.learners, np.nan)
        return self._replace_arrays(train_s=unknown, ship_s=unknown, fixed_s=unknown)

    def reorder(self, learners: Ints) -> Self:
        """The same problem with its learners in this order."""
        names = ("train_s", "ship_s", "fixed_s", "min_shards", "max_shards", "held")
        return self._replace_arrays(**{name: getattr(self, name)[learners] for name in names})

    def with_bounds(self, low: Ints, high: Ints) -> Self:
        """The same problem with other bounds, which leave room for all its data."""
        return self._replace_arrays(min_shards=low, max_shards=high)

    def _replace_arrays(self, **arrays: Floats | Ints) -> Self:
        # Nothing is left to check; this is where plans for a hundred learners spend their time.
        other = copy(self)
        other.__dict__.pop("costs", None)
        for name, array in arrays.items():
            object.__setattr__(other, name, array)
        return other

    @cached_property
    def costs(self) -> CycleCosts:
        """The costs alone."""
        return CycleCosts(self.train_s, self.ship_s, self.fixed_s, self.held)

    def seconds(self, shards: Numbers, passes: Numbers) -> Floats:
        """What the cost model says for that many shards and passes; 0 for no shards."""
        return self.costs.seconds(shards, passes)

    def most_shards(self, passes: Numbers) -> Ints:
        """The most shards of each learner, bounds kept above, that fit with so many passes."""
        fitting = self.costs.most_shards(passes, self.deadline_s, self.shards)
        return np.minimum(fitting, self.max_shards)

    def most_updates(self, shards: Numbers) -> Ints:
        """The most passes of each learner that fit with so many shards; 0 for no shards."""
        return self.costs.most_updates(shards, self.deadline_s)


@dataclass(frozen=True, init=False, eq=False)
class CyclePlan:
    """How many shards each learner gets, and how many passes it makes over them."""

    shards: Ints
    updates: Ints

    def __init__(self, shards: ArrayLike, updates: ArrayLike) -> None:
        fields = {"shards": as_counts("shards", shards), "updates": as_counts("updates", updates)}
        for name, value in broadcast_to(common_shape(fields, axes=1), fields).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_shards(cls, problem: CycleProblem, shards: Ints, passes: int | None) -> Self:
        """The plan with so many passes for all who have shards, or else with those that fit."""
        if passes is None and not problem.has_costs:
            raise SettingError("which updates fit is not known without costs; give passes")
        if passes is None:
            return cls(shards, problem.most_updates(shards))
        as_counts("passes", passes, least=1)
        return cls(shards, np.where(shards > 0, passes, 0))

    def seconds(self, problem: CycleProblem) -> Floats:
        """Predicted seconds of each learner."""
        return problem.seconds(self.shards, self.updates)

    @property
    def max_staleness(self) -> int:
        """Largest difference of updates between two learners with shards, 0 updates included."""
        done = self._done()
        return int(done.max() - done.min()) if done.size else 0

    @property
    def average_staleness(self) -> float:
        """Mean difference of updates over all pairs of learners with shards (Eq. 13)."""
        done = np.sort(self._done())
        if done.size < 2:
            return 0.0
        # In order, the i-th is larger than i others and smaller than all that follow.
        larger_than = np.arange(done.size) * 2 - (done.size - 1)
        # In floats: whole numbers of many learners with many updates would overflow.
        more = (done - done[0]).astype(np.float64)
        return float(larger_than @ more) / (done.size * (done.size - 1) / 2)

    def _done(self) -> Ints:
        return self.updates[self.shards > 0]

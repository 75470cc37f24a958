"""One task, one cycle: who trains how many shards, how often, by the deadline."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    SHORTEST_S,
    Floats,
    Ints,
    Numbers,
    common_shape,
    counts,
    numbers,
    single,
    together,
)
from melisma.allocation.costs import Costs
from melisma.errors import InfeasibleError


@dataclass(frozen=True, init=False, eq=False)
class CycleProblem:
    """Costs and bounds of each learner, and the data to hand out by the deadline.

    `min_shards`, `max_shards` and `held` are one number for all learners or one for each;
    no `max_shards` means all the data. `shards` in all and `deadline_s` are single numbers.
    Whether bounds leave room for all data is for those schemes to ask that hand out all of it.
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
            "train_s": numbers("train_s", train_s, least=SHORTEST_S),
            "ship_s": numbers("ship_s", ship_s),
            "fixed_s": numbers("fixed_s", fixed_s),
        }
        total = single("shards", counts("shards", shards, least=1))
        bounds = {
            "min_shards": counts("min_shards", min_shards),
            "max_shards": counts("max_shards", total if max_shards is None else max_shards),
            "held": counts("held", held),
        }
        shape = common_shape(costs | bounds, axes=1)
        fields: dict[str, Any] = together(shape, costs | bounds)
        fields["deadline_s"] = single("deadline_s", numbers("deadline_s", deadline_s, above=True))
        fields["shards"] = total
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check_bounds()

    def _check_bounds(self) -> None:
        crossed = np.flatnonzero(self.min_shards > self.max_shards)
        if crossed.size:
            k = int(crossed[0])
            low, high = int(self.min_shards[k]), int(self.max_shards[k])
            raise InfeasibleError(
                f"learner {k} must take at least {low} shards and at most {high}; "
                f"min_shards of {high} or max_shards of {low} would do",
                constraint="max_shards",
                miss=low - high,
                nearest={"min_shards": high, "max_shards": low},
            )
        soonest = float(self.fixed_s.min())
        if soonest >= self.deadline_s:
            useful = float(self.seconds(1, 1).min())
            raise InfeasibleError(
                f"deadline_s is {self.deadline_s:g}, but the model alone (fixed_s) takes every "
                f"learner {soonest:g} s or more; {useful:g} s is the least for one shard, once",
                constraint="deadline_s",
                miss=useful - self.deadline_s,
                nearest={"deadline_s": useful},
            )

    def require_room(self) -> None:
        """`InfeasibleError` if the bounds do not let learners take all the data, and no more."""
        least = int(self.min_shards.sum())
        if least > self.shards:
            raise InfeasibleError(
                f"min_shards of all learners come to {least}, {least - self.shards} more than "
                f"the {self.shards} shards there are; at least {least} shards would do",
                constraint="min_shards",
                miss=least - self.shards,
                nearest={"shards": least},
            )
        most = int(self.max_shards.sum())
        if most < self.shards:
            raise InfeasibleError(
                f"max_shards of all learners come to {most}, {self.shards - most} fewer than "
                f"the {self.shards} shards there are; at most {most} shards would do",
                constraint="max_shards",
                miss=self.shards - most,
                nearest={"shards": most},
            )

    @property
    def learners(self) -> int:
        """How many learners there are."""
        return int(self.train_s.size)

    def of(self, learners: Ints) -> "CycleProblem":
        """The same problem with its learners in this order."""
        names = ("train_s", "ship_s", "fixed_s", "min_shards", "max_shards", "held")
        return replace(self, **{name: getattr(self, name)[learners] for name in names})

    def within(self, low: Ints, high: Ints) -> "CycleProblem":
        """The same problem with other bounds, which leave room for all its data."""
        # Nothing is left to check; this is where plans for a hundred learners spend their time.
        bounded = copy(self)
        object.__setattr__(bounded, "min_shards", low)
        object.__setattr__(bounded, "max_shards", high)
        return bounded

    @cached_property
    def costs(self) -> Costs:
        """The costs alone."""
        return Costs(self.train_s, self.ship_s, self.fixed_s, self.held)

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
        fields = {"shards": counts("shards", shards), "updates": counts("updates", updates)}
        for name, value in together(common_shape(fields, axes=1), fields).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, problem: CycleProblem, shards: Ints, passes: int | None) -> Self:
        """The plan with so many passes for all who have shards, or else with those that fit."""
        if passes is None:
            return cls(shards, problem.most_updates(shards))
        counts("passes", passes, least=1)
        return cls(shards, np.where(shards > 0, passes, 0))

    def seconds(self, problem: CycleProblem) -> Floats:
        """Predicted seconds of each learner."""
        return problem.seconds(self.shards, self.updates)

    @property
    def max_staleness(self) -> int:
        """Largest difference of updates between two learners that take part."""
        done = self._done()
        return int(done.max() - done.min()) if done.size else 0

    @property
    def average_staleness(self) -> float:
        """Mean difference of updates over all pairs of learners that take part (Eq. 13)."""
        done = np.sort(self._done())
        if done.size < 2:
            return 0.0
        # In order, the i-th is larger than i others and smaller than all that follow.
        larger_than = np.arange(done.size) * 2 - (done.size - 1)
        return float(larger_than @ done) / (done.size * (done.size - 1) / 2)

    def _done(self) -> Ints:
        return self.updates[(self.shards > 0) & (self.updates > 0)]

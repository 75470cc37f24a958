"""One task, one cycle: who trains how many shards, how often, by the deadline.

Seconds of one learner, Eq. 5 of Mohammad and Sorour with shards that it already holds::

    seconds = fixed_s + ship_s * max(0, shards - held) + train_s * passes * shards

Each rounding here is monotone in shards and in passes, so "what still fits" is decided by this
very expression: no plan exceeds its deadline in the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.allocation.checks import (
    Floats,
    Ints,
    Numbers,
    common_shape,
    counts,
    numbers,
    single,
    together,
)
from melisma.errors import InfeasibleError

# Beyond this a learner is as good as done at once; it keeps products within exact range.
MOST_UPDATES = 2**31


@dataclass(frozen=True, init=False, eq=False)
class CycleProblem:
    """Costs and bounds of each learner, and the data to hand out by the deadline.

    `min_shards`, `max_shards` and `held` are one number for all learners or one for each;
    no `max_shards` means all the data. `shards` in all and `deadline_s` are single numbers.
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
            "train_s": numbers("train_s", train_s, above=True),
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
        for name, total, miss in (
            ("min_shards", int(self.min_shards.sum()), int(self.min_shards.sum()) - self.shards),
            ("max_shards", int(self.max_shards.sum()), self.shards - int(self.max_shards.sum())),
        ):
            if miss > 0:
                least = name == "min_shards"
                raise InfeasibleError(
                    f"{name} of all learners come to {total}, {miss} "
                    f"{'more' if least else 'fewer'} than the {self.shards} shards there are; "
                    f"{'at least' if least else 'at most'} {total} shards would do",
                    constraint=name,
                    miss=miss,
                    nearest={"shards": total},
                )
        soonest = float(self.fixed_s.min())
        if soonest >= self.deadline_s:
            useful = float(self.seconds(1, 1).min())
            raise InfeasibleError(
                f"deadline_s is {self.deadline_s:g}, but the model alone (fixed_s) takes every "
                f"learner {soonest:g} s or more; {useful:g} s is the least for one shard, once",
                constraint="deadline_s",
                miss=soonest - self.deadline_s,
                nearest={"deadline_s": useful},
            )

    @property
    def learners(self) -> int:
        """How many learners there are."""
        return int(self.train_s.size)

    def seconds(self, shards: Numbers, passes: Numbers) -> Floats:
        """What the cost model says for that many shards and passes; nothing for no shards."""
        mine = np.asarray(shards)
        shipped = np.maximum(mine - self.held, 0)
        busy = self.fixed_s + self.ship_s * shipped + self.train_s * passes * mine
        return np.where(mine > 0, busy, 0.0)

    def fits(self, shards: Numbers, passes: Numbers) -> NDArray[np.bool_]:
        """Who ends by the deadline with that many shards and passes."""
        return self.seconds(shards, passes) <= self.deadline_s

    def most_shards(self, passes: Numbers) -> Ints:
        """Largest number of shards that leaves each learner room for so many passes."""
        spare_s = np.maximum(self.deadline_s - self.fixed_s, 0.0)
        work_s = self.train_s * passes
        with np.errstate(divide="ignore", invalid="ignore"):
            among_held = spare_s / work_s
            beyond = (spare_s + self.ship_s * self.held) / (self.ship_s + work_s)
        guess = np.where(among_held < self.held, among_held, np.maximum(beyond, self.held))
        return _settle(guess, self.shards, lambda shards: self.fits(shards, passes))

    def most_updates(self, shards: Numbers) -> Ints:
        """Largest number of passes over so many shards that fits; 0 for a learner without any."""
        mine = np.asarray(shards, dtype=np.int64)
        shipped = np.maximum(mine - self.held, 0)
        spare_s = np.maximum(self.deadline_s - self.fixed_s - self.ship_s * shipped, 0.0)
        with np.errstate(over="ignore"):
            guess = spare_s / (self.train_s * np.maximum(mine, 1))
        most = _settle(guess, MOST_UPDATES, lambda passes: self.fits(mine, passes))
        return np.where(mine > 0, most, 0)


@dataclass(frozen=True, init=False, eq=False)
class CyclePlan:
    """How many shards each learner gets, and how many passes it makes over them."""

    shards: Ints
    updates: Ints

    def __init__(self, shards: ArrayLike, updates: ArrayLike) -> None:
        fields = {"shards": counts("shards", shards), "updates": counts("updates", updates)}
        for name, value in together(common_shape(fields, axes=1), fields).items():
            object.__setattr__(self, name, value)

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


def _settle(guess: Floats, most: int, fits: Callable[[Ints], NDArray[np.bool_]]) -> Ints:
    """The largest whole number from 0 to `most` that fits, near a guess that is off by rounding."""
    found = np.fmin(guess, most).astype(np.int64)
    while np.any(over := (found > 0) & ~fits(found)):
        found = found - over
    while np.any(under := (found < most) & fits(found + 1)):
        found = found + under
    return found

"""The problem and plan of one task in one cycle: shards and updates of each learner."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    MIN_COST_S,
    Numbers,
    as_counts,
    as_floats,
    as_scalar,
    broadcast_to,
    common_shape,
    require,
)
from melisma.allocation.costs import CycleCosts
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints

# Bounds, cut to all data, sum to less than this.
MAX_BOUND_SUM = 2**62


@dataclass(frozen=True, init=False, eq=False)
class CycleProblem:
    """Costs and bounds of each learner, and the data to allocate by the deadline.

    `min_shards`, `max_shards` and `held` are one number for all learners or one for each; without
    `max_shards`, a learner may take all the data. `shards` and `deadline_s` are single numbers.
    With `overlap`, learners fetch shards while they train others. Each scheme checks whether the
    problem is feasible for it.
    """

    train_s: Floats
    ship_s: Floats
    fixed_s: Floats
    deadline_s: float
    shards: int
    min_shards: Ints
    max_shards: Ints
    held: Ints
    overlap: bool

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
        overlap: bool = False,
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
        fields["shards"], fields["overlap"] = total, overlap
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        require(
            "min_shards",
            self.min_shards,
            self.min_shards <= self.max_shards,
            "at most the max_shards of the same learner",
        )
        if self.learners * total > MAX_BOUND_SUM:
            raise SettingError(
                f"shards is {total}; expected at most {MAX_BOUND_SUM // self.learners} for "
                f"{self.learners} learners, so that sums over all stay whole numbers"
            )

    @property
    def learners(self) -> int:
        """The number of learners."""
        return int(self.train_s.size)

    @property
    def has_costs(self) -> bool:
        """Whether the costs are known."""
        return not np.isnan(self.train_s[0])

    def require_costs(self) -> None:
        """Raise `SettingError` if the costs are unknown."""
        if not self.has_costs:
            raise SettingError(
                "the costs of the learners are unknown; measure them, or use equal or dab"
            )

    def without_costs(self) -> "CycleProblem":
        """Return the problem with unknown costs, which are NaN."""
        unknown = np.full(self.learners, np.nan)
        return self._replace_arrays(train_s=unknown, ship_s=unknown, fixed_s=unknown)

    def reorder(self, learners: Ints) -> "CycleProblem":
        """Return the problem with the given learners, in this order."""
        names = ("train_s", "ship_s", "fixed_s", "min_shards", "max_shards", "held")
        return self._replace_arrays(**{name: getattr(self, name)[learners] for name in names})

    def with_bounds(self, low: Ints, high: Ints) -> "CycleProblem":
        """Return the problem with other bounds, which must admit all its data."""
        return self._replace_arrays(min_shards=low, max_shards=high)

    def with_overlap(self, overlap: bool) -> "CycleProblem":
        """Return the problem for learners that fetch shards while they train others, or not."""
        other = self._replace_arrays()
        object.__setattr__(other, "overlap", overlap)
        return other

    def _replace_arrays(self, **arrays: Floats | Ints) -> "CycleProblem":
        # Without checks, because plans for a hundred learners spend most of their time here.
        other = copy(self)
        other.__dict__.pop("costs", None)
        for name, array in arrays.items():
            object.__setattr__(other, name, array)
        return other

    @cached_property
    def costs(self) -> CycleCosts:
        """The costs of the learners."""
        return CycleCosts(self.train_s, self.ship_s, self.fixed_s, self.held, self.overlap)

    def seconds(self, shards: Numbers, passes: Numbers) -> Floats:
        """Return the seconds for these shards and passes; 0 without shards."""
        return self.costs.seconds(shards, passes)

    def most_shards(self, passes: Numbers) -> Ints:
        """Return the most shards of each learner, up to `max_shards`, for which `passes` fit."""
        fitting = self.costs.most_shards(passes, self.deadline_s, self.shards)
        return np.minimum(fitting, self.max_shards)

    def most_updates(self, shards: Numbers) -> Ints:
        """Return the most passes of each learner over these shards that fit; 0 without shards."""
        return self.costs.most_updates(shards, self.deadline_s)


@dataclass(frozen=True, init=False, eq=False)
class CyclePlan:
    """The shards of each learner, and the number of passes that it makes over them.

    `updates` is that number of passes: the papers call one pass a local update of the model.
    """

    shards: Ints
    updates: Ints

    def __init__(self, shards: ArrayLike, updates: ArrayLike) -> None:
        fields = {"shards": as_counts("shards", shards), "updates": as_counts("updates", updates)}
        for name, value in broadcast_to(common_shape(fields, axes=1), fields).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_shards(cls, problem: CycleProblem, shards: Ints, passes: int | None) -> "CyclePlan":
        """Return the plan with `passes` for all learners with shards; None means those that fit."""
        if passes is None and not problem.has_costs:
            raise SettingError(
                "the costs of the learners are unknown, so the passes that fit are too; set passes"
            )
        if passes is None:
            return cls(shards, problem.most_updates(shards))
        as_counts("passes", passes, least=1)
        return cls(shards, np.where(shards > 0, passes, 0))

    def seconds(self, problem: CycleProblem) -> Floats:
        """Return the predicted seconds of each learner."""
        return problem.seconds(self.shards, self.updates)

    @property
    def max_staleness(self) -> int:
        """The largest difference of updates between two learners with shards; 0 updates count."""
        done = self._updates_with_shards()
        return int(done.max() - done.min()) if done.size else 0

    @property
    def average_staleness(self) -> float:
        """The mean difference of updates over all pairs of learners with shards (Eq. 13)."""
        done = np.sort(self._updates_with_shards())
        if done.size < 2:
            return 0.0
        # Sorted, the i-th is larger than i others and smaller than all that follow.
        weight = np.arange(done.size) * 2 - (done.size - 1)
        # In floats, because integers would overflow for many learners with many updates.
        more = (done - done[0]).astype(np.float64)
        return float(weight @ more) / (done.size * (done.size - 1) / 2)

    def _updates_with_shards(self) -> Ints:
        return self.updates[self.shards > 0]

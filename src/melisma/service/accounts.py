"""The account of a task: what is reserved for granted work, what was paid, and what is left.

The price of a grant is reserved until the work is paid or released, so that a task never promises
more than its budget. Each part of a grant is settled once: whole shards that a counted update
covers are paid at the price of the grant, and all others are released with a reason.
"""

from dataclasses import dataclass, field
from math import fsum, isnan

import numpy as np

from melisma.cycle.commands import CoveredWork
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task

UNTRAINED = "not trained by the deadline"
LOST = "no update of it is going to count"
NOT_BEGUN = "the cycle did not begin"
ENDED = "the task ended before an update of it counted"
LEFT_OUT = "its update was left out of the average, as it changed the model too far"
DAMAGED = "its update was damaged on the disk of the orchestrator"

Work = tuple[int, int]
"""The cycle and the learner of a grant."""


@dataclass(frozen=True)
class Grant:
    """The shards that a learner was granted for a cycle, and the price of each."""

    shards: int
    price: float


@dataclass(frozen=True)
class Settlement:
    """Grants that are settled: shards to pay with their price, and shards released, by reason."""

    paid: list[tuple[Work, Grant]] = field(default_factory=list)
    released: dict[str, list[tuple[Work, int]]] = field(default_factory=dict)

    def release(self, work: Work, shards: int, reason: str) -> None:
        """Add shards that are released; none if there are none."""
        if shards > 0:
            self.released.setdefault(reason, []).append((work, shards))


@dataclass(eq=False)
class Account:
    """The grants of a task that are not settled, and the sum that it has paid.

    `covered` is what the updates of a cycle cover that is being averaged.
    """

    budget: float | None = None
    paid: float = 0.0
    grants: dict[Work, Grant] = field(default_factory=dict)
    covered: CoveredWork | None = None

    @property
    def reserved(self) -> float:
        """The price of all grants that are not settled."""
        return fsum(grant.shards * grant.price for grant in self.grants.values())

    @property
    def left(self) -> float | None:
        """The part of the budget that is neither paid nor reserved; None without a budget."""
        return None if self.budget is None else max(self.budget - self.paid - self.reserved, 0.0)

    def reserve(self, cycle: int, learners: Ints, shards: Ints, price: Floats) -> None:
        """Reserve the price of a grant."""
        rows = zip(learners.tolist(), shards.tolist(), price.tolist(), strict=True)
        self.grants |= {(cycle, learner): Grant(count, each) for learner, count, each in rows}

    def cancel(self, cycle: int) -> Settlement:
        """Release the grants of a cycle that did not begin."""
        return self._release([work for work in self.grants if work[0] == cycle], NOT_BEGUN)

    def close(self, covered: CoveredWork) -> Settlement:
        """Release the grants that no update covers, now or later; the others are averaged."""
        self.covered = covered
        kept = {*_pairs(covered.cycles, covered.learners)}
        kept |= {*_pairs(covered.awaited_cycles, covered.awaited)}
        return self._release([work for work in self.grants if work not in kept], LOST)

    def settle(self, guarded: Ints, guarded_cycles: Ints, scales: Floats) -> Settlement:
        """Pay the updates of the average that was made, but for those that were left out."""
        covered, self.covered = self.covered, None
        settled = Settlement()
        if covered is None:
            return settled
        scale = dict(zip(_pairs(guarded_cycles, guarded), scales.tolist(), strict=True))
        rows = zip(_pairs(covered.cycles, covered.learners), covered.shards.tolist(), strict=True)
        for work, shards in rows:
            grant = self.grants.pop(work, None)
            if grant is None:
                continue  # Only extensions: they are not paid.
            if isnan(scale.get(work, 1.0)):
                settled.release(work, grant.shards, DAMAGED)
            elif scale.get(work, 1.0) == 0:
                settled.release(work, grant.shards, LEFT_OUT)
            else:
                self._pay(settled, work, grant, min(shards, grant.shards))
        self.paid = fsum([self.paid, *(each.shards * each.price for _, each in settled.paid)])
        return settled

    def _pay(self, settled: Settlement, work: Work, grant: Grant, shards: int) -> None:
        if shards > 0:
            settled.paid.append((work, Grant(shards, grant.price)))
        settled.release(work, grant.shards - shards, UNTRAINED)

    def end(self) -> Settlement:
        """Release all grants."""
        self.covered = None
        return self._release(list(self.grants), ENDED)

    def _release(self, works: list[Work], reason: str) -> Settlement:
        settled = Settlement()
        for work in works:
            settled.release(work, self.grants.pop(work).shards, reason)
        return settled


def check_budget(task: Task, budget: float | None) -> None:
    """Raise `SettingError` for extensions beside a budget, of a task or of each round."""
    if not task.extension or (task.budget is None and budget is None):
        return
    setting = f"each round has budget = {budget or 0.0:g}"
    if task.budget is not None:
        setting = f"it has budget = {task.budget:g}"
    raise SettingError(
        f"task {task.name} has extension = true, which gives learners more shards than were "
        f"planned and paid for, and {setting}; use extension = false, or remove the budget"
    )


def _pairs(cycles: Ints, learners: Ints) -> list[Work]:
    return list(zip(cycles.tolist(), learners.tolist(), strict=True))


def columns(works: list[Work]) -> tuple[Ints, Ints]:
    """Return the cycles and the learners of grants."""
    cycles, learners = np.array(works, np.int64).reshape(-1, 2).T
    return cycles, learners

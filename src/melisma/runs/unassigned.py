"""The learners of a run that had no assignment in a cycle, and why."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Bools
from melisma.runs.assignments import Names, Small

UnassignedReason = Literal["not ready", "without work", "absent"]
REASONS: tuple[UnassignedReason, ...] = get_args(UnassignedReason)


@dataclass(frozen=True, eq=False, repr=False)
class Unassigned:
    """Learners without an assignment, by number; `reason` is an index in `REASONS`.

    A learner is not ready if it was asked for costs or a bound and has not answered, without work
    if the plan gave it none, and absent if it has left or not joined yet.
    """

    names: Names
    learner: Small
    reason: NDArray[np.int8]

    @classmethod
    def from_masks(cls, idle: Bools, present: Bools, not_ready: Bools) -> "Unassigned":
        """Return the idle learners; each mask has one entry for each learner of the run."""
        learners = np.flatnonzero(idle)
        reason = np.full(learners.size, REASONS.index("without work"), np.int8)
        reason[not_ready[learners]] = REASONS.index("not ready")
        reason[~present[learners]] = REASONS.index("absent")
        return cls((), learners.astype(np.int32), reason)

    def __len__(self) -> int:
        return self.learner.size

    def __repr__(self) -> str:
        return f"<{len(self)} learners without an assignment>"

    def first(self, count: int) -> list[tuple[str, UnassignedReason]]:
        """Return name and reason of the first `count` learners."""
        rows = zip(self.learner[:count].tolist(), self.reason[:count].tolist(), strict=True)
        return [(self.names[learner], REASONS[reason]) for learner, reason in rows]

    def by_name(self) -> dict[str, UnassignedReason]:
        """Return the reason of each learner by its name."""
        return dict(self.first(len(self)))


NO_UNASSIGNED = Unassigned((), np.empty(0, np.int32), np.empty(0, np.int8))

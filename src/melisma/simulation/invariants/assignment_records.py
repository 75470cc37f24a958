"""The records that the invariants keep of assignments, independent of those of the machine."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class AssignmentRecord:
    """The shards and samples given to a learner in one cycle, and the visits of its update.

    `samples` and `shards` are those of each extension, by attempt; the first is the assignment.
    """

    samples: dict[int, int]
    shards: dict[int, set[int]]
    passes: int
    visits: int | None = None
    done: int = 0  # visits of the plan
    attempt: int = 0  # of the update
    closed: bool = False
    requested: int = 0
    had: set[int] = field(default_factory=set)  # all shards that were ever given
    copied: set[int] = field(default_factory=set)  # when late: shards that another update covers

    @property
    def all_samples(self) -> int:
        """The samples of all extensions that were not taken back."""
        return sum(n for attempt, n in self.samples.items() if self.shards[attempt])

    @property
    def all_shards(self) -> set[int]:
        """The shards of all extensions."""
        return {shard for part in self.shards.values() for shard in part}

    @property
    def weight(self) -> float:
        """Samples up to the attempt of the update, less where not all visits were made."""
        samples = sum(n for attempt, n in self.samples.items() if attempt <= self.attempt)
        planned = samples * self.passes
        return samples * min(self.done, planned) / max(planned, 1)

    def take_back_after(self, attempt: int) -> set[int]:
        """Take back the shards of extensions after an attempt, and return them."""
        taken = set[int]()
        for later in [number for number in self.samples if number > attempt]:
            taken |= self.shards[later]
            self.shards[later] = set()
        return taken


class AssignmentRecords:
    """The assignments of this cycle by learner, and late ones by cycle and learner."""

    def __init__(self) -> None:
        self.cycle = 0
        self.open: dict[int, AssignmentRecord] = {}
        self.late: dict[tuple[int, int], AssignmentRecord] = {}

    def find_open(self, cycle: int, learner: int) -> AssignmentRecord | None:
        """Return the assignment of a learner, if it is one of this cycle."""
        return self.open.get(learner) if cycle == self.cycle else None

    def to_hand_on(self) -> set[int]:
        """Return the shards of this cycle that no learner has trained, or may still train."""
        trained, had = set[int](), set[int]()
        for record in self.open.values():
            had |= record.had
            if record.visits or not record.closed:
                trained |= record.all_shards
        return had - trained

    def end_cycle(self) -> list[int]:
        """Move open assignments to the late ones; return their learners."""
        covered = {shard for each in self.open.values() if each.visits for shard in each.all_shards}
        late = [learner for learner, record in self.open.items() if not record.closed]
        for learner in late:
            record = self.open[learner]
            record.copied = covered & record.all_shards
            self.late[self.cycle, learner] = record
        self.open = {}
        return late


def assignment_keys(message: Any) -> list[tuple[int, int]]:
    """Return learner and attempt of each assignment in a message."""
    return list(zip(message.learners.tolist(), message.attempts.tolist(), strict=True))

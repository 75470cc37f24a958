"""The record that the invariants keep of each assignment, independent of that of the machine."""

from dataclasses import dataclass, field


@dataclass
class AssignmentRecord:
    """What a learner was given in one cycle, and the visits of its update.

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

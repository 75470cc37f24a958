"""The shards that each learner was given in recent cycles, in the order of its instructions.

An assignment may be repeated after a restart, with fewer shards: a learner that restarted trains
those, and one that did not trains the shards of the first instruction. Both are kept. What the
process before this one gave is not known completely.
"""

from dataclasses import dataclass, field, replace

from melisma.cycle.commands import Dispatch, Extend, Resend
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.restarts import FIRST_ATTEMPT

Key = tuple[int, int]
"""A learner and a cycle."""


@dataclass(frozen=True)
class InstructedWork:
    """Passes over the shards of one instruction."""

    passes: int
    shards: tuple[int, ...]


@dataclass(frozen=True)
class AssignmentVersion:
    """The instructions of an assignment by attempt; incomplete if some of them are not known."""

    parts: dict[int, InstructedWork] = field(default_factory=dict)
    complete: bool = True


class AssignmentVersions:
    """Records the commands by which learners are given shards."""

    def __init__(self) -> None:
        self._versions: dict[Key, list[AssignmentVersion]] = {}

    def dispatch(self, command: Dispatch) -> None:
        """Record assignments, and forget those of long ago."""
        oldest = command.cycle - MAX_LATE_CYCLES - 1
        self._versions = {key: v for key, v in self._versions.items() if key[1] >= oldest}
        for learner, attempt, part in _rows(command):
            self._versions[learner, command.cycle] = [AssignmentVersion({attempt: part})]

    def extend(self, command: Extend) -> None:
        """Record extensions."""
        for learner, attempt, part in _rows(command):
            known = self._versions.get(
                (learner, command.cycle), [AssignmentVersion(complete=False)]
            )
            self._versions[learner, command.cycle] = [
                replace(version, parts=version.parts | {attempt: part}) for version in known
            ]

    def resend(self, command: Resend) -> None:
        """Record assignments and extensions that were sent again, as another version."""
        for learner, attempt, part in _rows(command):
            key = learner, command.cycle
            known = self._versions.setdefault(key, [])
            if attempt == FIRST_ATTEMPT or not known:
                complete = bool(known) and known[-1].complete
                known.append(AssignmentVersion({attempt: part}, complete))
            else:
                known[-1].parts[attempt] = part

    def versions(self, learner: int, cycle: int) -> list[AssignmentVersion]:
        """Return what a learner may have been given in a cycle, the latest version first."""
        return self._versions.get((learner, cycle), [])[::-1]


def _rows(command: Dispatch | Extend | Resend) -> list[tuple[int, int, InstructedWork]]:
    """Return learner, attempt and part of each row."""
    return [
        (learner, attempt, InstructedWork(passes, tuple(shards.tolist())))
        for learner, attempt, passes, shards in zip(
            command.learners.tolist(),
            command.attempts.tolist(),
            command.passes.tolist(),
            command.shards,
            strict=True,
        )
    ]

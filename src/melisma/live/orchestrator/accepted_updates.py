"""The updates on disk that no average contains yet, with their records in the journal."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import numpy as np

from melisma.cycle.commands import Aggregate
from melisma.learning.aggregation import SpooledUpdate, UpdateSpool
from melisma.learning.parameters import Arrays, Layout
from melisma.live.orchestrator.run_journal import RunJournal

Assignment = tuple[int, int, int]
"""Learner, cycle and attempt."""
UPDATE: Final = "update/"
"""The first part of the names of records about updates."""


class StoredUpdate(msgspec.Struct, frozen=True):
    """An update on disk: its checksum, and its distance from the parameters it began with.

    Without a guard the distance is not computed, and 0. An update that was stored by an earlier
    process is `unchecked` until its file has been read.
    """

    checksum: int
    distance: float
    unchecked: bool = False


@dataclass(frozen=True)
class AcceptedUpdate:
    """A spooled update, the cycle of its assignment, and what is known about its file.

    `steps` are 0 unless the task normalises changes by them.
    """

    update: SpooledUpdate
    cycle: int
    stored: StoredUpdate
    visits: int
    steps: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether the file is as it was written, if an earlier process wrote it."""
        path, stored = self.update.path, self.stored
        if not stored.unchecked:
            return True
        return path.is_file() and crc32(path.read_bytes()) == stored.checksum


class AcceptedUpdates:
    """The updates in one folder; each is on disk before its record is in the journal."""

    def __init__(self, folder: Path, layout: Layout, journal: RunJournal) -> None:
        self._folder, self._journal = folder, journal
        self._spool = UpdateSpool(folder, layout)
        self._accepted: dict[Assignment, StoredUpdate] = {}
        # Updates of the latest average, to be deleted when its result is on disk.
        self._obsolete: list[Assignment] = []

    def __len__(self) -> int:
        return len(self._accepted)

    def __contains__(self, assignment: Assignment) -> bool:
        return assignment in self._accepted

    def resume(self) -> None:
        """Read the records of an earlier process.

        Delete updates that were never acknowledged: their learners send them again.
        """
        for name, content in self._journal.records(UPDATE):
            learner, cycle, attempt = map(int, name.removeprefix(UPDATE).split("-"))
            stored = msgspec.json.decode(content, type=StoredUpdate)
            self._accepted[learner, cycle, attempt] = msgspec.structs.replace(
                stored, unchecked=True
            )
        known = {self._path(assignment) for assignment in self._accepted}
        delete_files(path for path in self._folder.iterdir() if path not in known)

    def write(self, assignment: Assignment, update: Arrays) -> Path:
        """Write an update to disk, from any thread; raise `DataError` if it does not fit."""
        return self._spool.add(_name(assignment), update)

    def read(self, assignment: Assignment) -> bytes:
        """Return the file of an update that was written."""
        return self._path(assignment).read_bytes()

    def discard(self, assignment: Assignment) -> None:
        """Delete an update that was written and does not count."""
        self._path(assignment).unlink(missing_ok=True)

    def accept(self, assignment: Assignment, update: StoredUpdate) -> None:
        """Remember an update that was written, with the next step that is recorded."""
        self._accepted[assignment] = update
        self._journal.put(UPDATE + _name(assignment), msgspec.json.encode(update))

    def take(self, command: Aggregate, kept: Collection[Assignment]) -> list[AcceptedUpdate]:
        """Return the updates of the command, late ones first; all but `kept` become obsolete."""
        late, cycles = command.late, np.full(command.learners.size, command.cycle)
        steps = np.concatenate([late.steps, command.steps])
        rows = zip(
            np.concatenate([late.learners, command.learners]).tolist(),
            np.concatenate([late.cycles, cycles]).tolist(),
            np.concatenate([late.attempts, command.attempts]).tolist(),
            np.concatenate([late.weights, command.weights]).tolist(),
            np.concatenate([late.visits, command.visits]).tolist(),
            steps.tolist() or [0] * (late.learners.size + cycles.size),
            strict=True,
        )
        updates = []
        for learner, cycle, attempt, weight, visits, made in rows:
            assignment = learner, cycle, attempt
            update = SpooledUpdate(learner, weight, self._path(assignment))
            updates.append(AcceptedUpdate(update, cycle, self._accepted[assignment], visits, made))
        self._obsolete = [assignment for assignment in self._accepted if assignment not in kept]
        for assignment in self._obsolete:
            del self._accepted[assignment]
        return updates

    def forget_obsolete(self) -> list[Path]:
        """Delete the records of obsolete updates with the next step; return their files."""
        for assignment in self._obsolete:
            self._journal.put(UPDATE + _name(assignment), None)
        return [self._path(assignment) for assignment in self._obsolete]

    def _path(self, assignment: Assignment) -> Path:
        return self._spool.path(_name(assignment))


def delete_files(paths: Iterable[Path]) -> None:
    """Delete files, if they exist."""
    for path in paths:
        path.unlink(missing_ok=True)


def _name(assignment: Assignment) -> str:
    return "-".join(map(str, assignment))

"""A journal that keeps the steps of a run in memory, to measure what the one on disk costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from melisma.live import preparation
from melisma.live.orchestrator import run_store
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.private_files import open_private
from melisma.runs.folder import JOURNAL_FILE
from melisma.runs.journal import Journal
from melisma.runs.trace import Step, encode_step


class UnrecordedJournal(Journal):
    """The steps of a run in memory; records are forgotten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: list[Step] = []

    @classmethod
    def create(cls, folder: Path, *_: object) -> "UnrecordedJournal":
        """Create an empty file, so that the run has its folder."""
        path = folder / JOURNAL_FILE
        open_private(path, "xb").close()
        return cls(path)

    @property
    def last(self) -> int:
        """The number of the last step."""
        return len(self.kept)

    def put(self, name: str, content: bytes | None) -> None:
        """Forget a record."""

    def write(self, *steps: Step) -> None:
        """Keep steps in memory."""
        self.kept += steps

    def sync(self) -> None:
        """Do nothing: nothing is on disk."""

    def steps(self, after: int = 0) -> Iterator[Step]:
        """Yield the steps after a number."""
        yield from self.kept[after:]

    def lines(self, after: int = 0) -> Iterator[bytes]:
        """Yield the steps after a number as lines of a trace."""
        yield from map(encode_step, self.kept[after:])

    def close(self) -> None:
        """Do nothing: no file is open."""


class UnrecordedRun(RunJournal):
    """The journal of a run that nothing waits for."""

    def write(self, step: Step) -> None:
        """Keep a step in memory."""
        self.journal.write(step)

    def flush(self) -> None:
        """Do nothing: records are forgotten."""

    async def sync(self) -> None:
        """Return at once."""


class NoSnapshot:
    """Snapshots that are not taken."""

    @staticmethod
    def take(*_: object) -> bytes:
        """Return nothing."""
        return b""


@contextmanager
def without_journal() -> Iterator[None]:
    """Let runs in this context have no journal on disk."""
    with (
        patch.multiple(preparation, Journal=UnrecordedJournal, RunJournal=UnrecordedRun),
        patch.object(run_store, "Snapshot", NoSnapshot),
    ):
        yield

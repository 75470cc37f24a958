"""The journal of a live run: steps are written at once, and reach the disk together.

Writing takes a fraction of a millisecond, and survives a killed process. What leaves this machine
because of a step waits for `sync`, which also survives a power cut; all that wait share one.
"""

import asyncio
import os
import time
from errno import ENOSPC
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from melisma.errors import DataError
from melisma.runs.journal import UNRECORDED, Journal
from melisma.runs.trace import Step

CLOCK: Final = "clock"
"""The record with the time of the latest step."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class ClockReading(msgspec.Struct, frozen=True):
    """The time of day and the monotonic time of this start of the machine, in seconds."""

    wall_s: float
    monotonic_s: float
    boot: str

    @classmethod
    def now(cls) -> "ClockReading":
        """Read the clocks of this machine."""
        return cls(time.time(), time.monotonic(), _boot())

    def seconds_to(self, later: "ClockReading") -> float:
        """Return the seconds until a later reading.

        The time of day counts only if the machine was started in between: it may have been set. Of
        a time of day that went back nothing is known, and this is 0.
        """
        same_boot = bool(self.boot) and self.boot == later.boot
        passed_s = later.monotonic_s - self.monotonic_s
        return max(0.0, passed_s if same_boot else later.wall_s - self.wall_s)


@cache
def _boot() -> str:
    """Return the id of this start of the machine; empty where there is none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


class RunJournal:
    """The journal of one run, for the event loop of its orchestrator."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.get, self.records, self.put = journal.get, journal.records, journal.put
        self._written = self._synced = 0
        self._waits = False  # the latest step is not written yet; it is written again
        self._syncing: asyncio.Task[None] | None = None

    def write(self, step: Step) -> None:
        """Write a step with the records that belong to it, unless no decision depends on it.

        Raises `OSError` if the disk is full or fails: nothing has changed then.
        """
        if isinstance(step.event, UNRECORDED):
            return
        self.put(CLOCK, msgspec.json.encode(ClockReading.now()))
        self._waits = True
        self._write(step)
        self._waits = False

    def flush(self) -> None:
        """Write records that belong to no step.

        Raises `OSError` while a step waits for space: its records would be written without it.
        """
        if self._waits:
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(self.journal.path))
        self._write()

    def _write(self, *steps: Step) -> None:
        # SQLite would go on in the files that have no name any more.
        if not self.journal.path.exists():
            raise self._deletion()
        self.journal.write(*steps)
        self._written += 1

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of an error: one of the disk, if the folder was deleted, is that."""
        if isinstance(error, OSError) and not self.journal.path.exists():
            return self._deletion()
        return error

    def _deletion(self) -> DataError:
        return DataError(
            f"the folder of the run was deleted while the run went on: {self.journal.path.parent}; "
            "its trace and its model are written to a new folder of that name, from which "
            "melisma run --start goes on"
        )

    def downtime_s(self) -> float:
        """Return the seconds since the latest step of an earlier process."""
        content = self.get(CLOCK)
        if content is None:
            return 0.0
        return msgspec.json.decode(content, type=ClockReading).seconds_to(ClockReading.now())

    async def sync(self) -> None:
        """Return when all that was written before is on disk."""
        target = self._written
        while self._synced < target:
            if self._syncing is None:
                self._syncing = asyncio.get_running_loop().create_task(self._sync())
            await asyncio.shield(self._syncing)

    async def _sync(self) -> None:
        """Sync once for all that wait."""
        target = self._written
        try:
            await asyncio.to_thread(self.journal.sync)
            self._synced = target
        except OSError as error:
            raise self.explain(error) from error
        finally:
            self._syncing = None

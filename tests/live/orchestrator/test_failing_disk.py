"""The disk of the orchestrator is full or fails: nothing is acknowledged and then forgotten."""

import asyncio
from collections.abc import Callable, Sequence
from errno import EIO, ENOSPC
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from melisma.cycle import commands, events
from melisma.errors import BusyError, DataError
from melisma.runs.journal import Journal
from melisma.runs.journal_database import Database, Statement
from melisma.runs.recovery import RecoveredRun
from tests.live.orchestrator.served_run import (
    GOOD_UPDATE,
    ServedRun,
    header,
    join,
    start_polls,
    take_assignments,
    wait_until,
)


class FullDisk:
    """Lets a database write as often as there is room."""

    def __init__(self, database: Database) -> None:
        self.room = 0
        self._write = database.write
        database.write = self.write  # type: ignore[method-assign]

    def write(self, statements: Sequence[Statement]) -> None:
        if not self.room:
            raise OSError(ENOSPC, "no space left on device")
        self.room -= 1
        self._write(statements)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melisma.live.orchestrator.orchestrator.PAUSE_S", 0.001)


def fill_disk(run: ServedRun) -> FullDisk:
    return FullDisk(run.store.journal.journal._database)


def recover(run: ServedRun, folder: Path) -> tuple[RecoveredRun, dict[str, bytes]]:
    """Return what another process would find if this one were killed now."""
    journal = Journal.open(Path(copytree(run.store.folder, folder)))
    try:
        return RecoveredRun.from_journal(journal), dict(journal.records("update/"))
    finally:
        journal.close()


async def test_an_update_after_the_disk_failed_is_not_acknowledged(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    run.orchestrator.fail(OSError(EIO, "input/output error"))
    with pytest.raises(BusyError):
        await remote.upload_update(0, header(), GOOD_UPDATE)


async def test_learners_of_a_run_whose_disk_failed_are_not_told_to_leave(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    polls = await start_polls(run, remote, (0, None))
    run.orchestrator.fail(OSError(EIO, "input/output error"))
    with pytest.raises(BusyError):
        await asyncio.wait_for(polls[0], 5)
    with pytest.raises(BusyError):
        await remote.poll(1, None)


async def test_a_learner_that_registers_writes_no_records_of_a_step_that_waits(
    served: Any,
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    disk = fill_disk(run)
    run.store.journal.put("of the step", b"content")
    run.orchestrator.handle(events.TimeReached(at_s=0.0))
    disk.room = 1
    with pytest.raises(BusyError):
        await remote.register(0, "another-session-of-a")
    assert run.store.journal.get("of the step") is None
    await wait_until(lambda: run.orchestrator._unwritten is None)
    assert run.store.journal.get("of the step") == b"content"
    disk.room = 100
    await remote.register(0, "another-session-of-a")


async def test_a_disk_that_stays_full_ends_the_run_without_a_traceback_for_each_update(
    served: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    notes = list[str]()
    run.store.on_note = notes.append

    def fill(*_: Any) -> None:
        raise OSError(ENOSPC, "no space left on device")

    monkeypatch.setattr("melisma.live.orchestrator.full_disk.PATIENCE_S", 0.05)
    monkeypatch.setattr("melisma.live.orchestrator.full_disk.PAUSE_S", 0.001)
    monkeypatch.setattr(run.store._updates, "write", fill)
    uploads = [remote.upload_update(learner, header(), GOOD_UPDATE) for learner in (0, 1)]
    replies = await asyncio.gather(*uploads, return_exceptions=True)
    assert [type(reply) for reply in replies] == [BusyError, BusyError]
    assert isinstance(run.orchestrator.finished.exception(), OSError)
    assert len(notes) == 1
    assert not caplog.records


async def test_an_update_for_a_folder_that_was_deleted_ends_the_run_with_that_error(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    rmtree(run.store.folder)
    with pytest.raises(BusyError):
        await remote.upload_update(0, header(), GOOD_UPDATE)
    error = run.orchestrator.finished.exception()
    assert isinstance(error, DataError)
    assert "was deleted while the run went on" in str(error)
    assert not caplog.records


async def test_updates_stay_recorded_until_their_average_is(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    aggregate, disks = run.store.aggregate, list[FullDisk]()

    def fill_and_aggregate(*args: Any) -> Any:
        result = aggregate(*args)
        disks.append(fill_disk(run))
        run.orchestrator.handle(events.TimeReached(at_s=0.0))
        return result

    async def call(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    await remote.upload_update(0, header(), GOOD_UPDATE)
    monkeypatch.setattr(run.store, "aggregate", fill_and_aggregate)
    monkeypatch.setattr(asyncio, "to_thread", call)
    last = asyncio.ensure_future(remote.upload_update(1, header(), GOOD_UPDATE))
    await wait_until(lambda: bool(disks))
    disks[0].room = 1
    # The step that waited is written, and the one of the average waits.
    await wait_until(
        lambda: isinstance(getattr(run.orchestrator._unwritten, "event", None), events.Aggregated)
    )
    recovered, updates = recover(run, tmp_path / "killed")
    assert isinstance(recovered.job, commands.Aggregate)
    assert sorted(updates) == ["update/0-1-1", "update/1-1-1"]
    disks[0].room = 1000
    monkeypatch.undo()
    await last

"""The journal on a disk with faults: what was synced is kept, and damage is noticed."""

from collections.abc import Iterator

import apsw
import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.errors import DataError
from melisma.runs.journal import Journal
from melisma.runs.trace import Step, encode_step
from melisma.simulation.fault_search import find_violation
from melisma.simulation.faults import parse_faults
from melisma.simulation.journaling.disk_storage import DiskStorage
from tests.lanes import cases
from tests.simulation.scenarios import make_scenario

STORAGES: list[DiskStorage] = []


def step(number: int) -> Step:
    size = 40 * (number % 7)
    event = events.LearnersLeft(at_s=float(number), learners=np.arange(3), reason="x" * size)
    return Step(event, [commands.Wake(reason="again", at_s=number + 1.0)])


def encoded(journal: Journal) -> list[bytes]:
    return [encode_step(each) for each in journal.steps()]


@pytest.fixture(autouse=True)
def _release_disks() -> Iterator[None]:
    yield
    for storage in STORAGES:
        storage.close()
    STORAGES.clear()


def make_storage(faults: str = "", seed: int = 0, now_s: float = 1.0) -> DiskStorage:
    STORAGES.append(DiskStorage(parse_faults(faults, 3), lambda: now_s, seed))
    return STORAGES[-1]


def test_a_killed_process_loses_nothing() -> None:
    storage = make_storage()
    journal = storage.create()
    for number in range(1, 60):
        journal.put("last", str(number).encode())
        journal.write(step(number))
        if number % 9 == 0:
            storage.stop(power=False)
            journal = storage.open()
            assert (journal.last, journal.get("last")) == (number, str(number).encode())


def test_after_power_cuts_the_journal_has_its_first_steps_and_all_that_were_synced() -> None:
    lost = 0
    for seed in range(cases(160)):
        rng, storage = np.random.default_rng(seed), make_storage(seed=seed)
        journal, synced, written = storage.create(), 0, 0
        journal.sync()
        for _ in range(3):
            for _ in range(int(rng.integers(1, 40))):
                written = journal.last + 1
                journal.put(f"update/{written % 5}", str(written).encode())
                journal.write(step(written))
                if rng.random() < 0.2:
                    journal.sync()
                    synced = written
            storage.stop(power=True)
            journal = storage.open()
            assert synced <= journal.last <= written
            lost += written - journal.last
            numbers = range(1, journal.last + 1)
            assert encoded(journal) == [encode_step(step(number)) for number in numbers]
            expected = {f"update/{number % 5}": str(number).encode() for number in numbers}
            assert dict(journal.records("update/")) == expected
    assert lost


@pytest.mark.parametrize("fault", ["rot journal at 1", "misdirect write {nth}"])
def test_damage_is_noticed_or_changes_nothing_that_is_read(fault: str) -> None:
    noticed = 0
    for seed in range(cases(320)):
        rng = np.random.default_rng(seed)
        storage = make_storage(fault.format(nth=rng.integers(20, 120)), seed)
        count = 0
        try:
            journal = storage.create()
            for count in range(1, 40):
                journal.put(f"update/{count % 5}", str(count).encode())
                journal.write(step(count))
                journal.sync()
            storage.stop(power=True)
            journal = storage.open()
            assert encoded(journal) == [encode_step(step(number)) for number in range(1, count + 1)]
            assert len(journal.records("update/")) == 5
        except DataError:
            noticed += 1
    assert noticed


def test_a_full_disk_changes_nothing_and_the_write_can_be_repeated() -> None:
    now_s = 0.0
    storage = DiskStorage(parse_faults("fill disk at 1 for 1", 3), lambda: now_s, 0)
    STORAGES.append(storage)
    journal = storage.create()
    journal.write(step(1))
    now_s = 1.0
    with pytest.raises(OSError, match="No space left"):
        journal.write(step(2))
    assert encoded(journal) == [encode_step(step(1))]
    now_s = 2.0
    journal.write(step(2))
    assert encoded(journal) == [encode_step(step(1)), encode_step(step(2))]


def test_what_is_synced_after_a_sync_that_failed_survives_a_power_cut() -> None:
    for seed in range(cases(40)):
        now_s = 0.0
        storage = DiskStorage(parse_faults("fail sync at 1 for 1", 3), lambda: now_s, seed)  # noqa: B023
        STORAGES.append(storage)
        journal = storage.create()
        journal.sync()
        journal.write(step(1))
        now_s = 1.0
        for at_s in (1.0, 2.0):
            now_s = at_s
            with pytest.raises(OSError, match="input/output error"):
                journal.sync()
        storage.stop(power=False)
        journal = storage.open()
        journal.sync()
        storage.stop(power=True)
        assert encoded(storage.open()) == [encode_step(step(1))]


def test_an_update_is_whole_or_missing_after_a_power_cut() -> None:
    storage = make_storage("rot update 2 from 1")
    storage.create()
    for name in ("update/1-1-1", "update/1-2-1"):
        storage.write_update(1, name, name.encode())
    storage.stop(power=True)
    assert storage.updates() == ["update/1-1-1", "update/1-2-1"]
    assert storage.read_update("update/1-1-1") == b"update/1-1-1"
    assert storage.read_update("update/1-2-1") != b"update/1-2-1"
    storage.delete_update("update/1-1-1")
    assert storage.read_update("update/1-1-1") == b""


def test_a_run_leaves_no_disk_behind() -> None:
    assert not find_violation(make_scenario("cut power at 5 for 2; fill disk at 9 for 2"))
    assert not [name for name in apsw.vfs_names() if name.startswith("melisma")]

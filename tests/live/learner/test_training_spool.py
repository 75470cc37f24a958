"""The spool of a learner: written as a whole or not at all, and never too large or too often."""

import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from melisma.cycle.learner import CostHistory
from melisma.live.learner import training_spool
from melisma.live.learner.saved_training import SavedTraining, SpoolOwner, encode_training
from melisma.live.learner.training_spool import TrainingSpool
from tests.live.learner.test_saved_training import OWNER, saved_training
from tests.live.orchestrator.served_run import TASK

COSTS = CostHistory.from_benchmark(train_s=0.5, ship_s=0.1, down_s=0.2, up_s=0.3, rest_s=0.0)
OTHER = SpoolOwner.of("r2", 3, TASK)


def spool(folder: Path, owner: SpoolOwner = OWNER) -> TrainingSpool:
    return TrainingSpool(str(folder), owner)


def write(folder: Path, *, cycle: int = 2, attempt: int = 5, owner: SpoolOwner = OWNER) -> None:
    """Save a training and costs as a process before would."""
    former = spool(folder, owner)
    former.save(10, 0.0, lambda: saved_training(owner, cycle, attempt))
    former.save_costs(COSTS)
    assert former.flush()


def test_a_successor_finds_the_training_and_the_costs(tmp_path: Path) -> None:
    write(tmp_path / "spool")
    successor = spool(tmp_path / "spool")
    training = successor.take((2, 5))
    assert training is not None
    assert encode_training(training) == encode_training(saved_training())
    assert successor.take((2, 5)) is None
    assert successor.costs is not None
    assert successor.costs.costs().tolist() == COSTS.costs().tolist()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool").iterdir()}
    assert [*modes.values()] == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700


def test_without_a_folder_nothing_is_saved() -> None:
    spool = TrainingSpool(None, OWNER)
    spool.begin(0)
    assert not spool.is_due(10**6)
    spool.save_costs(COSTS)
    spool.delete()
    spool.clear()
    assert spool.take((2, 5)) is None
    assert spool.costs is None


@pytest.mark.parametrize(("key", "is_kept"), [((1, 9), True), ((2, 6), False), ((3, 1), False)])
def test_a_training_older_than_an_assignment_is_deleted_and_a_later_one_waits(
    tmp_path: Path, key: tuple[int, int], is_kept: bool
) -> None:
    write(tmp_path)
    successor = spool(tmp_path)
    assert successor.take(key) is None
    assert successor.flush()
    assert (successor.take((2, 5)) is not None) == is_kept == (tmp_path / "training").exists()


@pytest.mark.parametrize(
    ("withdrawn", "is_kept"), [((2, 5), False), ((2, 7), False), ((2, 4), True), ((1, 9), True)]
)
def test_a_withdrawn_training_is_forgotten(
    tmp_path: Path, withdrawn: tuple[int, int], is_kept: bool
) -> None:
    write(tmp_path)
    successor = spool(tmp_path)
    successor.withdraw(*withdrawn)
    assert successor.flush()
    assert (successor.take((2, 5)) is not None) == is_kept == (tmp_path / "training").exists()


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "folder", "unknown", "other run"])
def test_files_that_cannot_be_used_are_ignored_with_one_line_each(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, owner=OTHER if damage == "other run" else OWNER)
    for name in ("training", "costs"):
        path = tmp_path / name
        content = path.read_bytes()
        if damage == "folder":
            path.unlink()
            path.mkdir()
        elif damage != "other run":
            path.write_bytes(
                {
                    "torn": content[:-1],
                    "flipped": bytes([*content[:50], content[50] ^ 1, *content[51:]]),
                    "empty": b"",
                    "unknown": b"\x00" * 99,
                }[damage]
            )
    successor = spool(tmp_path)
    assert successor.take((2, 5)) is None
    assert successor.costs is None
    lines = capsys.readouterr().err.splitlines()
    ignored = [line for line in lines if line.startswith("ignored")]
    assert len(ignored) == 2
    assert len(lines) == (4 if damage == "folder" else 2)  # a folder cannot be deleted either
    if damage != "folder":
        assert [*tmp_path.iterdir()] == []


def test_a_process_that_is_killed_while_it_writes_leaves_one_readable_training(
    tmp_path: Path,
) -> None:
    """Kill processes that write without pause; leftovers are deleted by the next."""
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.live.learner.test_training_spool import *\n"
        "own = spool(Path(sys.argv[1]))\n"
        "big = saved_training(size=300_000)\n"
        "for number in range(10**9):\n"
        "    own.save(10, 0.0, lambda: big); own.flush()\n"
        "    if number == 1: print('writing', flush=True)\n"
    )
    size = len(encode_training(saved_training(size=300_000)))
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        # While a file is replaced there are two.
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * size
        successor = spool(tmp_path)
        assert successor.take((2, 5)) is not None
        assert [path.name for path in tmp_path.iterdir()] == ["training"]


def test_saves_are_seconds_apart_and_take_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "thread_time", lambda: now)
    own = spool(tmp_path)
    own.begin(0)
    now += 4.9
    assert not own.is_due(10)
    now += 0.2
    assert own.is_due(10)
    assert not own.is_due(0)  # nothing was trained since
    began, now = now, now + 0.1  # copying took a tenth of a second
    own.save(10, began, saved_training)
    assert own.flush()
    now += 9.8
    assert not own.is_due(20)
    now += 0.4
    assert own.is_due(20)
    monkeypatch.setattr(training_spool, "MAX_BYTES_PER_S", 100.0)
    own.save(20, now, saved_training)
    assert own.flush()
    now += 10.0
    assert not own.is_due(30)
    now += 90.0
    assert own.is_due(30)


def test_only_one_training_is_written_at_a_time(tmp_path: Path) -> None:
    own, may_write = spool(tmp_path), threading.Event()
    own.begin(0)
    own._saved_at = -100.0

    def build() -> SavedTraining:
        assert may_write.wait(20.0)
        return saved_training()

    own.save(10, 0.0, build)
    own._saved_at = -100.0
    assert not own.is_due(20)
    may_write.set()
    assert own.flush()
    assert not own._writing


def test_a_training_that_cannot_be_written_is_reported_once_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = spool(tmp_path / "spool")
    (tmp_path / "spool").rmdir()
    (tmp_path / "spool").write_bytes(b"")
    own.begin(0)
    own.save(10, 0.0, saved_training)
    assert own.flush()
    assert capsys.readouterr().err.count("is not saved any more") == 1
    own._saved_at = -1e6
    assert not own.is_due(20)
    own.save_costs(COSTS)
    assert own.flush()
    assert "measured costs: not saved" in capsys.readouterr().err


def test_without_a_place_for_its_folder_nothing_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    own = spool(tmp_path / "file" / "spool")
    own.save_costs(COSTS)
    assert own.flush()
    assert not own.is_due(10)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainings of this device are not saved: ")


def test_nothing_is_left_when_the_run_has_ended(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "mine").write_bytes(b"")
    spool(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

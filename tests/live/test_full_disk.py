"""Runs on a disk that fills up: one line says what was kept. Only root can mount a small disk."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from melisma.cycle import events
from melisma.errors import DataError
from melisma.live import preparation, training
from melisma.runs.report import Report
from melisma.runs.trace import Step, read_trace
from melisma.simulation import SimulationOptions, simulation
from tests.simulation.scenarios import make_fleet, make_task

TINY = {
    "model": "tests.live.tiny_task:Linear",
    "data": "tests.live.tiny_task:blobs",
    "sizes": {},
    "cycles": 3,
    "deadline_s": 3.0,
    "shard_samples": 50,
}
DISK_BYTES = 2_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this root may not mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Filler:
    """Fills a disk when the first cycle has been evaluated."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "filler"

    def __call__(self, step: Step) -> None:
        if isinstance(step.event, events.Evaluated) and not self._file.exists():
            with pytest.raises(OSError, match="No space left"), self._file.open("wb") as file:
                file.write(bytes(2 * DISK_BYTES))


@pytest.mark.parametrize("is_live", [True, False])
def test_a_full_disk_ends_a_run_and_says_what_was_kept(
    small_disk: Path, is_live: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder, task, fleet = small_disk / "run", make_task(**TINY), make_fleet()
    fill, trained = Filler(small_disk), SimulationOptions(work="train")

    def run() -> None:
        if is_live:
            training.run(preparation.prepare(task, fleet, folder=folder), watch=fill)
        else:
            simulation.run(simulation.prepare(task, fleet, trained), folder, fill)

    with pytest.raises(DataError) as caught:
        run()
    # A live run writes its model after each cycle, and frees its shards at the end.
    kept = "model.safetensors, trace.jsonl" if is_live else "trace.jsonl"
    again = f"use melisma resume {folder}" if is_live else "run again"
    assert str(caught.value) == (
        f"no space is left on the disk of {folder}; kept in {folder}: {kept}; "
        f"free some space and {again}"
    )
    assert len(Report.from_trace(read_trace(folder / "trace.jsonl")).ended_cycles) >= 1
    assert "Exception in callback" not in caplog.text


def test_a_disk_that_is_full_before_a_run_begins_keeps_nothing_of_it(small_disk: Path) -> None:
    folder = small_disk / "run"
    prepared = preparation.prepare(make_task(**TINY), make_fleet(), folder=folder)
    size = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize
    # There is room for some of the shards only.
    (small_disk / "filler").write_bytes(bytes(size - 8192))
    with pytest.raises(DataError, match="nothing was kept; free some space and run again"):
        training.run(prepared)
    assert not folder.exists()

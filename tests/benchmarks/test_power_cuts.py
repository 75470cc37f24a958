"""The states that a power cut leaves: all that was synced, and any part of the rest."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.live.power_cuts import crash_states
from benchmarks.live.power_cuts.crash_states import BLOCK_BYTES, RecordedDisk
from benchmarks.live.power_cuts.recorder import Recorder, find_compiler

pytestmark = pytest.mark.skipif(
    find_compiler() is None, reason="no C compiler for the recorder of changes"
)
BEGIN = """
import os, shutil, sqlite3, sys
from pathlib import Path
def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
"""


class Machine:
    """A folder whose changes are recorded, and programs that change it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        self._recorder = Recorder(folder / "recorder")
        self._recorder.compile()

    def run(self, code: str) -> RecordedDisk:
        """Run a program in the folder after a start of the machine; return its disk."""
        self._recorder.restart()
        disk = RecordedDisk(self.path)
        subprocess.run(
            [sys.executable, "-c", BEGIN + code],
            cwd=self.path,
            env={**os.environ, **self._recorder.variables(self.path)},
            check=True,
        )
        disk.apply(self._recorder.changes())
        return disk

    @property
    def names(self) -> list[str]:
        """The paths of all files and folders."""
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def keep(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let power cuts keep this share of the changes that were not synced."""
    monkeypatch.setattr(crash_states, "KEPT_SHARES", (share,))


CHANGES = """
Path("a/b").mkdir(parents=True)
Path("a/b/first").write_bytes(b"x" * 10_000)
with open("a/second", "wb") as file:
    file.write(b"y" * 5000)
    file.seek(100)
    file.write(b"z")
    file.truncate(3000)
with open("a/second", "ab") as file:
    file.write(b"end")
os.replace("a/second", "a/b/moved")
os.link("a/b/moved", "a/linked")
Path("a/gone").write_text("gone")
Path("a/gone").unlink()
os.mkdir("a/folder")
shutil.rmtree("a/folder")
database = sqlite3.connect("a/table.db", isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
database.execute("CREATE TABLE numbers (number)")
database.executemany("INSERT INTO numbers VALUES (?)", ((n,) for n in range(2000)))
os._exit(0)
"""


def test_every_change_is_recorded(machine: Machine) -> None:
    recorded = machine.run(CHANGES).files()
    assert len(recorded) == 5
    assert recorded == RecordedDisk(machine.path).files()


def test_nothing_that_was_not_synced_need_survive(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 0.0)
    machine.run(CHANGES).cut_power(np.random.default_rng(0))
    assert machine.names == []


def test_content_that_was_synced_needs_the_names_of_its_file_and_folders(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 0.0)
    code = """
os.mkdir("a"); os.mkdir("b")
for folder in "ab":
    Path(folder, "file").write_bytes(b"whole")
    Path(folder, "late").write_bytes(b"lost")
    sync(f"{folder}/file")
    sync(folder)
sync(".")
os.mkdir("c")
Path("a/unsynced").write_text("lost")
Path("b/file").write_bytes(b"overwritten")
"""
    machine.run(code).cut_power(np.random.default_rng(0))
    assert machine.names == ["a", "a/file", "a/late", "b", "b/file", "b/late"]
    assert (machine.path / "a" / "file").read_bytes() == b"whole"
    assert (machine.path / "a" / "late").read_bytes() == b""
    assert (machine.path / "b" / "file").read_bytes() == b"whole"


def test_a_file_is_renamed_as_a_whole_or_not_at_all(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 0.5)
    (machine.path / "model").write_bytes(b"old")
    code = 'Path("part").write_bytes(b"new"); sync("part"); os.replace("part", "model")'
    disk, seen = machine.run(code), set()
    for seed in range(40):
        disk.cut_power(np.random.default_rng(seed))
        seen.add((tuple(machine.names), (machine.path / "model").read_bytes()))
    assert seen == {
        (("model",), b"old"),
        (("model", "part"), b"old"),
        (("model",), b"new"),
    }


def test_any_block_of_a_write_may_be_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 0.5)
    (machine.path / "file").write_bytes(b"old")
    disk = machine.run(f'Path("file").write_bytes(b"x" * {2 * BLOCK_BYTES})')
    seen = set()
    for seed in range(60):
        disk.cut_power(np.random.default_rng(seed))
        content = (machine.path / "file").read_bytes()
        seen.add((content[:1], content[BLOCK_BYTES : BLOCK_BYTES + 1]))
    assert {(b"x", b""), (b"x", b"x"), (b"\0", b"x"), (b"o", b""), (b"", b""), (b"o", b"x")} == seen

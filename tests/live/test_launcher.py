"""The launcher imports modules once, forks processes and reports how each ended."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from melisma.live.launcher import Child, Exit, Launch
from melisma.live.processes import LAUNCHER

# Writes the first line of its standard input and the imported module, then does what the line says.
MODULE = """
import os, sys, time

def main():
    line = sys.stdin.buffer.readline().decode().strip()
    print(line, "preloaded_module" in sys.modules, flush=True)
    if line == '"wait"':
        while os.read(0, 1024):
            pass
        return 7
    if line == '"ignore"':
        time.sleep(600)
    if line == '"fail"':
        sys.exit("a message")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "launched_module.py").write_text(MODULE)
    (tmp_path / "preloaded_module.py").touch()
    return tmp_path


@pytest.fixture
def launchers() -> "Iterator[list[subprocess.Popen[bytes]]]":
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(
    folder: Path, *words: str, preload: tuple[str, ...] = ("preloaded_module",)
) -> "subprocess.Popen[bytes]":
    """Start processes that read one word each, with logs named by their numbers."""
    process = subprocess.Popen(
        [sys.executable, "-m", LAUNCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    children = tuple(
        Child(msgspec.Raw(msgspec.json.encode(word)), str(folder / f"{number}.log"))
        for number, word in enumerate(words)
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(Launch("launched_module", preload, children)) + b"\n")
    process.stdin.flush()
    return process


def exits(output: bytes) -> dict[int, int]:
    decoded = [msgspec.json.decode(line, type=Exit) for line in output.splitlines()]
    return {each.number: each.code for each in decoded}


def test_each_process_has_its_own_settings_log_and_exit_code(
    folder: Path, launchers: "list[subprocess.Popen[bytes]]"
) -> None:
    process = start(folder, "end", "fail", "wait")
    launchers.append(process)
    assert process.stdout is not None
    early = process.stdout.readline() + process.stdout.readline()
    assert exits(early) == {0: 0, 1: 1}
    late, _ = process.communicate(timeout=60)
    assert exits(late) == {2: 7}
    assert process.returncode == 0
    logs = [(folder / f"{number}.log").read_text() for number in range(3)]
    assert logs == ['"end" True\n', '"fail" True\na message\n', '"wait" True\n']
    assert (folder / "0.log").stat().st_mode & 0o077 == 0


def test_a_process_that_does_not_end_is_killed(
    folder: Path, launchers: "list[subprocess.Popen[bytes]]"
) -> None:
    process = start(folder, "ignore")
    launchers.append(process)
    output, _ = process.communicate(timeout=60)
    assert exits(output) == {0: -9}


def test_processes_end_with_a_killed_launcher(
    folder: Path, launchers: "list[subprocess.Popen[bytes]]"
) -> None:
    process = start(folder, "wait", "end")
    launchers.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    children = psutil.Process(process.pid).children()
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert children
    assert not alive


def test_what_a_module_prints_does_not_mix_with_reports(
    folder: Path, launchers: "list[subprocess.Popen[bytes]]"
) -> None:
    (folder / "noisy_module.py").write_text("import os\nos.write(1, b'not a report\\n')\n")
    process = start(folder, "end", preload=("noisy_module",))
    launchers.append(process)
    output, _ = process.communicate(timeout=60)
    assert exits(output) == {0: 0}


def test_a_module_that_cannot_be_preloaded_is_left_to_the_processes(
    folder: Path, launchers: "list[subprocess.Popen[bytes]]"
) -> None:
    process = start(folder, "end", preload=("no_such_module",))
    launchers.append(process)
    output, _ = process.communicate(timeout=60)
    assert exits(output) == {0: 0}
    assert (folder / "0.log").read_text() == '"end" False\n'

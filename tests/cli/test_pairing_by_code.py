"""A device that pairs by the code that the orchestrator shows, typed in a real terminal."""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import MELISMA
from tests.cli.test_orchestrate import TASK
from tests.live import tiny_task

WAIT_S = 60.0
CODE = r"with the code (\d\d-[a-z]+-[a-z]+)"
OTHER_CODES = ("10-acorn-actor", "11-acorn-actor")


class Terminal:
    """A process of `melisma` whose input and output are a terminal of its own."""

    def __init__(self, folder: Path, home: str, *arguments: str) -> None:
        self.text, self._read_chars = "", 0
        self._changed = threading.Condition()
        self._handle, inner = pty.openpty()
        self.process = subprocess.Popen(
            [*MELISMA, *arguments],
            cwd=folder,
            env=os.environ | {"MELISMA_HOME": str(folder / home), "COLUMNS": "200"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # Reading fails when the process has closed its side.
        with contextlib.suppress(OSError):
            while part := os.read(self._handle, 4096):
                with self._changed:
                    self.text += part.decode(errors="replace")
                    self._changed.notify_all()

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Wait until the output after the previous match matches."""
        ends_at = time.monotonic() + WAIT_S
        with self._changed:
            while not (found := re.compile(pattern).search(self.text, self._read_chars)):
                assert time.monotonic() < ends_at, self.text
                self._changed.wait(0.2)
        self._read_chars = found.end()
        return found

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        os.write(self._handle, f"{line}\n".encode())

    def close(self) -> None:
        """End the process and the terminal."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        os.close(self._handle)


@contextlib.contextmanager
def terminal(folder: Path, home: str, *arguments: str) -> Iterator[Terminal]:
    """Run `melisma` in a terminal inside a ``with``."""
    opened = Terminal(folder, home, *arguments)
    try:
        yield opened
    finally:
        opened.close()


def choose(device: Terminal, name: str) -> None:
    """Choose the orchestrator of this name, if others are in the network."""
    found = device.wait_for(r"Orchestrator: |Code that the orchestrator shows: ")
    if found[0].startswith("Orchestrator"):
        line = re.search(rf"(\d+)  {re.escape(name)}  ", device.text)
        assert line is not None, device.text
        device.type(line[1])
        device.wait_for("Code that the orchestrator shows: ")


def test_a_device_joins_by_a_code_that_is_typed(tmp_path: Path) -> None:
    for package in ("spake2", "zeroconf"):
        pytest.importorskip(package)
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "task.toml").write_text(TASK.format(cycles=1), encoding="utf-8")
    name = f"home-{os.getpid()}"
    settings = ("--learners", "1", "--host", "127.0.0.1", "--port", "0", "--name", name)
    with terminal(tmp_path, "a", "orchestrate", "task.toml", "--out", "run", *settings) as owner:
        shown = owner.wait_for(CODE)[1]
        home = os.environ | {"MELISMA_HOME": str(tmp_path / "a")}
        renewed = subprocess.run([*MELISMA, "code"], env=home, capture_output=True, check=True)
        code = owner.wait_for(CODE)[1]
        assert renewed.stdout.decode().strip() == code != shown
        with terminal(tmp_path, "b", "join", "--name", "pi", "--trust-code") as device:
            choose(device, name)
            device.type("maple syrup")
            device.wait_for("is not a pairing code: type it as in 42-maple-otter")
            device.wait_for("Code that the orchestrator shows: ")
            device.type(next(other for other in OTHER_CODES if other != code))
            device.wait_for("the code is wrong: type the one that the orchestrator shows")
            device.wait_for("Code that the orchestrator shows: ")
            device.type(code.replace("-", " ").upper())
            device.wait_for("known to the orchestrator as pi")
            assert owner.wait_for(CODE)[1] != code
            owner.wait_for("pi: registered from 127.0.0.1")
            device.wait_for("the run has ended")
            assert device.process.wait(WAIT_S) == 0, device.text
        assert owner.process.wait(WAIT_S) == 0, owner.text
    assert (tmp_path / "run" / "model.safetensors").is_file()

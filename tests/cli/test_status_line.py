"""The status line in a terminal, and without one."""

import os
import pty
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from melisma.cli import status_line as module
from melisma.cli.status_line import ERASE, status_line


@contextmanager
def standard_error_in_terminal() -> Iterator[int]:
    """Yield the other end of a terminal that is standard error."""
    here, there = pty.openpty()
    with os.fdopen(there, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield here
    os.close(here)


def read_until(terminal: int, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        shown += os.read(terminal, 1000)
    return shown


def test_the_line_is_updated_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    handler, calls = signal.getsignal(signal.SIGALRM), iter(range(100_000))
    with standard_error_in_terminal() as terminal:
        with status_line(lambda: f"step {next(calls)}.") as erase:
            assert signal.getsignal(signal.SIGALRM) != handler
            assert f"{ERASE}step 1.".encode() in read_until(terminal, b"step 2.")
            erase()
        read_until(terminal, ERASE.encode())
    assert signal.getsignal(signal.SIGALRM) == handler
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0


def test_without_a_terminal_no_timer_runs(capfd: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    with status_line(lambda: "never shown") as erase:
        assert signal.getsignal(signal.SIGALRM) == handler
        erase()
    assert capfd.readouterr().err == ""

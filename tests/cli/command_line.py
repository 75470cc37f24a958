"""Runs the command line: in this process, or in a process of its own where that is the point."""

import json
import signal
import subprocess
import sys
import warnings
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from melisma import cli

MELISMA = (sys.executable, "-c", "from melisma.cli import main; main()")


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


def melisma(*arguments: str | Path) -> Result:
    """Run `melisma` in this process, and restore the settings of the process that it changes."""
    stdout, stderr = _stream(), _stream()
    on_terminate = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["melisma", *map(str, arguments)])
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        patch.setattr(sys, "path", sys.path.copy())
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as end:
            cli.main()
    signal.signal(signal.SIGTERM, on_terminate)
    assert isinstance(end.value.code, int)
    return Result(end.value.code, _text(stdout), _text(stderr))


def melisma_process(*arguments: str | Path, folder: Path | None = None) -> Result:
    """Run `melisma` in a process of its own, in `folder`."""
    done = subprocess.run(
        [*MELISMA, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def parse_json(text: str) -> dict[str, Any]:
    """Parse one JSON object; NaN and Infinity, which are not JSON, fail the test."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def _stream() -> TextIOWrapper:
    return TextIOWrapper(BytesIO(), encoding="utf-8", newline="", write_through=True)


def _text(stream: TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, BytesIO)
    return buffer.getvalue().decode("utf-8")

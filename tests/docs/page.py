"""Runs the examples of one Markdown page as printed.

A ```python or ```toml block that begins with a comment naming a file (`# worker.py`) is written
to the page's directory; other python blocks run in one namespace a page. In ```console
blocks each `$ command` runs and must print what follows it, where `...` stands for
anything. `$ command &` stays until the end of the page: it is ready when it has printed
the lines that follow it or, with none, when it listens on a port.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import psutil
import pytest

BLOCK = re.compile(r"^```(python|toml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
READY_S = 20.0


def run_page(text: str, directory: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__page__"}
    with ExitStack() as started:
        for language, body in BLOCK.findall(text):
            if language == "console":
                run_commands(body, directory, started)
            elif named := FILE_NAME.match(body):
                file = directory / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(body, encoding="utf-8")
            elif language == "python":
                exec(body, namespace)


def run_commands(body: str, directory: Path, started: ExitStack) -> None:
    for command, expected in COMMAND.findall(body):
        if command.endswith("&"):
            started.enter_context(background(command.rstrip("& "), expected, directory))
        else:
            run(command, expected, directory)


def run(command: str, expected: str, directory: Path) -> None:
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert matches(expected, result.stdout), f"$ {command}\n{result.stdout}"


@contextmanager
def background(command: str, expected: str, directory: Path) -> Iterator[None]:
    # exec: the process to watch and to end is the command, not a shell around it.
    arguments = ["bash", "-c", f"exec {command}"]
    with (
        NamedTemporaryFile() as output,
        subprocess.Popen(
            arguments, cwd=directory, env=environment(), stdout=output, stderr=output
        ) as process,
    ):
        try:
            wait_until_ready(process, expected, Path(output.name))
            yield
        finally:
            process.terminate()


def wait_until_ready(process: subprocess.Popen[bytes], expected: str, output: Path) -> None:
    give_up = time.monotonic() + READY_S
    ended = False
    while not ended and time.monotonic() < give_up:
        if matches(expected, output.read_text()) if expected else listens(process.pid):
            return
        try:
            process.wait(0.02)
            ended = True
        except subprocess.TimeoutExpired:
            continue
    pytest.fail(f"{'ended at once' if ended else 'never ready'}: {process.args!r}")


def listens(pid: int) -> bool:
    try:
        root = psutil.Process(pid)
        return any(
            connection.status == psutil.CONN_LISTEN
            for process in [root, *root.children(recursive=True)]
            for connection in process.net_connections("tcp")
        )
    except psutil.Error:  # it ended while it was looked at
        return False


def matches(expected: str, printed: str) -> bool:
    # Columns of a table are filled up with spaces that nobody sees.
    seen = re.sub(r" +$", "", printed.rstrip(), flags=re.MULTILINE)
    pattern = re.escape(expected.rstrip()).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, seen, re.DOTALL) is not None


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}

import json
import subprocess
import sys
from typing import Any

import psutil
import pytest

from melisma import axon
from melisma.cli.run import worker_process
from melisma.errors import MelismaError


def melisma_run(*arguments: str) -> str:
    command = [sys.executable, "-c", "from melisma.cli import main; main()", "run", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_run_says_who_served_what_and_who_answered() -> None:
    worker, call, answer = melisma_run().splitlines()
    assert worker.startswith("worker   process ")
    assert ".simple_hello('John')" in call
    assert answer.startswith("answer   Hello, John, from process ")


def test_the_answer_comes_from_the_worker_process() -> None:
    report: dict[str, Any] = json.loads(melisma_run("--json", "--name", "Ada"))
    assert report["answer"] == f"Hello, Ada, from process {report['worker_pid']}"
    assert report["address"].startswith("http://127.0.0.1:")
    assert report["seconds"] > 0


def test_the_worker_process_ends_with_the_block() -> None:
    with worker_process() as (pid, address):
        assert axon.connect(address).simple_hello("Ada").endswith(f"from process {pid}")
    assert not psutil.pid_exists(pid)


def test_the_worker_process_ends_when_its_parent_is_killed() -> None:
    code = (
        "from melisma.cli.run import worker_process\n"
        "with worker_process() as (pid, _):\n"
        "    print(pid, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(timeout=10)


def test_a_worker_that_cannot_start_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MelismaError, match="ended before it served"), worker_process():
        pass

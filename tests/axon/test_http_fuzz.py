"""A worker under a fuzzer of raw HTTP: no crash, no hang, no unexplained error, little memory."""

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from melisma import axon
from tests.axon.http_fuzz import attack
from tests.lanes import cases

WORKER = """
import logging, sys
import torch
from melisma import axon
from tests.axon.served_functions import a_worker
logging.basicConfig(level="WARNING")
worker = a_worker(limits=axon.Limits(head_s=1.0, max_body_bytes=1 << 20))
async def coroutine(value):
    return value
worker.rpc()(coroutine)
with worker.start() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def running_worker(log: Path) -> Iterator[tuple[str, psutil.Process]]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)


@pytest.mark.parametrize("seed", range(cases(8)))
def test_a_worker_answers_honest_calls_under_and_after_an_attack(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = tmp_path / "log"
    unexplained = b""
    with running_worker(log) as (address, process), axon.connect(address) as remote:
        host, port = address.removeprefix("http://").split(":")
        assert remote.echo("before") == "before"
        before = process.memory_info().rss
        for number in range(200):
            answer = attack(rng, (host, int(port)))
            # A function that raised answers with a message, all other errors with their reason.
            if b"HTTP/1.1 500" in answer and b"application/x-axon" not in answer:
                unexplained += answer
            if number % 20 == 0:
                assert remote(deadline_s=20).echo(number) == number
        assert remote(deadline_s=20).echo("after") == "after"
        assert process.memory_info().rss - before < 200 << 20
        assert process.is_running()
    assert not unexplained
    assert "Traceback" not in log.read_text()

"""The memory of a worker grows by no more than the size of an array."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from melisma import axon

WORKER = """
import sys
from melisma import axon
worker = axon.Worker(port=0)
@worker.rpc()
def echo(array):
    return array
with worker.start() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def worker() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def peak_bytes(process: "subprocess.Popen[str]") -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_gigabytes_pass_through_a_worker_that_grows_by_no_more(
    worker: "subprocess.Popen[str]",
) -> None:
    assert worker.stdout is not None
    with axon.connect(worker.stdout.readline().strip()) as remote:
        remote.echo(np.zeros(1))
        before = peak_bytes(worker)
        array = np.zeros(2 << 30, np.uint8)
        array[:: 1 << 20] = 7
        echoed = remote.echo(array)
        assert echoed.nbytes == array.nbytes
        assert np.array_equal(echoed[:: 1 << 19], array[:: 1 << 19])
        assert peak_bytes(worker) - before < 1.05 * array.nbytes

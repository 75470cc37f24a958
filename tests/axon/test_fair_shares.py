"""One caller uses up its own share of calls and memory, not that of others; on real sockets."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from melisma import axon
from melisma.errors import BusyError, SettingError, StorageError, TooLargeError
from tests.axon.served_functions import RELEASED, RUNS, a_worker, wait_for_run
from tests.axon.server.calls.test_calls import connect, wait_until
from tests.axon.test_faults import body_of, error_of, request

SECRET = "sesame"


def token(name: str) -> str:
    return axon.issue_token(SECRET, name)


def head(size: int, name: str, caller: str, **headers: str) -> bytes:
    """Return the head of a request whose body is not sent yet."""
    lines = {
        "content-length": str(size),
        "authorization": f"Bearer {token(caller)}",
        **headers,
    }
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST /rpc/{name} HTTP/1.1\r\n{text}\r\n".encode()


def test_slow_bodies_of_one_caller_leave_room_for_others() -> None:
    worker = a_worker(limits=axon.Limits(max_calls=20, max_calls_per_caller=5), token=SECRET)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(worker.start())
        slow = [stack.enter_context(connect(address)) for _ in range(30)]
        for sock in slow:
            sock.sendall(head(100, "echo", "mallory"))
        wait_until(lambda: worker.metrics.active == 5)
        for sock in slow[5:]:
            answer = sock.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"mallory is at its limit of 5 concurrent calls" in answer
        honest = stack.enter_context(axon.connect(address, token=token("honest")))
        assert honest.echo("served") == "served"


def test_parallel_calls_of_one_caller_leave_room_for_others() -> None:
    limits = axon.Limits(max_calls=10, max_calls_per_caller=4)
    with (
        a_worker(limits=limits, token=SECRET).start() as address,
        axon.connect(address, token=token("mallory")) as mallory,
        axon.connect(address, token=token("honest")) as honest,
        axon.connect(address, token=SECRET) as owner,
    ):
        calls = [mallory.submit.blocked(f"mallory {number}") for number in range(4)]
        for number in range(4):
            wait_for_run(f"mallory {number}")
        for _ in range(50):
            with pytest.raises(BusyError, match="max_calls_per_caller"):
                mallory.echo("refused")
        assert honest.echo("served") == "served"
        calls += [owner.submit.blocked(f"owner {number}") for number in range(6)]
        for number in range(6):
            wait_for_run(f"owner {number}")
        RELEASED.set()
        for call in calls:
            call.result(10)
        assert mallory.echo("served again") == "served again"


def test_callers_without_a_token_are_told_apart_by_their_host() -> None:
    worker = a_worker(limits=axon.Limits(max_calls=10, max_calls_per_caller=2))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(worker.start())
        for _ in range(3):
            stack.enter_context(connect(address)).sendall(request(bytes(100), "echo")[:-100])
        wait_until(lambda: worker.metrics.active == 2)
        assert error_of(address, request(body_of(1), "echo"))[1] == "busy"
        port = int(address.rpartition(":")[2])
        other = socket.create_connection(("127.0.0.1", port), 10, ("127.0.0.2", 0))
        stack.enter_context(other).sendall(request(body_of(1), "echo"))
        assert other.recv(1000).startswith(b"HTTP/1.1 200")


def test_an_upload_waits_while_the_bodies_of_others_fill_the_memory() -> None:
    limits = axon.Limits(max_receiving_bytes=5_000_000)
    body = body_of(np.zeros(3_000_000, np.uint8))
    expect = {"expect": "100-continue"}
    with (
        a_worker(limits=limits, token=SECRET).start() as address,
        connect(address) as first,
        connect(address) as second,
        axon.connect(address, token=token("bob")) as bob,
    ):
        first.sendall(head(len(body), "echo", "alice", **expect))
        assert first.recv(1000).startswith(b"HTTP/1.1 100")
        second.sendall(head(len(body), "echo", "bob", **expect))
        second.settimeout(0.5)
        with pytest.raises(TimeoutError):
            second.recv(1000)
        assert bob.echo("a small call") == "a small call"
        first.sendall(body)
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        second.settimeout(10)
        assert second.recv(1000).startswith(b"HTTP/1.1 100")
        second.sendall(body)
        assert second.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_caller_that_leaves_while_its_upload_waits_frees_its_call() -> None:
    worker = a_worker(limits=axon.Limits(max_receiving_bytes=5_000_000, head_s=0.5), token=SECRET)
    with worker.start() as address, connect(address) as first:
        first.sendall(head(4_000_000, "echo", "alice"))
        wait_until(lambda: worker.metrics.active == 1)
        with connect(address) as second:
            second.sendall(head(4_000_000, "echo", "bob"))
            wait_until(lambda: worker.metrics.active == 2)
        wait_until(lambda: worker.metrics.active == 0)


@pytest.fixture
def sized() -> Iterator[str]:
    worker = axon.Worker(port=0)
    worker.rpc(max_body_bytes=10_000)(small)
    worker.rpc(max_body_bytes=2_000_000, executor="inline")(upload)
    with worker.start() as address:
        yield address


def small(value: object) -> None:
    RUNS["small"] += 1


def upload(value: object) -> None:
    RUNS["upload"] += 1


def test_each_function_states_the_size_of_its_requests(sized: str) -> None:
    with axon.connect(sized) as remote:
        remote.small(b"x" * 9000)
        remote.upload(np.zeros(1_900_000, np.uint8))
        with pytest.raises(TooLargeError, match="the limit of small is 10000"):
            remote.small(b"x" * 11_000)
        with pytest.raises(TooLargeError, match="the limit of upload is 2000000"):
            remote.upload(np.zeros(590_000_000, np.uint8))
    assert RUNS == {"small": 1, "upload": 1}


def test_a_body_that_is_too_large_is_refused_by_its_head(sized: str) -> None:
    head = b"POST /rpc/upload HTTP/1.1\r\ncontent-length: 590000000\r\n\r\n"
    assert error_of(sized, head)[:2] == (413, "too-large")


def test_a_function_that_allows_no_bytes_is_invalid() -> None:
    with pytest.raises(SettingError, match="max_body_bytes = 0"):
        axon.Worker().rpc(max_body_bytes=0)(small)


UPLOADS = """
import sys, threading
import numpy as np
from melisma import axon
count = int(sys.argv[1])
worker = axon.Worker(port=0, limits=axon.Limits(max_calls_per_caller=128))
arrived, released = threading.Semaphore(0), threading.Event()
@worker.rpc(spool=sys.argv[2] == "spool")
def upload(arrays):
    arrived.release()
    released.wait(250)  # All updates of a cycle are held until the last one arrived.
    return float(sum(array[-1] for array in arrays))
with worker.start() as address:
    print(address, flush=True)
    for _ in range(count):
        arrived.acquire()
    print(open("/proc/self/status").read().partition("RssAnon:")[2].split()[0], flush=True)
    released.set()
    sys.stdin.read()
"""


def anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def upload_together(count: int, upload_bytes: int, mode: str) -> int:
    """Upload to one worker in parallel; return the growth of its anonymous memory in bytes."""
    with subprocess.Popen(
        [sys.executable, "-c", UPLOADS, str(count), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        before = anonymous_bytes(process.pid)
        arrays = [np.ones(upload_bytes // 8, np.float32) for _ in range(2)]
        with axon.connect(address) as remote, ThreadPoolExecutor(count) as pool:
            sums = [pool.submit(remote.upload, arrays) for _ in range(count)]
            held = int(process.stdout.readline()) * 1024
            assert {each.result(60) for each in sums} == {2.0}
        assert process.stdin is not None
        process.stdin.close()
    return held - before


def test_uploads_that_are_spooled_take_little_memory() -> None:
    assert upload_together(20, 10_000_000, "memory") > 150_000_000
    assert upload_together(20, 10_000_000, "spool") < 50_000_000


@pytest.mark.slow
def test_a_hundred_learners_upload_forty_megabytes_at_once_in_little_memory() -> None:
    assert upload_together(100, 40_000_000, "spool") < 150_000_000


def test_a_spooled_array_is_writable_and_keeps_its_values() -> None:
    worker = axon.Worker(port=0)

    @worker.rpc(spool=True)
    def double(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for array in named.values():
            np.multiply(array, 2, out=array)
        return named

    rng = np.random.default_rng(1)
    arrays = {f"{size}": rng.random(size) for size in (0, 1, 7, 1000, 50_000, 33, 70_001)}
    with worker.start() as address, axon.connect(address) as remote:
        doubled = remote.double(arrays)
    assert all(np.array_equal(doubled[name], 2 * arrays[name]) for name in arrays)
    assert doubled["0"].shape == (0,)


def test_a_disk_without_space_refuses_a_spooled_upload(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "from melisma import axon\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "worker = axon.Worker(port=0)\n"
        "worker.rpc(spool=True)(len)\n"
        "with worker.start() as address:\n"
        "    print(address, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        with axon.connect(process.stdout.readline().strip()) as remote:
            with pytest.raises(StorageError, match="set TMPDIR"):
                remote.len(np.zeros(2_000_000, np.uint8))
            assert remote.len(np.zeros(900_000, np.uint8)) == 900_000
        assert process.stdin is not None
        process.stdin.close()
    assert not list(tmp_path.iterdir())

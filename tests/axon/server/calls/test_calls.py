"""Slots, memory and deadlines of calls, also with misbehaving callers."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from melisma import axon
from melisma.errors import DeadlineError, LostError, MalformedError
from tests.axon.served_functions import (
    CANCELLED,
    DEADLINES_S,
    RELEASED,
    RUNS,
    WAIT_S,
    Point,
    a_worker,
    wait_for_run,
)
from tests.axon.test_faults import body_of, request


@pytest.fixture
def worker() -> axon.Worker:
    return a_worker()


@pytest.fixture
def address(worker: axon.Worker) -> Iterator[str]:
    with worker.start() as address:
        yield address
        RELEASED.set()
        wait_until(lambda: worker.metrics.active == 0)


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 10)


def test_a_call_cancelled_before_it_starts_frees_its_slot(
    worker: axon.Worker, address: str
) -> None:
    delete = b"DELETE /calls/early HTTP/1.1\r\n\r\n"
    call = request(body_of(1, 2), "add", axon_call_id="early", axon_pattern="duplex")
    with connect(address) as sock:
        sock.sendall(call + delete)
        assert sock.recv(1000).startswith(b"HTTP/1.1 202")
    wait_until(lambda: worker.metrics.active == 0)


def test_a_generator_that_exits_does_not_end_its_worker(address: str) -> None:
    with axon.connect(address) as remote:
        with pytest.raises(Exception, match="SystemExit"):
            list(remote.count_and_leave())
        assert remote.echo(1) == 1


def test_a_caller_that_leaves_a_waiting_stream_ends_it(worker: axon.Worker, address: str) -> None:
    with connect(address) as sock:
        sock.sendall(request(body_of(), "count_blocked"))
        assert b"axon-stream" in sock.recv(1000)
        wait_for_run("count_blocked")
    RELEASED.set()
    assert CANCELLED.wait(WAIT_S)
    wait_until(lambda: worker.metrics.active == 0)


async def test_breaking_out_of_an_awaited_stream_closes_it(
    worker: axon.Worker, address: str
) -> None:
    with axon.connect(address) as remote:
        async for _ in remote.aio.count_until_closed():
            break
        assert await asyncio.to_thread(CANCELLED.wait, WAIT_S)
        await asyncio.to_thread(wait_until, lambda: worker.metrics.active == 0)


def test_a_stream_that_is_not_read_ends_with_its_deadline(
    worker: axon.Worker, address: str
) -> None:
    with connect(address) as sock:
        sock.sendall(request(body_of(), "count_largely", axon_deadline_s="0.5"))
        wait_until(lambda: "count_largely" in worker.metrics.prometheus_text())
        wait_until(lambda: worker.metrics.active == 0)


def test_a_stream_past_its_deadline_keeps_its_slot_while_its_thread_runs(
    worker: axon.Worker, address: str
) -> None:
    with axon.connect(address) as remote:
        for deadline_s in DEADLINES_S:
            with pytest.raises(DeadlineError):
                list(remote(deadline_s=deadline_s).count_blocked())
            if RUNS["count_blocked"]:
                break
        assert worker.metrics.active == 1
        RELEASED.set()
        wait_until(lambda: worker.metrics.active == 0)


def test_a_body_that_arrives_for_longer_than_calls_are_remembered_is_served() -> None:
    data = request(body_of(np.zeros(200_000, np.uint8)), axon_call_id="long", name="echo")
    with (
        a_worker(limits=axon.Limits(remember_s=0.5)).start() as address,
        connect(address) as sock,
        axon.connect(address) as other,
    ):
        for start in range(0, len(data), 20_000):
            sock.sendall(data[start : start + 20_000])
            other.echo("meanwhile")
            time.sleep(0.09)
        assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_a_large_body_that_arrives_slowly_is_too_slow() -> None:
    data = request(body_of(np.zeros(50_000_000, np.uint8)), "echo")
    limits = axon.Limits(head_s=0.3, min_bytes_per_s=1e5)
    with a_worker(limits=limits).start() as address, connect(address) as sock:
        sock.sendall(data[:1000])
        began = time.monotonic()
        sock.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() - began < WAIT_S:
            sock.sendall(b"\0")
            with contextlib.suppress(TimeoutError):
                answer = sock.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_retry_during_the_upload_begins_the_call_once(address: str) -> None:
    data = request(body_of("copy"), axon_call_id="copy-1")
    with connect(address) as slow, connect(address) as quick:
        slow.sendall(data[:-1])
        quick.sendall(data)
        assert quick.recv(1000).startswith(b"HTTP/1.1 200")
        slow.sendall(data[-1:])
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
    assert RUNS["copy"] == 1


def test_stale_connections_do_not_use_up_the_retries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    worker = a_worker()
    worker.port = port
    with contextlib.ExitStack() as stack:
        with worker.start() as address:
            remote = stack.enter_context(axon.connect(address))
            threads = [threading.Thread(target=remote.blocked, args=(f"t{i}",)) for i in range(6)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(RUNS) == 6)
            RELEASED.set()
            for thread in threads:
                thread.join()
        stack.enter_context(worker.start())
        assert remote.echo("again") == "again"


def test_a_deadline_covers_opening_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = f"http://127.0.0.1:{full.getsockname()[1]}"
        # The queue of the listener is filled, so that a further connection is not made.
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        began = time.monotonic()
        with axon.connect(address, deadline_s=0.5) as remote:
            with pytest.raises(DeadlineError):
                remote.echo(1)
            with pytest.raises(DeadlineError):
                remote.submit.echo(1).result(10)
        assert time.monotonic() - began < 5
        for sock in waiting:
            sock.close()


async def test_an_ended_call_does_not_stay_in_memory_until_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    async with a_worker().listening() as address:
        with axon.connect(address, deadline_s=1e6) as remote:
            for number in range(20):
                assert await remote.aio.add(number, 1) == number + 1
                with pytest.raises(TypeError):
                    await remote.aio.add(number)
            timers: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
            far = [t for t in timers if t.when() > loop.time() + 1e5 and not t.cancelled()]
            assert len(far) <= 1  # That of the caller's connection.


def test_a_deadline_is_limited(worker: axon.Worker) -> None:
    for limit_s in DEADLINES_S:
        worker.limits = axon.Limits(max_deadline_s=limit_s)
        with (
            worker.start() as address,
            axon.connect(address, deadline_s=1e6) as remote,
            pytest.raises(DeadlineError, match=rf"at most {limit_s:g} s \(max_deadline_s\)"),
        ):
            remote.sleep_for_ever()
        if RUNS["sleep_for_ever"]:
            break
    assert CANCELLED.wait(WAIT_S)


def test_large_outcomes_are_remembered_up_to_a_limit() -> None:
    limits = axon.Limits(remember_bytes=1_000_000)
    with a_worker(limits=limits).start() as address, axon.connect(address) as remote:
        first = request(body_of(np.zeros(600_000, np.uint8)), "echo", axon_call_id="first")
        with connect(address) as sock:
            sock.sendall(first)
            sock.recv(100)
        for _ in range(3):
            with connect(address) as sock:
                sock.sendall(request(body_of(np.zeros(600_000, np.uint8)), "echo"))
                sock.recv(100)
        with pytest.raises(LostError, match="was delivered, or over remember_bytes"):
            remote(call_id="first").echo(0)


def test_a_result_that_cannot_be_decoded_stays_on_the_worker(address: str) -> None:
    with axon.connect(address) as unaware:
        call = unaware(call_id="typed", comms_pattern="duplex")
        with pytest.raises(MalformedError, match="types="):
            call.mirror_of(1, 2)
    with axon.connect(address, types=[Point]) as aware:
        assert axon.resume(aware, "typed").result(WAIT_S) == Point(2, 1)


def test_a_posted_result_needs_the_secret(address: str) -> None:
    with axon.connect(address, callbacks="127.0.0.1:0") as remote:
        running = remote(call_id="posted").submit.long_blocked("posted")
        wait_for_run("posted")
        callbacks = remote._connections.caller.callbacks
        assert callbacks is not None
        port = int(callbacks.reply_to.split()[0])
        forged = body_of("forged")
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            head = f"POST /callbacks/posted HTTP/1.1\r\ncontent-length: {len(forged)}\r\n"
            sock.sendall(f"{head}axon-status: 200\r\n\r\n".encode() + forged)
            assert sock.recv(1000).startswith(b"HTTP/1.1 401")
        RELEASED.set()
        assert running.result(WAIT_S) == "posted"


def test_a_stopping_worker_completes_its_replies() -> None:
    array = np.zeros(60_000_000, np.uint8)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(a_worker().start())
        remote = stack.enter_context(axon.connect(address))
        calls = [remote.submit.echo(array) for _ in range(3)]
        while not any(call.done() for call in calls):
            time.sleep(0.01)
    assert any(call.exception(10) is None for call in calls)


def test_secrets_in_addresses_are_not_shown() -> None:
    assert "sesame" not in repr(axon.Address.parse("http://sesame@host:1"))
    assert "sesame" not in repr(axon.Worker(token="sesame", relay="http://sesame@relay:1"))
    with pytest.raises(ValueError, match=r"//\.\.\.@") as caught:
        axon.connect("http://sesame@host:1/nonsense")
    assert "sesame" not in str(caught.value)


def test_a_token_cannot_be_issued_in_the_name_of_the_owner() -> None:
    with pytest.raises(ValueError, match="'owner'"):
        axon.issue_token("sesame", "owner")


def test_a_function_in_a_process_can_read_its_call(address: str) -> None:
    with axon.connect(address) as remote:
        facts = remote(call_id="process-1", deadline_s=20).process_facts()
    assert (facts["id"], facts["caller"]) == ("process-1", "anonymous")
    assert 0 < facts["left"] <= 20

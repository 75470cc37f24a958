"""Connections up to a limit: honest callers are served while others hold idle connections."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from melisma import axon
from melisma.axon.server.authentication import ANONYMOUS
from melisma.axon.server.listener import Slot, Slots
from melisma.errors import DeadlineError
from tests.axon.served_functions import RELEASED, a_worker, wait_for_run
from tests.axon.server.calls.test_calls import connect

WORKER = """
import logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
logging.basicConfig(level="WARNING")
from melisma import axon
limits = axon.Limits(**eval(sys.argv[1]))
worker = axon.Worker(port=0, token="sesame", limits=limits)
@worker.rpc()
def echo(value):
    return value
with worker.start() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def limited_worker(log: Path, limits: str = "{}") -> Iterator[tuple[str, psutil.Process]]:
    """Start a worker in a process with 128 file descriptors."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", WORKER, limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)


@pytest.mark.parametrize("limits", ["{}", "dict(max_connections=10_000)"])
def test_honest_calls_are_served_beside_more_idle_connections_than_descriptors(
    tmp_path: Path, limits: str
) -> None:
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        address, process = stack.enter_context(limited_worker(log, limits))
        for _ in range(400):
            stack.enter_context(connect(address))
        with axon.connect(address, token="sesame", deadline_s=30) as remote:
            assert remote.echo("served") == "served"
            before = sum(process.cpu_times()[:2])
            time.sleep(1.0)
            assert sum(process.cpu_times()[:2]) - before < 0.5
            assert remote.echo("still served") == "still served"
    assert log.stat().st_size < 10_000


def test_a_connection_without_a_valid_request_is_closed_sooner_than_one_with() -> None:
    limits = axon.Limits(head_s=0.3, idle_s=30)
    with (
        a_worker(limits=limits, token="sesame").start() as address,
        connect(address) as silent,
        connect(address) as wrong,
        connect(address) as honest,
    ):
        wrong.sendall(b"GET / HTTP/1.1\r\nauthorization: Bearer guess\r\n\r\n")
        assert b"401" in wrong.recv(10_000)
        honest.sendall(b"GET / HTTP/1.1\r\nauthorization: Bearer sesame\r\n\r\n")
        assert b"200" in honest.recv(100_000)
        assert silent.recv(1) == b""
        assert wrong.recv(10_000) == b""
        honest.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                assert honest.recv(100_000)


class AnyCaller:
    """Names callers by their token, and takes callers without one."""

    def check(
        self, credentials: axon.Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        return credentials.token or ANONYMOUS


def test_a_request_without_credentials_proves_nothing_to_a_worker_that_prefers_them() -> None:
    limits = axon.Limits(head_s=0.3, idle_s=30)
    with (
        a_worker(
            limits=limits, authenticator=AnyCaller(), prefer_credentials=True
        ).start() as address,
        connect(address) as anonymous,
        connect(address) as named,
    ):
        named.sendall(b"GET / HTTP/1.1\r\nauthorization: Bearer pi\r\n\r\n")
        assert b"200" in named.recv(100_000)
        anonymous.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while anonymous.recv(100_000):
            pass
        named.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                assert named.recv(100_000)


def test_accepting_stops_while_all_connections_serve_calls_and_resumes_after() -> None:
    limits = axon.Limits(max_connections=3)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(a_worker(limits=limits).start())
        remotes = [stack.enter_context(axon.connect(address)) for _ in range(3)]
        calls = [
            threading.Thread(target=remote.blocked, args=(f"key {number}",))
            for number, remote in enumerate(remotes)
        ]
        for number, call in enumerate(calls):
            call.start()
            wait_for_run(f"key {number}")
        late = stack.enter_context(axon.connect(address))
        with pytest.raises(DeadlineError):
            late(deadline_s=0.5).echo("no room")
        RELEASED.set()
        for call in calls:
            call.join()
        assert late(deadline_s=10).echo("room") == "room"


def test_an_idle_connection_of_a_caller_makes_room_and_its_next_call_is_served() -> None:
    with (
        a_worker(limits=axon.Limits(max_connections=1)).start() as address,
        axon.connect(address) as first,
        axon.connect(address) as second,
    ):
        for number in range(3):
            assert first.echo(number) == number
            assert second.echo(number) == number


def test_handshakes_that_do_not_end_make_room(tmp_path: Path) -> None:
    limits = axon.Limits(max_connections=8)
    with contextlib.ExitStack() as stack:
        worker = a_worker(limits=limits, tls=tmp_path / "identity.pem")
        address = stack.enter_context(worker.start())
        place = axon.Address.parse(address)
        for _ in range(30):
            stack.enter_context(socket.create_connection((place.host, place.port), 10))
        remote = stack.enter_context(axon.connect(address, deadline_s=20))
        assert remote.echo("encrypted") == "encrypted"


@dataclass
class FakeConnection:
    idle_since: float | None = 0.0
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def add(slots: Slots, network: bytes, idle_since: float | None = 0.0, *, proven: bool) -> Slot:
    slot = Slot(network, FakeConnection(idle_since))
    slots.add(slot)
    if proven:
        slots.prove(slot)
    return slot


def closed(slot: Slot) -> bool:
    assert isinstance(slot.connection, FakeConnection)
    return slot.connection.closed


def test_the_network_with_most_unproven_connections_loses_its_oldest() -> None:
    slots = Slots(5)
    lone = add(slots, b"lone", proven=False)
    many = [add(slots, b"many", proven=False) for _ in range(3)]
    caller = add(slots, b"caller", proven=True)
    assert slots.full
    assert slots.make_room()
    assert [closed(slot) for slot in [lone, *many, caller]] == [False, True, False, False, False]
    assert len(slots) == 4


def test_a_quarter_of_the_connections_is_open_to_callers_that_are_not_proven_yet() -> None:
    slots = Slots(8)
    callers = [add(slots, b"callers", idle_since=8.0 - n, proven=True) for n in range(7)]
    new = add(slots, b"new", proven=False)
    assert slots.make_room()
    assert closed(callers[-1])
    assert not closed(new)
    add(slots, b"new", proven=False)
    assert slots.make_room()
    assert closed(new)


def test_connections_that_serve_requests_are_not_closed() -> None:
    slots = Slots(2)
    busy = [add(slots, b"caller", idle_since=None, proven=True) for _ in range(2)]
    assert not slots.make_room()
    slots.remove(busy[0])
    slots.remove(busy[0])
    assert len(slots) == 1


def test_a_worker_that_stops_closes_connections_that_are_idle() -> None:
    with a_worker().start() as address:
        socks = [connect(address) for _ in range(20)]
    for sock in socks:
        with sock, contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_closed_connections_free_their_slots() -> None:
    limits = axon.Limits(max_connections=4)
    with a_worker(limits=limits).start() as address:
        for number in range(20):
            with axon.connect(address) as remote:
                assert remote.echo(number) == number

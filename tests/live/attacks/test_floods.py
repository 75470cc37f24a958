"""Floods of calls, connections, slow bodies and costly values, while honest learners train."""

import asyncio
import secrets
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from msgspec.msgpack import Ext
from msgspec.msgpack import encode as pack

from melisma import axon
from melisma.axon.codec.message import MAGIC, PRELUDE, Message, message_buffers
from melisma.errors import BusyError, TooLargeError, TooSlowError
from melisma.runs.journal import read_steps
from melisma.runs.report import Report
from melisma.runs.trace import encode_step
from tests.live.attacks.attacked_fleet import (
    GOOD_UPDATE,
    AttackedFleet,
    Device,
    HostileLearner,
    attacked_fleet,
    reasons,
)
from tests.live.attacks.test_hostile_learner import check_honest_learners

MAX_TRACE_BYTES = 400_000
"""Added to the trace by one learner that comes and goes as often as it can, in six seconds."""
MAX_OUTPUT_BYTES = 50_000
"""Printed by an orchestrator that is flooded for some seconds, its report included."""


def check_undisturbed(fleet: AttackedFleet, report: Report) -> None:
    """Assert that the honest learners finished all cycles, and that the output is short."""
    check_honest_learners(report)
    assert reasons(report) in ("", "anchor: done")
    assert len(fleet.orchestrator.text) < MAX_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("count", "descriptors"), [(150, 128), pytest.param(1025, 1024, marks=pytest.mark.slow)]
)
def test_learners_train_beside_more_idle_connections_than_descriptors(
    tmp_path: Path, count: int, descriptors: int
) -> None:
    limit = f"{descriptors}, {descriptors}"
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}))"
    with (
        attacked_fleet(tmp_path, learners=3, cycles=3, deadline_s=60.0, code=code) as fleet,
        ExitStack() as stack,
    ):
        fleet.start_learner("a")
        fleet.start_learner("b")
        anchor = fleet.anchor()
        assert anchor.at_work.wait(60)
        address = axon.Address.parse(fleet.address)
        for number in range(count):
            # Every second one after the TLS handshake, which later ones may have ended before.
            stack.enter_context(
                fleet.open_socket(timeout_s=30.0)
                if number % 2
                else socket.create_connection((address.host, address.port), 30.0)
            )
        anchor.let_pass(2)
        fleet.wait_for_cycle(2)
        before_s = sum(fleet.process.cpu_times()[:2])
        time.sleep(1.0)
        assert sum(fleet.process.cpu_times()[:2]) - before_s < 0.5
        assert fleet.process.num_fds() <= descriptors
        anchor.release()
        report = fleet.finish()
    check_undisturbed(fleet, report)


@pytest.mark.slow
def test_learners_train_beside_a_hundred_slow_bodies(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=3, cycles=3, deadline_s=60.0) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        # Each may have ten calls at once, so that no body is refused for their number.
        attackers = [fleet.hostile(f"mallory-{number}") for number in range(10)]
        for attacker in attackers:
            attacker.register()
        anchor, begun = fleet.anchor(), Event()
        assert anchor.at_work.wait(60)
        with ThreadPoolExecutor(1) as pool:
            devices = [attacker.device for attacker in attackers]
            dripped = pool.submit(drip_updates, fleet, devices, 100, begun)
            assert begun.wait(60)
            anchor.let_pass(2)
            fleet.wait_for_cycle(2)
            assert dripped.result() == {TooSlowError.status: 100}
        anchor.release()
        report = fleet.finish()
    check_undisturbed(fleet, report)


def test_learners_train_beside_sets_whose_items_have_one_hash(tmp_path: Path) -> None:
    """Each takes 7.5 s of the processor if it is built."""
    sets = 10
    with attacked_fleet(tmp_path, learners=3, cycles=3, deadline_s=60.0) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        anchor, mallory = fleet.anchor(), fleet.hostile()
        mallory.register()
        assert anchor.at_work.wait(60)
        request = colliding_request()
        assert 389_000 < len(request) < 400_000
        anchor.let_pass(2)
        before_s = sum(fleet.process.cpu_times()[:2])
        for _ in range(sets):
            answer = fleet.send(request, mallory.device, timeout_s=30.0)
            assert b"25999 items of a set or keys of a map have 1 different hashes" in answer
        fleet.wait_for_cycle(2)
        assert sum(fleet.process.cpu_times()[:2]) - before_s < 0.5 * sets
        anchor.release()
        report = fleet.finish()
    check_undisturbed(fleet, report)


def colliding_request() -> bytes:
    """Return a call whose argument is a set of 25,999 integers with one hash."""
    numbers = (number * sys.hash_info.modulus + 5 for number in range(1, 26_000))
    items = [Ext(4, number.to_bytes(12, "little", signed=True)) for number in numbers]
    tree = pack([[Ext(2, pack(items))], {}])
    body = b"".join(message_buffers(Message(tree)))
    head = f"content-length: {len(body)}\r\nconnection: close\r\n"
    return f"POST /rpc/release_shards HTTP/1.1\r\n{head}\r\n".encode() + body


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_floods_of_one_learner_do_not_disturb_the_others(tmp_path: Path, count: int) -> None:
    with attacked_fleet(tmp_path, learners=4, cycles=2, deadline_s=60.0) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        anchor, mallory = fleet.anchor(), fleet.hostile()
        mallory.join()
        assert anchor.at_work.wait(60)
        before_bytes = fleet.process.memory_info().rss
        too_large = {"weight": np.zeros(4 << 20, np.float32), "bias": GOOD_UPDATE["bias"]}
        for method, *args in (
            ("upload_update", {}, too_large),
            ("probe_uplink", too_large),
            ("report_failure", "x" * 100_000),
            ("release_shards", 1, list(range(1 << 20))),
        ):
            with pytest.raises(TooLargeError):
                mallory.call(method, *args)
        with ThreadPoolExecutor(1) as pool:
            begun = Event()
            dripped = pool.submit(drip_updates, fleet, [mallory.device], 20, begun)
            assert begun.wait(60)
            outcomes = asyncio.run(call_in_parallel(mallory, count))
            assert outcomes[BusyError] > count / 2, outcomes
            assert fleet.process.memory_info().rss - before_bytes < (32 << 20) + count * (100 << 10)
            statuses = dripped.result()
        assert statuses[TooSlowError.status] > 0
        assert statuses[TooSlowError.status] + statuses[BusyError.status] == 20
        mallory.await_free_call()
        before_bytes, began_at = trace_bytes(fleet.run_folder), time.monotonic()
        while time.monotonic() < began_at + 6.0:
            mallory.session = secrets.token_hex(16)
            mallory.join()
            mallory.call("report_failure", "again")
        assert trace_bytes(fleet.run_folder) - before_bytes < MAX_TRACE_BYTES
        anchor.release()
        report = fleet.finish()
    check_honest_learners(report)


def trace_bytes(folder: Path) -> int:
    """Return the bytes of all steps so far."""
    return sum(len(encode_step(step)) for step in read_steps(folder))


def drip_updates(
    fleet: AttackedFleet, devices: list[Device], count: int, begun: Event
) -> "Counter[int]":
    """Upload on many connections, a byte a second on each; return the HTTP statuses of the ends.

    The devices have equal parts of the connections.
    """
    statuses: Counter[int] = Counter()
    sockets = [
        fleet.open_socket(devices[number % len(devices)], timeout_s=30.0) for number in range(count)
    ]
    for sock in sockets:
        sock.settimeout(1 / count)
        head = b"POST /rpc/upload_update HTTP/1.1\r\ncontent-length: 400\r\n\r\n"
        sock.sendall(head + PRELUDE.pack(MAGIC, 400 - PRELUDE.size, 0))
    begun.set()
    while sockets:
        for sock in list(sockets):
            try:
                answer = sock.recv(1 << 16)
            except TimeoutError:
                sock.sendall(b"A")
            else:
                statuses[int(answer.split()[1])] += 1
                sockets.remove(sock)
                sock.close()
    return statuses


async def call_in_parallel(mallory: HostileLearner, count: int) -> Counter[type]:
    """Poll many times at once; return the types of the outcomes."""
    with mallory.device.connect() as remote:
        polls = [remote(deadline_s=10.0).aio.poll(mallory.session, None) for _ in range(count)]
        return Counter(map(type, await asyncio.gather(*polls, return_exceptions=True)))

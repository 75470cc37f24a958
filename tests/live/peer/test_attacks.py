"""Attacks on live nodes over real sockets; the others train to the end, and the report tells."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma import axon
from melisma.axon.server.limits import Limits
from melisma.live.peer.admission import Admission
from melisma.peer import messages
from melisma.peer.algorithms import LocalSgd
from melisma.peer.keyring import KeyRing
from melisma.peer.proofs import NodeKey, content_to_sign
from tests.live.peer.attacker import FAR, TOKEN, Impostor, Member, Recorder
from tests.live.peer.test_node_process import NodeThreads
from tests.live.peer.tiny_net import SLOW

SIZE = 114


@pytest.fixture
def nodes(folder: Path) -> Iterator[NodeThreads]:
    threads = NodeThreads()
    yield threads
    threads.end()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def address_of(nodes: NodeThreads, name: str) -> str:
    return f"http://127.0.0.1:{nodes.port(name)}"


def test_a_forged_message_does_not_lock_the_real_node_out(
    nodes: NodeThreads, stack: ExitStack
) -> None:
    nodes.control_token = "owner"
    options: dict[str, Any] = {"token": TOKEN, "iterations": 10**6, "task": SLOW}
    options["control_token"] = nodes.control_token
    numbers = [nodes.start(nodes.config(*names, **options)) for names in ("ab", "ba")]
    member, thief = Member("x", stack), Member("b", stack)
    member.meet_when_listening("a", address_of(nodes, "a"))
    # The first node of a name that knows the token has the name, so b has to be there.
    nodes.wait_for("a", updates=1)
    later = time.time_ns() // 10**6 + FAR
    answer = member.send("a", messages.Heartbeat(sender="b", incarnation=later))
    assert answer == "this key belongs to x, not to b"
    assert thief.meet("a", address_of(nodes, "a")) == "the name b belongs to another key"
    nodes.wait_for("a", updates=int(nodes.updates("a")) + 2)
    for number in numbers:
        report = nodes.stop(number)
        assert report.outcome == "cancelled", report.reason
        assert not [line for line in report.notices if "lost" in line]
    a = nodes.report(numbers[0])
    assert any("forged message in the name of b" in line for line in a.notices)
    assert a.forgeries >= 1


def test_a_neighbour_that_answers_and_sends_nothing_is_not_waited_for(
    nodes: NodeThreads, stack: ExitStack
) -> None:
    member = Member("x", stack)
    options: dict[str, Any] = {"token": TOKEN, "patience_s": 1.5, "iterations": 200}
    config = msgspec.structs.replace(
        nodes.config("a", "x", **options), addresses={"x": member.address}
    )
    number = nodes.start(config)
    hello = member.wait_for(messages.Hello)
    member.meet_when_listening("a", address_of(nodes, "a"))
    member.accept("a", hello)
    ids: dict[str, Any] = {"sender": "x", "incarnation": 1}
    first = member.wait_for(messages.Update)
    size = len(first.content) // 4
    assert size == SIZE
    bad = {1: np.full(size, 1e30), 2: np.full(size, np.nan), 3: np.ones(size + 1)}
    for update, numbers in bad.items():
        message = messages.Update(
            **ids,
            to_incarnation=hello.incarnation,
            number=update,
            learning_rate=1.0,
            content=numbers.astype(np.float32).tobytes(),
        )
        assert member.send("a", message) == ""
    report = nodes.report(number)
    assert (report.outcome, report.steps) == ("finished", 200)
    assert report.accuracy is not None
    assert report.accuracy > 0.9
    text = "\n".join(report.notices)
    assert "update 1 is left out: far larger than others" in text
    assert "number 0 is nan; expected finite numbers" in text
    assert "460 bytes; expected 456 for 114 numbers" in text
    assert "x answers, but sent no update for" in text


def test_made_up_greetings_start_no_threads(nodes: NodeThreads, stack: ExitStack) -> None:
    options: dict[str, Any] = {"token": TOKEN, "iterations": 10**6, "task": SLOW}
    numbers = [nodes.start(nodes.config(*names, **options)) for names in ("ab", "ba")]
    Member("a-friend", stack).meet_when_listening("a", address_of(nodes, "a"))
    before = threading.active_count()
    most, refused = before, 0
    remote = stack.enter_context(axon.connect(address_of(nodes, "a")))
    for index in range(600):
        name = f"x{index}"
        sender = Admission(name, TOKEN, NodeKey.create(), KeyRing(name), incarnation=1)
        refusal = sender.meet(remote, address_of(nodes, "a"), "a", 10.0)
        refused += bool(refusal)
        if refusal:
            assert "nodes have joined that are not named as neighbours" in refusal
            continue
        hello = messages.Hello(sender=name, incarnation=1, compatibility={}, degree=1)
        content, here = msgspec.msgpack.encode(hello), "http://127.0.0.1:1"
        signature = sender.key.sign(content_to_sign("a", here, content))
        assert remote.deliver(content, here, sender.key.public, signature) == ""
        most = max(most, threading.active_count())
    assert refused == 600 - 15
    assert most <= before + 40
    reports = [nodes.stop(number) for number in numbers]
    assert not [line for report in reports for line in report.notices if "is lost" in line]


class KnownImpostor(Impostor):
    real = ""

    def real_address(self) -> str:
        return self.real


def test_an_impostor_on_the_local_network_is_sent_nothing_but_a_nonce(
    nodes: NodeThreads, folder: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    impostor, recorder = KnownImpostor(), Recorder()
    worker = axon.Worker(
        port=0, tls=folder / "impostor.pem", authenticator=recorder, limits=Limits()
    )
    worker.expose(impostor, ["introduce", "admit", "deliver"], name="")
    false = stack.enter_context(worker.start())
    options: dict[str, Any] = {"token": TOKEN, "tls": True, "patience_s": 10.0}
    b = nodes.start(msgspec.structs.replace(nodes.config("b", "a", **options), addresses={}))
    while not (lines := [line for line in nodes.log if line.startswith("b at ")]):
        time.sleep(0.05)
    impostor.real = lines[0].split()[2].rstrip(",")
    found = [
        axon.DiscoveredWorker("b.1", impostor.real),
        axon.DiscoveredWorker("b.99999999999999", false),
        axon.DiscoveredWorker("b.88888888888888", "http://192.0.2.1:9"),
    ]
    monkeypatch.setattr(axon, "discover", lambda _: found)
    a = nodes.start(
        msgspec.structs.replace(nodes.config("a", "b", **options), addresses={}, discover=True)
    )
    assert [nodes.report(number).outcome for number in (a, b)] == ["finished", "finished"]
    assert impostor.calls
    assert {call[0] for call in impostor.calls} == {"introduce"}
    assert all(len(call[1]) == 32 for call in impostor.calls)
    assert {each.authorization for each in recorder.credentials} == {None}


def test_a_node_whose_clock_was_wrong_returns_with_the_right_one(
    nodes: NodeThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "iterations": 400,
        "algorithm": LocalSgd(learning_rate=0.05, steps=20, max_lag=0),
        "task": SLOW,
    }
    one = nodes.start(nodes.config("a", "b", **options))
    right = time.time_ns
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time_ns", lambda: right() + 10**6 * FAR)
        first = nodes.start(nodes.config("b", "a", **options))
        nodes.wait_for("b", 5)
    before = nodes.stop(first)
    assert before.outcome == "cancelled"
    # Otherwise the other node would not have met the one whose clock was wrong.
    assert not [line for line in before.notices if "lost" in line]
    again = nodes.report(nodes.start(nodes.config("b", "a", **options)))
    assert (again.outcome, again.model_from) == ("finished", "a")
    assert any("knows a later incarnation of this node" in line for line in again.notices)
    assert nodes.report(one).outcome == "finished"


def test_text_of_other_nodes_is_escaped(nodes: NodeThreads, stack: ExitStack) -> None:
    member = Member("x", stack)
    config = msgspec.structs.replace(
        nodes.config("a", "x", token=TOKEN), addresses={"x": member.address}
    )
    number = nodes.start(config)
    hello = member.wait_for(messages.Hello)
    member.meet_when_listening("a", address_of(nodes, "a"))
    rejected = messages.Rejected(
        sender="x",
        incarnation=1,
        to_incarnation=hello.incarnation,
        reason="\x1b]0;owned\x07\x1b[2J",
    )
    assert member.send("a", rejected) == ""
    report = nodes.report(number)
    assert report.reason == r"x rejected this node: \x1b]0;owned\x07\x1b[2J"
    assert not any("\x1b" in line for line in [*report.notices, *nodes.log])


def test_slow_and_large_bodies_do_not_disturb_training(
    nodes: NodeThreads, stack: ExitStack
) -> None:
    options: dict[str, Any] = {"token": TOKEN, "iterations": 400, "task": SLOW}
    numbers = [nodes.start(nodes.config(*names, **options)) for names in ("ab", "ba")]
    Member("x", stack).meet_when_listening("a", address_of(nodes, "a"))
    large = b"POST /rpc/deliver HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n"
    slow = b"POST /rpc/deliver HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\nx"
    sockets = [
        stack.enter_context(socket.create_connection(("127.0.0.1", nodes.port("a")), 10))
        for _ in range(50)
    ]
    for sock in sockets[1:]:
        sock.sendall(slow)
    sockets[0].sendall(large)
    assert b" 413 " in sockets[0].recv(4096).splitlines()[0]
    for number in numbers:
        report = nodes.report(number)
        assert (report.outcome, report.notices) == ("finished", [])

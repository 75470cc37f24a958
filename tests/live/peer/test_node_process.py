"""One node: in a process of its own, and as a thread with its neighbours."""

import contextlib
import dataclasses
import importlib.util
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from melisma import axon
from melisma.errors import MelismaError, SettingError, UnauthorizedError
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_process import run_node
from melisma.live.peer.node_runner import NodeRunner
from melisma.peer.algorithms import LocalSgd
from melisma.peer.group import PeerSettings
from melisma.runs.peer_report import NodeReport
from tests.live.child_process import start_process
from tests.live.peer.tiny_net import PATIENCE_S, ROUNDS, SLOW, TASK

GHOST_PATIENCE_S = 6.0
END_S = 120.0
"""On a busy machine a node waits long for a neighbour that makes no progress."""


def wait_until_listening(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def test_no_node_outlives_its_parent(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    config = NodeConfig(
        name="n0",
        settings=PeerSettings(TASK, ROUNDS, 10**9, patience_s=60.0),
        module_folders=(str(folder),),
        folder=str(folder),
        port=port,
    )
    process = start_process("melisma.live.peer.node_process", config, folder / "n0.log")
    assert process.stdin is not None
    # A node has a few seconds to keep its results; they must not begin before it has started.
    wait_until_listening(port)
    process.stdin.close()
    assert process.wait(END_S) == 1
    assert (folder / "n0.log").read_text().strip() == "n0: interrupted"
    # Partial results are kept.
    kept = msgspec.json.decode((folder / "reports" / "n0.json").read_bytes(), type=NodeReport)
    assert kept.outcome == "cancelled"
    assert (folder / "models" / "n0.safetensors").is_file()


def test_the_model_of_a_node_is_saved_before_its_score_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def score(*_: object) -> None:
        kept = msgspec.json.decode((folder / "reports" / "n0.json").read_bytes(), type=NodeReport)
        assert (folder / "models" / "n0.safetensors").is_file()
        seen.append(kept.outcome)

    monkeypatch.setattr(NodeRunner, "_score", score)
    settings = PeerSettings(TASK, ROUNDS, 10**9, patience_s=60.0)
    config = NodeConfig(name="n0", settings=settings, folder=str(folder))
    stop = threading.Event()
    stop.set()
    assert run_node(config, stop=stop).outcome == "cancelled"
    assert seen == ["cancelled"]


class NodeThreads:
    """Nodes as threads; they find each other by addresses unless their configuration differs."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ended: dict[int, NodeReport | Exception] = {}
        self._threads: list[threading.Thread] = []
        self._stops: list[threading.Event] = []
        self._ports: dict[str, int] = {}
        self.control_token: str | None = None  # of nodes that tell their progress to their owner

    def config(self, name: str, *neighbours: str, **options: Any) -> NodeConfig:
        host, port = "http://127.0.0.1", self.port(name)
        addresses = {each: f"{host}:{self.port(each)}" for each in neighbours}
        if {"board", "discover"} & options.keys():
            addresses, port = {}, 0
        settings = PeerSettings(TASK, ROUNDS, 200, patience_s=PATIENCE_S)
        shared = {
            key: options.pop(key)
            for key in options.keys() & PeerSettings.__dataclass_fields__.keys()
        }
        given: dict[str, Any] = {
            "settings": dataclasses.replace(settings, **shared),
            "neighbours": neighbours,
            "addresses": addresses,
            "port": port,
        }
        return NodeConfig(name=name, **(given | options))

    def port(self, name: str) -> int:
        """Return a free port, the same for one name every time."""
        if name not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as server:
                self._ports[name] = server.getsockname()[1]
        return self._ports[name]

    def start(self, config: NodeConfig) -> int:
        """Start a node; return its number."""
        number, stop = len(self._threads), threading.Event()

        def work() -> None:
            try:
                self.ended[number] = run_node(config, self.log.append, stop)
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                self.ended[number] = error

        self._threads.append(threading.Thread(target=work, name=f"node-{config.name}"))
        self._stops.append(stop)
        self._threads[-1].start()
        return number

    def stop(self, number: int) -> NodeReport:
        self._stops[number].set()
        return self.report(number)

    def report(self, number: int) -> NodeReport:
        result = self.result(number)
        if isinstance(result, Exception):
            raise result
        return result

    def result(self, number: int) -> NodeReport | Exception:
        self._threads[number].join(END_S)
        assert number in self.ended, "the node did not end"
        return self.ended[number]

    def updates(self, name: str) -> float:
        """Return the updates of a node; 0 while it does not answer."""
        try:
            address = f"http://127.0.0.1:{self.port(name)}"
            with axon.connect(address, token=self.control_token, deadline_s=5.0) as remote:
                updates: float = remote.progress()["updates"]
                return updates
        except MelismaError:
            return 0

    def wait_for(self, name: str, updates: int) -> None:
        limit = time.monotonic() + 30
        while self.updates(name) < updates:
            assert time.monotonic() < limit, f"{name} did not send {updates} updates"
            time.sleep(0.02)

    def end(self) -> None:
        for stop in self._stops:
            stop.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def nodes(folder: Path) -> Iterator[NodeThreads]:
    threads = NodeThreads()
    yield threads
    threads.end()


def test_nodes_find_each_other_by_addresses(nodes: NodeThreads, folder: Path) -> None:
    numbers = [
        nodes.start(nodes.config("a", "b", part=0, parts=2, folder=str(folder))),
        nodes.start(nodes.config("b", "a", part=1, parts=2, folder=str(folder))),
    ]
    for number in numbers:
        report = nodes.report(number)
        assert (report.outcome, report.steps, report.updates) == ("finished", 200, 10)
        assert report.accuracy is not None
        assert report.accuracy > 0.9
    assert {path.name for path in (folder / "models").iterdir()} == {
        "a.safetensors",
        "b.safetensors",
    }
    assert any(line.startswith("a at http://127.0.0.1:") for line in nodes.log)


def test_one_address_is_enough_because_a_call_carries_the_address_of_its_sender(
    nodes: NodeThreads,
) -> None:
    one = nodes.start(nodes.config("a", "b"))
    other = nodes.start(replace(nodes.config("b", "a"), addresses={}))
    assert [nodes.report(number).outcome for number in (one, other)] == ["finished", "finished"]
    assert not [line for line in nodes.log if "lost" in line]


@contextlib.contextmanager
def board(**options: Any) -> Iterator[str]:
    with axon.board_worker(port=0, **options).start() as address:
        yield address


def test_nodes_find_each_other_by_a_notice_board_and_lose_unknown_neighbours(
    nodes: NodeThreads,
) -> None:
    with board(token="pin") as address:
        options = {
            "board": address.replace("//", "//pin@"),
            "token": "group",
            "patience_s": GHOST_PATIENCE_S,
        }
        one = nodes.start(nodes.config("a", "b", "ghost", **options))
        other = nodes.start(nodes.config("b", "a", **options))
        reports = [nodes.report(number) for number in (one, other)]
    assert [report.outcome for report in reports] == ["finished", "finished"]
    assert any(
        "ghost is lost; training continues without it" in line for line in reports[0].notices
    )
    assert (reports[0].started_s or 0.0) >= GHOST_PATIENCE_S
    assert "a: ghost is lost; training continues without it" in nodes.log
    # The other node lost no neighbour.
    assert reports[1].notices == []


def test_nodes_find_each_other_by_discovery(nodes: NodeThreads) -> None:
    if importlib.util.find_spec("zeroconf") is None:
        pytest.skip("the package zeroconf is not installed")
    probe = f"melisma-probe-{time.time_ns()}"
    with axon.Worker(port=0, name=probe, announce=True).start():
        if probe not in [worker.name for worker in axon.discover(1.0)]:
            pytest.skip("multicast DNS does not get through on this machine")
    one, other = (f"melisma-{name}-{time.time_ns()}" for name in "ab")
    options = {"discover": True, "patience_s": 10.0, "token": "group"}
    numbers = [
        nodes.start(nodes.config(one, other, **options)),
        nodes.start(nodes.config(other, one, **options)),
    ]
    assert [nodes.report(number).outcome for number in numbers] == ["finished", "finished"]
    assert not [line for line in nodes.log if "lost" in line]


def test_the_second_node_of_one_name_is_rejected(nodes: NodeThreads) -> None:
    one = nodes.start(nodes.config("a", "b", iterations=500, task=SLOW))
    other = nodes.start(nodes.config("b", "a", iterations=500, task=SLOW))
    nodes.wait_for("b", 2)
    taken = f"http://127.0.0.1:{nodes.port('b')}"
    second = nodes.start(replace(nodes.config("b", "a", task=SLOW), port=0))
    report = nodes.report(second)
    assert report.outcome == "failed"
    assert report.reason == f"a rejected this node: the name b is in use by the node at {taken}"
    for number in (one, other):
        assert (nodes.report(number).outcome, nodes.report(number).steps) == ("finished", 500)


def test_the_second_node_of_one_name_is_rejected_with_a_notice_board(nodes: NodeThreads) -> None:
    with board() as address:
        configs = [nodes.config(*names, board=address, iterations=10**6) for names in ("ab", "ba")]
        both = [nodes.start(config) for config in configs]
        while not any(_updates(each.address) for each in axon.workers(address)):
            assert not nodes.ended
            time.sleep(0.05)
        report = nodes.report(nodes.start(nodes.config("a", "b", board=address)))
        assert report.outcome == "failed"
        assert "the name a is in use by the node at" in report.reason
        assert [nodes.stop(each).outcome for each in both] == ["cancelled"] * 2


def _updates(address: str) -> int:
    with axon.connect(address, deadline_s=5) as node:
        return int(node.progress()["updates"])


def test_a_different_model_is_named_and_the_others_continue(nodes: NodeThreads) -> None:
    wide = replace(TASK, model_args={"width": 32})
    numbers = [
        nodes.start(nodes.config("a", "b", "c")),
        nodes.start(nodes.config("b", "a")),
        nodes.start(nodes.config("c", "a", task=wide)),
    ]
    a, b, c = (nodes.report(number) for number in numbers)
    assert (a.outcome, b.outcome, c.outcome) == ("finished", "finished", "failed")
    assert (a.steps, b.steps) == (200, 200)
    here, there = "net:Net of 114 parameters", "net:Net of 226 parameters"
    assert all(model in c.reason for model in (here, there))
    assert any(f"model here is {here}, there {there}" in line for line in a.notices + b.notices)


def test_a_wrong_token_is_rejected_and_the_others_continue(nodes: NodeThreads) -> None:
    numbers = [
        nodes.start(nodes.config("a", "b", "c", token="right")),
        nodes.start(nodes.config("b", "a", token="right")),
        nodes.start(nodes.config("c", "a", token="wrong")),
    ]
    a, b, c = (nodes.report(number) for number in numbers)
    assert (a.outcome, b.outcome, c.outcome) == ("finished", "finished", "failed")
    assert c.reason.startswith("a rejected this node: ")
    assert "token" in c.reason
    assert any("c" in line.partition(" s: ")[2] for line in a.notices)


def test_a_node_that_returns_adopts_the_model_of_a_neighbour(nodes: NodeThreads) -> None:
    options = {
        "iterations": 400,
        "algorithm": LocalSgd(learning_rate=0.05, steps=20, max_lag=0),
        "task": SLOW,
    }
    one = nodes.start(nodes.config("a", "b", **options))
    first = nodes.start(nodes.config("b", "a", **options))
    nodes.wait_for("b", 5)
    before = nodes.stop(first)
    assert (before.outcome, before.reason) == ("cancelled", "interrupted")
    again = nodes.report(nodes.start(nodes.config("b", "a", **options)))
    assert (again.outcome, again.model_from, again.steps) == ("finished", "a", 400)
    assert again.samples <= (400 - 5 * 20) * 16
    assert again.incarnation > before.incarnation
    assert nodes.report(one).outcome == "finished"
    assert nodes.report(one).last_update == again.last_update == 20


def test_a_node_that_awaits_its_owner_begins_when_it_is_called(nodes: NodeThreads) -> None:
    """The first node is up for longer than its patience, and does not lose the second one."""
    options: dict[str, Any] = {
        "await_begin": True,
        "control_token": "owner",
        "token": "group",
        "patience_s": 2.0,
    }
    one = nodes.start(nodes.config("a", "b", **options))
    while not any(line.startswith("a at ") for line in nodes.log):
        time.sleep(0.02)
    time.sleep(3.0)
    other = nodes.start(nodes.config("b", "a", **options))
    while not any(line.startswith("b at ") for line in nodes.log):
        time.sleep(0.02)
    addresses = [f"http://127.0.0.1:{nodes.port(name)}" for name in "ab"]
    with axon.connect(addresses[0]) as stranger, pytest.raises(UnauthorizedError, match="begin"):
        stranger.begin()
    assert not nodes.ended
    for address in addresses:
        with axon.connect(address, token="owner") as owner:
            assert owner.progress()["steps"] == 0
            owner.begin()
    reports = [nodes.report(number) for number in (one, other)]
    assert [report.outcome for report in reports] == ["finished", "finished"]
    assert (reports[0].started_s or 0.0) > 3.0
    waiting = nodes.start(nodes.config("a", "b", **options))
    assert nodes.stop(waiting).outcome == "cancelled"


def test_an_invalid_part_raises() -> None:
    config = NodeConfig(name="a", settings=PeerSettings(TASK, ROUNDS, 1), part=2, parts=2)
    with pytest.raises(SettingError, match="part 2 of 2; expected 0 to 1"):
        run_node(config)


FINGERPRINT = "sha256:" + 64 * "0"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"host": "0.0.0.0"}, r"a listens on '0\.0\.0\.0'"),
        ({"host": ""}, "a listens on ''"),
        ({"host": "::"}, "a listens on '::'"),
        ({"host": "desk"}, "a listens on 'desk'"),
        ({"addresses": {"b": f"https://desk:1#{FINGERPRINT}"}}, "neighbour b is at 'desk'"),
        ({"board": f"https://pin@desk:1#{FINGERPRINT}"}, "the board is at 'desk'"),
        ({"discover": True}, "--discover searches the local network"),
    ],
)
def test_a_group_without_a_token_beyond_this_machine_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    settings = PeerSettings(replace(TASK, model="missing:Net"), ROUNDS, 1)
    config = NodeConfig(name="a", settings=settings, neighbours=("b",), **options)
    with pytest.raises(SettingError, match=f"no token, and {problem}: .*--token .*--open-group"):
        run_node(config)
    # Others are checked later: the model is missing.
    for allowed in ({"token": "group"}, {"open_group": True}):
        with pytest.raises(MelismaError, match="missing"):
            run_node(replace(config, **allowed))


def test_a_group_without_a_token_on_this_machine_needs_no_permission() -> None:
    settings = PeerSettings(replace(TASK, model="missing:Net"), ROUNDS, 1)
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        config = NodeConfig(name="a", settings=settings, neighbours=("b",), host=host)
        with pytest.raises(MelismaError, match="missing"):
            run_node(replace(config, board="http://127.0.0.1:1"))


def test_hosts_beyond_this_machine_join_an_open_group(nodes: NodeThreads) -> None:
    options: dict[str, Any] = {"host": "0.0.0.0", "open_group": True, "advertise": "127.0.0.1"}
    one = nodes.start(replace(nodes.config("a", "b", **options), addresses={}))
    while not (lines := [line for line in nodes.log if line.startswith("a at https://")]):
        assert not nodes.ended
        time.sleep(0.02)
    address = lines[0].split()[2].rstrip(",")
    other = nodes.start(replace(nodes.config("b", "a", **options), addresses={"a": address}))
    assert [nodes.report(number).outcome for number in (one, other)] == ["finished", "finished"]

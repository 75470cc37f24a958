"""Nodes without an orchestrator over real sockets: as processes, and as threads of this one."""

import contextlib
import dataclasses
import importlib.util
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from melisma import axon
from melisma.errors import MelismaError, MelismaWarning, SettingError
from melisma.fleet.task import Task
from melisma.live import processes
from melisma.live.peer.local_group import PeerObserver, run_peers
from melisma.live.peer.messenger import MessageReceived, Messenger, NeighbourUnreachable
from melisma.live.peer.node_process import run_node
from melisma.live.peer.node_runner import NodeConfig, Progress
from melisma.peer import messages
from melisma.peer.algorithms import AetSgd, Algorithm, LocalSgd
from melisma.peer.group import Peers, PeerSettings
from melisma.peer.topologies import topology_for
from melisma.runs.peer_report import NodeReport, PeerReport
from melisma.simulation.peers.peer_simulation import simulate_peers
from tests.live import tiny_task

NET = """
import time

import numpy as np
import torch
from torch import nn


class Net(nn.Sequential):
    # Its start is not by the chance of PyTorch, which threads have in common; steps can take long.
    def __init__(self, width: int = 16, pause_s: float = 0.0) -> None:
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        rng, self.pause_s = np.random.default_rng(1), pause_s
        for weight in self.parameters():
            weight.data = torch.from_numpy(rng.normal(0, 0.3, weight.shape).astype(np.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.pause_s)
        return super().forward(x)
"""
TASK = Task(name="blobs", model="net:Net", data="tiny_task:blobs", deadline_s=1.0, batch=16)
SLOW = replace(TASK, model_args={"pause_s": 0.002})
ROUNDS = LocalSgd(learning_rate=0.1, steps=20)
PATIENCE_S = 2.0


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data of one's own, and a home of its own for certificates."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path


def run(said: Algorithm, shape: str, nodes: int, iterations: int, **more: Any) -> PeerReport:
    patience_s, task = more.pop("patience_s", 10.0), more.pop("task", TASK)
    group = PeerSettings(task, said, iterations, patience_s=patience_s)
    return run_peers(Peers(group, topology_for(shape, nodes, 1), shape), folder="run", **more)


def children() -> list[psutil.Process]:
    """Nodes, in the order in which they were started."""
    found = psutil.Process().children()
    nodes = [each for each in found if "melisma.live.peer.node_process" in " ".join(each.cmdline())]
    return sorted(nodes, key=lambda each: each.pid)


# Processes.


def test_a_run_of_processes_ends_with_models_reports_and_a_picture(place: Path) -> None:
    seen: list[Progress] = []
    report = run(
        AetSgd(learning_rate=0.1),
        "ring",
        3,
        300,
        score_every=100,
        tls=True,
        observer=PeerObserver(progress=seen.append),
    )
    assert report.succeeded, [node.reason for node in report.nodes]
    assert report.accuracy > 0.9
    assert report.parts == [["n0", "n1", "n2"]]
    for node in report.nodes:
        assert (node.outcome, node.steps, node.updates) == ("done", 300, 8)
        # 8 updates of 114 numbers to each of 2 neighbours, and some words.
        assert node.messages >= 2 * 8 + 4
        assert 16 * 4 * 114 < node.sent_bytes < 32 * 4 * 114
        assert node.samples == 300 * 16 - 8 * (300 // 13)
        assert len(node.scores) > 1
        assert node.started_s is not None
    models = sorted(path.name for path in (place / "run" / "models").iterdir())
    assert models == ["n0.safetensors", "n1.safetensors", "n2.safetensors"]
    model = load_file(place / "run" / "models" / "n0.safetensors")
    assert sum(array.size for array in model.values()) == 114
    assert (place / "run" / "picture.svg").read_text().startswith("<svg")
    told = json.loads((place / "run" / "reports" / "n2.json").read_text())
    assert told["updates"] == 8
    assert all(set(each) <= {"n0", "n1", "n2"} for each in seen)
    assert children() == []


def no_picture(*_: object) -> Any:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_costs_neither_models_nor_report(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerReport, "plot", no_picture)
    with pytest.warns(MelismaWarning, match=r"cannot draw .*picture\.svg: ZeroDivisionError"):
        report = run(AetSgd(learning_rate=0.1), "ring", 1, 30)
    assert report.succeeded
    assert (place / "run" / "models" / "n0.safetensors").is_file()
    assert not (place / "run" / "picture.svg").exists()


def test_one_live_node_is_the_simulated_one_bit_for_bit(place: Path) -> None:
    """Which is plain SGD."""
    alone = Peers(
        PeerSettings(TASK, AetSgd(learning_rate=0.1), 300), topology_for("ring", 1, 1), "ring"
    )
    live = run_peers(alone, folder="live")
    simulated = simulate_peers(alone, folder="simulated")
    assert live.succeeded
    one, other = (place / name / "models" / "n0.safetensors" for name in ("live", "simulated"))
    assert one.read_bytes() == other.read_bytes()
    assert live.nodes[0].accuracy == simulated.nodes[0].accuracy
    assert live.nodes[0].samples == simulated.nodes[0].samples


def test_when_a_node_is_killed_the_rest_goes_on_to_the_end() -> None:
    killed: list[int] = []
    told: list[str] = []

    def look(progress: Progress) -> None:
        if not killed and all(each["updates"] for each in progress.values()) and len(progress) == 3:
            victim = children()[1]
            killed.append(victim.pid)
            victim.kill()

    watch = PeerObserver(log=told.append, progress=look)
    report = run(
        LocalSgd(learning_rate=0.05, steps=20),
        "line",
        3,
        1000,
        patience_s=1.0,
        observer=watch,
        task=SLOW,
    )
    assert killed
    assert [node.outcome for node in report.nodes] == ["done", "gone", "done"]
    assert "its process ended with -9" in report.nodes[1].reason
    assert report.parts == [["n0"], ["n2"]]
    assert not report.succeeded
    assert "the topology falls into 2 parts: n0; n2" in told
    for place in (0, 2):
        node = report.nodes[place]
        assert node.steps == 1000
        assert any("n1 is lost; no neighbour is left" in line for line in node.notices)
        assert node.accuracy is not None
        assert node.accuracy > 0.9


def test_no_node_outlives_its_parent(place: Path) -> None:
    setting = NodeConfig(
        name="n0",
        settings=PeerSettings(TASK, ROUNDS, 10**9, patience_s=60.0),
        module_folders=(str(place),),
        folder=str(place),
    )
    process = processes._start("melisma.live.peer.node_process", setting, place / "n0.log")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 1
    assert (place / "n0.log").read_text().strip() == "n0: interrupted"
    # What there is, is kept.
    kept = msgspec.json.decode((place / "reports" / "n0.json").read_bytes(), type=NodeReport)
    assert kept.outcome == "cancelled"
    assert (place / "models" / "n0.safetensors").is_file()


# Threads: nodes are told everything by their settings.


class Party:
    """Nodes that find each other by addresses, unless their settings say otherwise."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.ended: dict[int, NodeReport | Exception] = {}
        self._threads: list[threading.Thread] = []
        self._stops: list[threading.Event] = []
        self._ports: dict[str, int] = {}

    def setting(self, name: str, *neighbours: str, **said: Any) -> NodeConfig:
        host, port = "http://127.0.0.1", self.port(name)
        addresses = {each: f"{host}:{self.port(each)}" for each in neighbours}
        if {"board", "discover"} & said.keys():
            addresses, port = {}, 0
        group = PeerSettings(TASK, ROUNDS, 200, patience_s=PATIENCE_S)
        alike = {
            key: said.pop(key) for key in said.keys() & PeerSettings.__dataclass_fields__.keys()
        }
        asked: dict[str, Any] = {
            "settings": dataclasses.replace(group, **alike),
            "neighbours": neighbours,
            "addresses": addresses,
            "port": port,
        }
        return NodeConfig(name=name, **(asked | said))

    def port(self, name: str) -> int:
        """One that is free, the same for one name every time."""
        if name not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as found:
                self._ports[name] = found.getsockname()[1]
        return self._ports[name]

    def start(self, setting: NodeConfig) -> int:
        """The number of the node."""
        number, stop = len(self._threads), threading.Event()

        def work() -> None:
            try:
                self.ended[number] = run_node(setting, self.told.append, stop)
            except Exception as error:  # noqa: BLE001 - it is looked at in the thread that waits
                self.ended[number] = error

        self._threads.append(threading.Thread(target=work, name=f"node-{setting.name}"))
        self._stops.append(stop)
        self._threads[-1].start()
        return number

    def stop(self, number: int) -> NodeReport:
        self._stops[number].set()
        return self.report(number)

    def report(self, number: int) -> NodeReport:
        found = self.result(number)
        if isinstance(found, Exception):
            raise found
        return found

    def result(self, number: int) -> NodeReport | Exception:
        self._threads[number].join(30)
        assert number in self.ended, "it did not end"
        return self.ended[number]

    def updates(self, name: str) -> float:
        """How far a node is; 0 while it does not answer."""
        try:
            with axon.connect(f"http://127.0.0.1:{self.port(name)}", deadline_s=5.0) as remote:
                found: float = remote.progress()["updates"]
                return found
        except MelismaError:
            return 0

    def wait_for(self, name: str, updates: int) -> None:
        limit = time.monotonic() + 30
        while self.updates(name) < updates:
            assert time.monotonic() < limit, f"{name} did not get that far"
            time.sleep(0.02)

    def end(self) -> None:
        for stop in self._stops:
            stop.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def party(place: Path) -> Iterator[Party]:
    found = Party()
    yield found
    found.end()


def test_nodes_find_each_other_by_addresses(party: Party, place: Path) -> None:
    numbers = [
        party.start(party.setting("a", "b", part=0, parts=2, folder=str(place))),
        party.start(party.setting("b", "a", part=1, parts=2, folder=str(place))),
    ]
    for number in numbers:
        report = party.report(number)
        assert (report.outcome, report.steps, report.updates) == ("done", 200, 10)
        assert report.accuracy is not None
        assert report.accuracy > 0.9
    assert {path.name for path in (place / "models").iterdir()} == {
        "a.safetensors",
        "b.safetensors",
    }
    assert any(line.startswith("a at http://127.0.0.1:") for line in party.told)


def test_one_address_is_enough_because_who_is_called_learns_the_others(party: Party) -> None:
    one = party.start(party.setting("a", "b"))
    other = party.start(replace(party.setting("b", "a"), addresses={}))
    assert [party.report(number).outcome for number in (one, other)] == ["done", "done"]
    assert not [line for line in party.told if "lost" in line]


@contextlib.contextmanager
def board(**said: Any) -> Iterator[str]:
    with axon.board_worker(port=0, **said).start() as address:
        yield address


def test_nodes_find_each_other_by_a_notice_board_and_give_up_whom_nobody_knows(
    party: Party,
) -> None:
    with board(token="pin") as address:
        said = {"board": address, "token": "pin"}
        one = party.start(party.setting("a", "b", "ghost", **said))
        other = party.start(party.setting("b", "a", **said))
        reports = [party.report(number) for number in (one, other)]
    assert [report.outcome for report in reports] == ["done", "done"]
    assert any(
        "ghost is lost; training continues without it" in line for line in reports[0].notices
    )
    assert (reports[0].started_s or 0.0) >= PATIENCE_S
    assert "a: ghost is lost; training continues without it" in party.told
    # The other one waited for a, which is there, and lost nobody.
    assert reports[1].notices == []


def test_nodes_find_each_other_by_discovery(party: Party) -> None:
    if importlib.util.find_spec("zeroconf") is None:
        pytest.skip("the package zeroconf is not installed")
    probe = f"melisma-probe-{time.time_ns()}"
    with axon.Worker(port=0, name=probe, announce=True).start():
        if probe not in [found.name for found in axon.discover(1.0)]:
            pytest.skip("multicast DNS does not get through on this machine")
    one, other = (f"melisma-{name}-{time.time_ns()}" for name in "ab")
    said = {"discover": True, "patience_s": 10.0}
    numbers = [
        party.start(party.setting(one, other, **said)),
        party.start(party.setting(other, one, **said)),
    ]
    assert [party.report(number).outcome for number in numbers] == ["done", "done"]
    assert not [line for line in party.told if "lost" in line]


def test_of_two_nodes_with_one_name_the_second_is_refused(party: Party) -> None:
    one = party.start(party.setting("a", "b", iterations=500, task=SLOW))
    other = party.start(party.setting("b", "a", iterations=500, task=SLOW))
    party.wait_for("b", 2)
    taken = f"http://127.0.0.1:{party.port('b')}"
    second = party.start(replace(party.setting("b", "a", task=SLOW), port=0))
    report = party.report(second)
    assert report.outcome == "failed"
    assert report.reason == f"a rejected this node: the name b is in use by the node at {taken}"
    for number in (one, other):
        assert (party.report(number).outcome, party.report(number).steps) == ("done", 500)


def test_nor_by_a_notice_board(party: Party) -> None:
    with board() as address:
        settings = [
            party.setting(*names, board=address, iterations=10**6) for names in ("ab", "ba")
        ]
        both = [party.start(setting) for setting in settings]
        while not any(_updates(each.address) for each in axon.workers(address)):
            assert not party.ended
            time.sleep(0.05)
        found = party.report(party.start(party.setting("a", "b", board=address)))
        assert found.outcome == "failed"
        assert "the name a is in use by the node at" in found.reason
        assert [party.stop(each).outcome for each in both] == ["cancelled"] * 2


def _updates(address: str) -> int:
    with axon.connect(address, deadline_s=5) as node:
        return int(node.progress()["updates"])


def test_different_models_at_two_ends_are_named_and_the_others_go_on(party: Party) -> None:
    wide = replace(TASK, model_args={"width": 32})
    numbers = [
        party.start(party.setting("a", "b", "c")),
        party.start(party.setting("b", "a")),
        party.start(party.setting("c", "a", task=wide)),
    ]
    a, b, c = (party.report(number) for number in numbers)
    assert (a.outcome, b.outcome, c.outcome) == ("done", "done", "failed")
    assert (a.steps, b.steps) == (200, 200)
    here, there = "net:Net of 114 parameters", "net:Net of 226 parameters"
    assert all(model in c.reason for model in (here, there))
    assert any(f"model here is {here}, there {there}" in line for line in a.notices + b.notices)


def test_a_wrong_token_is_refused_clearly_and_the_others_go_on(party: Party) -> None:
    numbers = [
        party.start(party.setting("a", "b", "c", token="right")),
        party.start(party.setting("b", "a", token="right")),
        party.start(party.setting("c", "a", token="wrong")),
    ]
    a, b, c = (party.report(number) for number in numbers)
    assert (a.outcome, b.outcome, c.outcome) == ("done", "done", "failed")
    assert c.reason.startswith("a rejected this node: ")
    assert "token" in c.reason
    assert any("c" in line.partition(" s: ")[2] for line in a.notices)


def test_who_comes_back_catches_up_from_a_neighbour(party: Party) -> None:
    said = {
        "iterations": 400,
        "algorithm": LocalSgd(learning_rate=0.05, steps=20, max_lag=0),
        "task": SLOW,
    }
    one = party.start(party.setting("a", "b", **said))
    first = party.start(party.setting("b", "a", **said))
    party.wait_for("b", 5)
    before = party.stop(first)
    assert (before.outcome, before.reason) == ("cancelled", "interrupted")
    again = party.report(party.start(party.setting("b", "a", **said)))
    assert (again.outcome, again.model_from, again.steps) == ("done", "a", 400)
    assert again.samples <= (400 - 5 * 20) * 16
    assert again.incarnation > before.incarnation
    assert party.report(one).outcome == "done"
    assert party.report(one).last_update == again.last_update == 20


def test_a_part_that_is_not_there_is_refused() -> None:
    setting = NodeConfig(name="a", settings=PeerSettings(TASK, ROUNDS, 1), part=2, parts=2)
    with pytest.raises(SettingError, match="part 2 of 2; expected 0 to 1"):
        run_node(setting)


# Messages.


def test_what_waits_for_one_that_is_gone_is_not_tried_one_by_one() -> None:
    """Each would take as long as patience lasts."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        nobody = f"http://127.0.0.1:{found.getsockname()[1]}"
    post = Messenger("a", "1", None, 0.3, {"b": nobody})
    for _ in range(100):
        post.send("b", messages.Heartbeat(sender="a", incarnation="1"))
    began = time.monotonic()
    post.flush(threading.Event(), 1.0)
    assert time.monotonic() - began < 10
    news = post.events.get_nowait()
    assert isinstance(news, NeighbourUnreachable)
    assert news.name == "b"
    assert news.reason
    assert post.sent_messages == 0


def test_a_message_that_is_none_is_refused_and_so_is_ones_own_name() -> None:
    post = Messenger("a", "1", None, 0.3, {}, address="http://here:1")
    assert post.deliver(b"\xff", "http://there:1").startswith("invalid message: ")
    content = b"\x83\xa4type\xa9Heartbeat\xa6sender\xa1a\xabincarnation\xa12"
    assert (
        post.deliver(content, "http://there:1")
        == "the name a is in use by the node at http://here:1"
    )
    with pytest.raises(Empty):
        post.events.get_nowait()
    assert post.deliver(content.replace(b"\xa1a\xab", b"\xa1b\xab"), "http://there:1") == ""
    assert post.events.get_nowait() == MessageReceived(
        messages.Heartbeat(sender="b", incarnation="2")
    )
    assert post.address_of("b") is None

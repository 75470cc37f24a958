"""Nodes that are killed and started again: each resumes from its own state on disk."""

import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_task

from melisma.errors import DataError, SettingError
from melisma.fleet.task import Task
from melisma.live.peer import local_group
from melisma.live.peer.local_group import PeerObserver, resume_peers, run_peers
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_process import run_node
from melisma.live.peer.node_runner import Progress
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.group import Peers, PeerSettings
from melisma.peer.topologies import topology_for
from melisma.runs.interruption import Cancellation
from melisma.runs.peer_report import NodeReport
from tests.live.child_process import launched_processes, start_process
from tests.live.peer.tiny_net import SLOW, TASK

PATIENCE_S = 120.0
"""A process starts in this time on a busy machine."""
END_S = 300.0
TOKEN = "the token of the process that started the nodes"


class NodeProcesses:
    """A ring of nodes, each a process of its own with a folder and an address of its own."""

    def __init__(self, folder: Path, settings: PeerSettings, nodes: int) -> None:
        self.folder, self.settings, self.nodes = folder, settings, nodes
        self.names = [f"n{number}" for number in range(nodes)]
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in self.names]
        self.ports = [server.getsockname()[1] for server in servers]
        for server in servers:
            server.close()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def config(self, number: int) -> NodeConfig:
        near = [(number - 1) % self.nodes, (number + 1) % self.nodes]
        return NodeConfig(
            name=self.names[number],
            settings=self.settings,
            part=number,
            parts=self.nodes,
            neighbours=tuple(self.names[each] for each in near),
            addresses={self.names[each]: f"http://127.0.0.1:{self.ports[each]}" for each in near},
            port=self.ports[number],
            control_token=TOKEN,
            module_folders=(str(self.folder),),
            folder=str(self.folder / self.names[number]),
        )

    def start(self, number: int) -> None:
        log = self.folder / f"{self.names[number]}.log"
        process = start_process("melisma.live.peer.node_process", self.config(number), log)
        self.processes[number] = process

    def kill_after(self, number: int, steps: int) -> None:
        """Wait until a node has killed itself after this many steps since its start."""
        process = self.processes[number]
        # Renamed, so that the node never reads half of it.
        written = self.folder / "kill"
        written.write_text(str(steps))
        written.rename(self.folder / str(process.pid))
        assert process.wait(END_S) == -signal.SIGKILL
        process.communicate()

    def reports(self) -> list[NodeReport]:
        for number, process in self.processes.items():
            assert process.wait(END_S) == 0, (self.folder / f"n{number}.log").read_text()
        return [self.report(number) for number in range(self.nodes)]

    def report(self, number: int) -> NodeReport:
        name = self.names[number]
        path = self.folder / name / "reports" / f"{name}.json"
        return msgspec.json.decode(path.read_bytes(), type=NodeReport)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


def mortal(folder: Path, task: Task, inputs: int, outputs: int) -> Task:
    """Return a task whose nodes are killed after a number of steps."""
    arguments = {"inputs": inputs, "outputs": outputs, "kills": str(folder), "pause_s": 0.002}
    return replace_task(task, model="net:MortalNet", model_args=arguments)


def train_with_kills(group: NodeProcesses, victims: list[int], seed: int) -> list[NodeReport]:
    """Run a group in which nodes are killed at random steps, and started again.

    A node resumes at its latest snapshot, so that each of its processes is killed early enough to
    have steps left.
    """
    rng = random.Random(seed)
    steps = group.settings.iterations // (len(victims) + 1)
    try:
        for number in range(group.nodes):
            group.start(number)
        for victim in victims:
            group.kill_after(victim, rng.randint(1, steps))
            group.start(victim)
        return group.reports()
    finally:
        group.end()


def check_reports(reports: list[NodeReport], iterations: int) -> None:
    """Check that all nodes trained to the end, and that every update was applied once."""
    assert [each.outcome for each in reports] == ["finished"] * len(reports)
    assert [each.steps for each in reports] == [iterations] * len(reports)
    sent = {each.name: each.last_update for each in reports}
    for report in reports:
        assert report.updates == report.last_update
        assert report.updates_applied == {name: sent[name] for name in report.updates_applied}
        assert len(report.updates_applied) == 2
        assert not any("is lost" in line for line in report.notices), report.notices


@pytest.mark.parametrize(
    "algorithm",
    [
        AetSgd(learning_rate=0.05, growth=2.0, max_lag=1),
        GossipSgd(learning_rate=0.05, steps=20),
        EventTriggeredSgd(learning_rate=0.05, coupling=0.1),
    ],
    ids=["aet", "gossip", "event"],
)
def test_killed_nodes_resume_and_every_update_is_applied_once(
    folder: Path, algorithm: Algorithm
) -> None:
    task = mortal(folder, TASK, inputs=4, outputs=2)
    settings = PeerSettings(task, algorithm, 400, patience_s=PATIENCE_S, guard="off")
    reports = train_with_kills(NodeProcesses(folder, settings, 3), [1, 1], seed=1)
    check_reports(reports, 400)
    resumed = [line for line in reports[1].notices if "resumes after" in line]
    assert len(resumed) == 2
    assert "(restart 2)" in resumed[1]
    assert all(each.accuracy is not None and each.accuracy > 0.9 for each in reports)
    # Of the steps before a kill only those since the last snapshot are repeated.
    assert reports[1].samples == reports[0].samples


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_ring_of_five_on_mnist_is_as_accurate_as_undisturbed(folder: Path) -> None:
    (folder / "killed").mkdir()
    task = mortal(folder / "killed", replace_task(TASK, data="mnist"), inputs=784, outputs=10)
    algorithm = AetSgd(learning_rate=0.05, growth=5.0, max_lag=1)
    settings = PeerSettings(task, algorithm, 500, patience_s=PATIENCE_S)
    victims = [2, 2, 4, 2, 0]
    killed = train_with_kills(NodeProcesses(folder / "killed", settings, 5), victims, seed=7)
    check_reports(killed, 500)
    undisturbed = run_peers(Peers(settings, topology_for("ring", 5, 1), "ring"), folder="run")
    check_reports(undisturbed.nodes, 500)
    accuracies = [[each.accuracy or 0.0 for each in nodes] for nodes in (killed, undisturbed.nodes)]
    means = [sum(each) / len(each) for each in accuracies]
    assert abs(means[0] - means[1]) < 0.02
    assert means[1] > 0.8


def test_a_killed_group_resumes_from_its_folder(folder: Path) -> None:
    """The processes are killed at once, as by a power cut; so is the one that started them."""
    settings = PeerSettings(SLOW, LocalSgd(learning_rate=0.05, steps=10), 1500, patience_s=60.0)
    peers = Peers(settings, topology_for("ring", 3, 1), "ring")
    killed: list[str] = []

    def kill_all(progress: Progress) -> None:
        if not killed and len(progress) == 3 and all(each["updates"] for each in progress.values()):
            for process in launched_processes():
                killed.append(process.name())
                os.kill(process.pid, signal.SIGKILL)

    first = run_peers(peers, folder="run", observer=PeerObserver(progress=kill_all))
    assert killed
    assert [node.outcome for node in first.nodes] == ["left"] * 3
    lines: list[str] = []
    report = resume_peers("run", observer=PeerObserver(log=lines.append))
    assert lines == [f"resuming 3 nodes of {folder / 'run'}"]
    check_reports(report.nodes, 1500)
    assert all(node.updates == 150 for node in report.nodes)
    assert all(any("resumes after" in line for line in node.notices) for node in report.nodes)
    # A group that has finished reports again.
    again = resume_peers("run")
    assert [node.updates_applied for node in again.nodes] == [
        node.updates_applied for node in report.nodes
    ]
    assert again.succeeded


def test_an_interrupted_group_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Cancellation] = []

    class Recorded(Cancellation):
        def __init__(self) -> None:
            super().__init__()
            created.append(self)

    def interrupt(progress: Progress) -> None:
        if len(progress) == 3 and all(each["updates"] for each in progress.values()):
            created[0].request()

    monkeypatch.setattr(local_group, "Cancellation", Recorded)
    settings = PeerSettings(SLOW, LocalSgd(learning_rate=0.05, steps=10), 1500, patience_s=60.0)
    peers = Peers(settings, topology_for("ring", 3, 1), "ring")
    first = run_peers(peers, folder="run", observer=PeerObserver(progress=interrupt))
    assert [node.outcome for node in first.nodes] == ["cancelled"] * 3
    report = resume_peers("run")
    check_reports(report.nodes, 1500)


# One node.


@pytest.fixture
def alone(folder: Path) -> NodeConfig:
    settings = PeerSettings(TASK, LocalSgd(learning_rate=0.05, steps=20), 300)
    return NodeConfig(name="n0", settings=settings, folder=str(folder / "node"))


def interrupt_after(config: NodeConfig, steps: int) -> NodeReport:
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        if progress[config.name]["steps"] >= steps:
            stop.set()

    slow = msgspec.structs.replace(config, settings=replace(config.settings, task=SLOW))
    return run_node(slow, stop=stop, progress=watch)


def test_a_node_that_resumes_ends_with_the_same_model_bit_for_bit(
    alone: NodeConfig, folder: Path
) -> None:
    undisturbed = msgspec.structs.replace(alone, folder=str(folder / "undisturbed"))
    slow = replace(alone.settings, task=SLOW)
    expected = run_node(msgspec.structs.replace(undisturbed, settings=slow))
    first = interrupt_after(alone, 1)
    assert first.outcome == "cancelled"
    assert 0 < first.steps < 300
    lines: list[str] = []
    report = run_node(msgspec.structs.replace(alone, settings=slow), lines.append)
    assert any(line.startswith("n0 resumes after ") for line in lines)
    assert (report.outcome, report.samples) == ("finished", expected.samples)
    models = [folder / name / "models" / "n0.safetensors" for name in ("node", "undisturbed")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_a_folder_in_use_is_refused(alone: NodeConfig) -> None:
    stop, begun, errors = threading.Event(), threading.Event(), list[str]()

    def second(_: Progress) -> None:
        if not begun.is_set():
            begun.set()
            with pytest.raises(SettingError) as caught:
                run_node(alone)
            errors.append(str(caught.value))
            stop.set()

    config = msgspec.structs.replace(alone, settings=replace(alone.settings, task=SLOW))
    run_node(config, stop=stop, progress=second)
    in_use = f"node n0 of {alone.folder} is in use by another process"
    assert errors == [f"{in_use}; wait until it has ended, or use another folder"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 400}, "iterations is 400, but the state of node n0 in "),
        ({"algorithm": LocalSgd(learning_rate=0.1, steps=20)}, "settings is "),
        ({"algorithm": AetSgd()}, "algorithm is aet, but"),
    ],
)
def test_other_options_than_at_the_first_start_are_refused(
    alone: NodeConfig, change: Any, message: str
) -> None:
    run_node(alone)
    other = msgspec.structs.replace(alone, settings=replace(alone.settings, **change))
    with pytest.raises(SettingError) as caught:
        run_node(other)
    assert message in str(caught.value)
    assert "use the options of the first start, or another folder" in str(caught.value)


def test_a_node_without_state_starts_anew(alone: NodeConfig, folder: Path) -> None:
    config = msgspec.structs.replace(alone, keep_state=False)
    assert run_node(config).samples == run_node(config).samples
    assert not (folder / "node" / "state").exists()


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2000000", "tmpfs", str(folder)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this root may not mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_node_on_a_full_disk_leaves_and_resumes_when_there_is_space(
    alone: NodeConfig, small_disk: Path
) -> None:
    filler = small_disk / "filler"

    def fill(progress: Progress) -> None:
        if progress["n0"]["steps"] and not filler.exists():
            with pytest.raises(OSError, match="No space left"), filler.open("wb") as file:
                file.write(bytes(4_000_000))

    # Snapshots of a node without neighbours are due after a while, and at its end.
    slow = replace(alone.settings, task=SLOW, iterations=600)
    config = msgspec.structs.replace(alone, settings=slow, folder=str(small_disk / "node"))
    with pytest.raises(DataError) as caught:
        run_node(config, progress=fill)
    problem = f"cannot write the state of n0 to {config.folder}: No space left on device; the node "
    assert str(caught.value).startswith(problem)
    assert str(caught.value).endswith(" steps: free some space, and start it again to resume")
    filler.unlink()
    report = run_node(config)
    assert (report.outcome, report.steps) == ("finished", 600)

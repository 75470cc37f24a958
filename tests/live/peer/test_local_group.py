"""`run_peers`: nodes as processes of this machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from melisma.errors import MelismaWarning
from melisma.live.peer import local_group
from melisma.live.peer.group_record import GroupRecord
from melisma.live.peer.local_group import PeerObserver, run_peers
from melisma.live.peer.node_runner import Progress
from melisma.peer.algorithms import AetSgd, Algorithm, LocalSgd
from melisma.peer.group import Peers, PeerSettings
from melisma.peer.topologies import topology_for
from melisma.runs.interruption import Cancellation
from melisma.runs.peer_report import PeerReport
from melisma.simulation.peers.peer_simulation import simulate_peers
from tests.live.child_process import launched_processes
from tests.live.peer.tiny_net import TASK


def run(
    algorithm: Algorithm, topology: str, nodes: int, iterations: int, **options: Any
) -> PeerReport:
    patience_s, task = options.pop("patience_s", 10.0), options.pop("task", TASK)
    settings = PeerSettings(task, algorithm, iterations, patience_s=patience_s)
    peers = Peers(settings, topology_for(topology, nodes, 1), topology)
    return run_peers(peers, folder="run", **options)


def test_a_run_of_processes_ends_with_models_reports_and_a_picture(folder: Path) -> None:
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
        assert (node.outcome, node.steps, node.updates) == ("finished", 300, 8)
        # 8 updates of 114 numbers to each of 2 neighbours, and the handshake.
        assert node.messages >= 2 * 8 + 4
        assert 16 * 4 * 114 < node.sent_bytes < 32 * 4 * 114
        assert node.samples == 300 * 16 - 8 * (300 // 13)
        assert len(node.scores) > 1
        assert node.started_s is not None
    models = sorted(path.name for path in (folder / "run" / "models").iterdir())
    assert models == ["n0.safetensors", "n1.safetensors", "n2.safetensors"]
    model = load_file(folder / "run" / "models" / "n0.safetensors")
    assert sum(array.size for array in model.values()) == 114
    assert (folder / "run" / "picture.svg").read_text().startswith("<svg")
    report_json = json.loads((folder / "run" / "reports" / "n2.json").read_text())
    assert report_json["updates"] == 8
    assert all(set(each) <= {"n0", "n1", "n2"} for each in seen)
    assert launched_processes() == []


def test_ctrl_c_keeps_the_models_of_all_nodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Cancellation] = []

    class Recorded(Cancellation):
        def __init__(self) -> None:
            super().__init__()
            created.append(self)

    def interrupt(progress: Progress) -> None:
        if len(progress) == 3 and all(each["steps"] for each in progress.values()):
            created[0].request()

    monkeypatch.setattr(local_group, "Cancellation", Recorded)
    said: list[str] = []
    observer = PeerObserver(log=said.append, progress=interrupt)
    report = run(AetSgd(learning_rate=0.1), "ring", 3, 10**7, observer=observer)
    assert [node.outcome for node in report.nodes] == ["cancelled"] * 3
    assert all(node.steps and node.accuracy is not None for node in report.nodes)
    models = sorted(path.name for path in (folder / "run" / "models").iterdir())
    assert models == ["n0.safetensors", "n1.safetensors", "n2.safetensors"]
    assert "interrupted: each node saves its model and its report" in said


def no_picture(*_: object) -> Any:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_costs_neither_models_nor_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerReport, "plot", no_picture)
    with pytest.warns(MelismaWarning, match=r"cannot draw .*picture\.svg: ZeroDivisionError"):
        report = run(AetSgd(learning_rate=0.1), "ring", 1, 30)
    assert report.succeeded
    assert (folder / "run" / "models" / "n0.safetensors").is_file()
    assert not (folder / "run" / "picture.svg").exists()


def test_one_live_node_equals_the_simulated_one_bit_for_bit(folder: Path) -> None:
    """The simulated node is plain SGD."""
    alone = Peers(
        PeerSettings(TASK, AetSgd(learning_rate=0.1), 300), topology_for("ring", 1, 1), "ring"
    )
    live = run_peers(alone, folder="live")
    simulated = simulate_peers(alone, folder="simulated")
    assert live.succeeded
    live_model, simulated_model = (
        folder / name / "models" / "n0.safetensors" for name in ("live", "simulated")
    )
    assert live_model.read_bytes() == simulated_model.read_bytes()
    assert live.nodes[0].accuracy == simulated.nodes[0].accuracy
    assert live.nodes[0].samples == simulated.nodes[0].samples


def test_the_others_train_to_the_end_when_a_node_is_killed(folder: Path) -> None:
    """Steps are slow until the kill, so that no node has ended by then on a busy machine.

    The patience is short, since the others wait that long for the killed node. A neighbour that
    answers too late before the kill is found again.
    """
    hold, updated, log = folder / "hold", set[str](), list[str]()
    hold.touch()

    def kill_one(progress: Progress) -> None:
        updated.update(name for name, each in progress.items() if each["updates"])
        if len(updated) == 3 and hold.exists():
            launched_processes()[1].kill()
            hold.unlink()

    report = run(
        LocalSgd(learning_rate=0.05, steps=2),
        "line",
        3,
        500,
        patience_s=1.0,
        observer=PeerObserver(log=log.append, progress=kill_one),
        task=replace(TASK, model_args={"slow_file": str(hold)}),
    )
    assert not hold.exists()
    assert [node.outcome for node in report.nodes] == ["finished", "left", "finished"]
    assert "its process was killed (signal 9)" in report.nodes[1].reason
    assert report.parts == [["n0"], ["n2"]]
    assert not report.succeeded
    assert "the topology falls into 2 parts: n0; n2" in log
    for index in (0, 2):
        node = report.nodes[index]
        assert node.steps == 500
        assert any("n1 is lost; no neighbour is left" in line for line in node.notices)
        assert node.accuracy is not None
        assert node.accuracy > 0.9


def test_nodes_begin_when_all_are_up_or_have_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PeerSettings(TASK, LocalSgd(learning_rate=0.05, steps=20), 10)
    peers = Peers(settings, topology_for("ring", 3, 1), "ring")
    record = GroupRecord(
        peers=peers,
        file=None,
        score_every=0,
        tls=False,
        token="",
        private_keys=[],
        start_unix_s=0.0,
    )
    group = local_group._Run(record, folder, (), True, PeerObserver())
    assert not group._all_up([])
    assert not group._all_up(["n0", "n2"])
    assert group._all_up(["n0", "n1", "n2"])
    group._on_exit(1, "killed")
    assert not group._all_up(["n0"])
    assert group._all_up(["n0", "n2"])
    monkeypatch.setattr(local_group, "START_LIMIT_S", -1.0)
    assert group._all_up([])

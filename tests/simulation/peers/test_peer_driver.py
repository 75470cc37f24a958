"""Nodes without an orchestrator in virtual time: what holds, whatever is late or goes wrong."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from melisma.errors import MelismaWarning
from melisma.fleet.rng import generator
from melisma.fleet.task import Sizes, Task
from melisma.learning.loaded_task import gathered
from melisma.learning.pytorch.models import shaped
from melisma.learning.pytorch.torch_trainer import TorchTrainer, batches
from melisma.learning.steps import NoSteps, Steps
from melisma.peer import commands, notices
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.difference_node import DifferenceNode
from melisma.peer.group import Peers, PeerSettings, partition_samples, take_samples
from melisma.peer.node import Node, Outputs
from melisma.peer.topologies import line, topology_for
from melisma.peer.topology import Topology
from melisma.runs.peer_report import PeerReport
from melisma.simulation.faults import format_faults, parse_faults, random_faults
from melisma.simulation.invariants import InvariantError
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver
from melisma.simulation.peers.peer_invariants import PeerInvariants
from melisma.simulation.peers.peer_scenario import PeerScenario
from melisma.simulation.peers.peer_simulation import (
    PeerOptions,
    create_scenario,
    simulate_peers,
)
from tests.peer.simulated_group import SimulatedGroup, create_peers, run_checked
from tests.peer.tiny_nodes import INITIAL, TASK, IntegerSteps

BLOBS = Task(
    name="blobs",
    model="mlp",
    data="tests.live.tiny_task:blobs",
    deadline_s=1.0,
    batch=16,
    model_args={"layers": [4, 16, 2]},
    sizes=Sizes(samples=600, sample_bytes=16, model_bytes=4 * 114, sample_ops=600),
)
TIMING = PeerOptions(work="timing")
HEAVY = Delays(drawn="round", tail=1.1)
KINDS = {
    "iteration": Delays(),
    "round": Delays(drawn="round"),
    "node": Delays(drawn="node"),
    "heavy tail": HEAVY,
}
ALGORITHMS: dict[str, Algorithm] = {
    "aet": AetSgd(learning_rate=0.3),
    "local": LocalSgd(learning_rate=0.3, steps=20),
    "event": EventTriggeredSgd(learning_rate=0.3, coupling=0.1),
    "gossip": GossipSgd(learning_rate=0.3, steps=5),
}


# One node.


@pytest.mark.parametrize(
    "said",
    [
        AetSgd(learning_rate=0.1, decay=0.0, gain=1.05),
        LocalSgd(learning_rate=0.1, decay=0.0, gain=1.05, steps=70),
        GossipSgd(learning_rate=0.1, decay=0.05, steps=7),
    ],
)
def test_one_node_is_plain_sgd_bit_for_bit(
    said: AetSgd | LocalSgd | GossipSgd, tmp_path: Path
) -> None:
    alone = create_peers(said, "ring", 1, 300, task=BLOBS)
    report = simulate_peers(alone, folder=tmp_path / "run")
    (node,) = report.nodes
    assert (node.outcome, node.steps, node.messages, node.waiting_s) == ("done", 300, 0, 0.0)
    assert node.samples == sum(min(16, 600 - 16 * (step % 38)) for step in range(300))
    found = load_file(tmp_path / "run" / "models" / "n0.safetensors")
    expected = sgd(said, 300)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert report.accuracy > 0.9


def no_picture(*_: object) -> Any:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_costs_neither_models_nor_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerReport, "plot", no_picture)
    with pytest.warns(MelismaWarning, match=r"cannot draw .*picture\.svg: ZeroDivisionError"):
        report = simulate_peers(
            create_peers(AetSgd(learning_rate=0.1), "ring", 1, 30, task=BLOBS), folder=tmp_path
        )
    assert report.succeeded
    assert report.folder == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def sgd(said: AetSgd | LocalSgd | GossipSgd, steps: int) -> dict[str, Any]:
    """By `torch.optim.SGD`, on the same batches, with the step sizes that are to be."""
    material = gathered(BLOBS)
    trainer = TorchTrainer(BLOBS)
    order = partition_samples(BLOBS, material.data.train.labels, 1)[0]
    x, y = trainer.tensors(take_samples(material.data.train, order))
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    turns = batches(len(y), 99, BLOBS.batch, generator(BLOBS.seed, "peer", 1, 0))
    number, left = 0, 0
    for step in range(steps):
        if not left:
            number, left = number + 1, 10 * (number + 1) if isinstance(said, AetSgd) else said.steps
            optimizer.param_groups[0]["lr"] = said.learning_rate / (1 + said.decay * step**0.5)
        left, batch = left - 1, next(turns)
        optimizer.zero_grad()
        trainer.loss(trainer.model(shaped(x[batch])), y[batch]).backward()
        optimizer.step()
    return {name: each.detach().numpy() for name, each in trainer.model.state_dict().items()}


# All that learn.


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("compression", ["none", "q8"])
def test_every_algorithm_trains_good_models_at_all_nodes(name: str, compression: str) -> None:
    asked = create_peers(
        ALGORITHMS[name], nodes=3, iterations=200, task=BLOBS, compression=compression
    )
    report = simulate_peers(asked, PeerOptions(score_every=100))
    assert report.succeeded
    for node in report.nodes:
        assert node.accuracy is not None
        # Who tells little at few of its steps learns less of the others in so few.
        assert node.accuracy > (0.8 if name == "event" else 0.9)
        assert node.model_from == ""
        assert node.samples > 200 * 15
        assert [score.steps for score in node.scores][-1] == 200
        assert len(node.scores) > 1
    assert report.parts == [["n0", "n1", "n2"]]


def test_the_same_seed_gives_the_same_report_byte_for_byte() -> None:
    def told(**said: Any) -> bytes:
        asked = create_peers(
            AetSgd(learning_rate=0.1, max_lag="auto"), iterations=200, task=BLOBS, patience_s=0.05
        )
        options = PeerOptions(delays=HEAVY, faults=said.pop("faults", 7), score_every=50)
        return msgspec.json.encode(simulate_peers(asked, options).as_dict())

    assert told() == told()
    assert told() == told(faults="7")
    assert told() != told(faults=8)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_timing_tells_the_same_times_as_training(name: str) -> None:
    """For those whose messages depend on nothing that is compute."""
    found = []
    for work in ("timing", "train"):
        asked = create_peers(ALGORITHMS[name], nodes=3, iterations=100, task=BLOBS)
        report = simulate_peers(asked, PeerOptions(work=work))
        found.append(
            [
                (node.steps, node.updates, node.messages, node.compute_spans_s)
                for node in report.nodes
            ]
        )
    if name == "event":
        assert [node[0] for node in found[0]] == [node[0] for node in found[1]]
    else:
        assert found[0] == found[1]


def test_a_report_is_json_with_no_number_that_is_none() -> None:
    plain = simulate_peers(create_peers(AetSgd()), TIMING).as_dict()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again["nodes"][0]["accuracy"] is None
    assert again["accuracy"] is None
    assert again["total"]["steps"] == 3000
    assert again["parts"] == [["n0", "n1", "n2", "n3", "n4"]]


# What is groupd.


@pytest.mark.parametrize("seed", range(12))
def test_over_all_delays_and_losses_every_update_counts_exactly_once(seed: int) -> None:
    """Not by the invariants, but by the models themselves: no number is rounded here."""
    rng = np.random.default_rng(seed)
    shape, nodes = str(rng.choice(["ring", "line", "star", "complete"])), int(rng.integers(2, 6))
    said: list[Algorithm] = [
        AetSgd(learning_rate=0.5, decay=0.0, gain=1.0, max_lag=int(rng.integers(4))),
        LocalSgd(learning_rate=0.5, decay=0.0, gain=1.0, steps=9),
    ]
    some = random_faults(rng, nodes, 0.3, most=30)
    harmless = tuple(each for each in some if each.kind not in ("crash", "vanish", "corrupt"))
    group = SimulatedGroup(
        said[seed % 2], shape, nodes, iterations=200, faults=harmless, delays=Delays(seed=seed)
    )
    assert {each.outcome for each in group.run()} == {"done"}
    for name, steps in group.steps.items():
        others = group.peers.topology.neighbours(name)
        expected = INITIAL - sum(group.own_change(each) for each in (name, *others))
        assert np.array_equal(steps.vector, expected), (name, format_faults(harmless))


@pytest.mark.parametrize("compression", ["none", "q8", "q4", "topk:0.1"])
@pytest.mark.parametrize(
    "said", [GossipSgd(learning_rate=0.1), EventTriggeredSgd(learning_rate=0.1, threshold=2.0)]
)
@pytest.mark.parametrize("seed", range(3))
def test_both_ends_have_the_same_copy_of_a_model_bit_for_bit(
    compression: str, said: Algorithm, seed: int
) -> None:
    slow = Delays(message_s=(1e-4, 2e-2), seed=seed)
    group = SimulatedGroup(
        said, "ring", 4, iterations=60, compression=compression, size=300, delays=slow
    )
    group.run()
    for node, other in group.peers.topology.edges:
        for here, there in ((node, other), (other, node)):
            sender = group.nodes[there]
            assert isinstance(sender, DifferenceNode)
            assert sender.update_number > 2
            estimate = group.nodes[here].neighbours[there].model
            assert estimate is not None
            assert estimate.tobytes() == sender.own_public.tobytes()
            assert group.nodes[here].neighbours[there].pending == {}


@pytest.mark.parametrize("shape", ["ring", "line", "star", "complete", "small-world:2,0.3"])
@pytest.mark.parametrize("compression", ["none", "q8"])
def test_gossip_leaves_the_mean_of_all_models_where_gradients_led_it(
    shape: str, compression: str
) -> None:
    """And models agree at last, when there are no more gradients."""
    said = GossipSgd(learning_rate=0.5, decay=0.0, mixing=1.0 if compression == "none" else 0.5)
    group = SimulatedGroup(said, shape, 5, iterations=90, compression=compression, gradient_steps=5)
    group.run()
    models = np.array([steps.vector for steps in group.steps.values()], np.float64)
    moved = np.array([group.own_change(name) for name in group.steps])
    assert np.abs(moved - moved.mean(axis=0)).max() > 5
    np.testing.assert_allclose(models.mean(axis=0), INITIAL - moved.mean(axis=0), atol=1e-3)
    assert np.abs(models - models.mean(axis=0)).max() < 0.05


# Lock-step, and how long it takes.


@pytest.mark.parametrize("shape", ["ring", "star", "complete", "line"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("said", [AetSgd(max_lag=0), GossipSgd(steps=20)])
def test_without_lag_neighbours_are_in_lock_step(shape: str, kind: str, said: Algorithm) -> None:
    asked = create_peers(said, shape)
    reached = dict.fromkeys(asked.topology.names, 0)

    def look(name: str, at_s: float, node: Node, emitted: Outputs) -> None:
        invariants.observe(name, at_s, node, emitted)
        reached[name] = node.update_number
        assert all(abs(reached[a] - reached[b]) <= 1 for a, b in asked.topology.edges)

    invariants = PeerInvariants()
    scene = create_scenario(asked, replace(TIMING, delays=KINDS[kind]))
    invariants.check_end(PeerDriver(scene, look).run())
    assert invariants.largest_lag == 0
    assert min(reached.values()) == max(reached.values()) > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "seed"), [("ring", 0), ("ring", 1), ("ring", 2), ("star", 3)])
def test_a_larger_lag_is_never_slower(kind: str, seed: int, shape: str) -> None:
    seconds, farthest = [], []
    for lag in range(5):
        asked = create_peers(AetSgd(max_lag=lag), shape, iterations=800)
        delays = msgspec.structs.replace(KINDS[kind], seed=seed)
        nodes, invariants = run_checked(create_scenario(asked, replace(TIMING, delays=delays)))
        seconds.append(PeerReport.of(asked, nodes, simulated=True).seconds)
        farthest.append(invariants.largest_lag)
    assert all(later <= before for before, later in pairwise(seconds)), seconds
    assert all(far <= lag for lag, far in enumerate(farthest))
    if kind != "node":
        # A node that is always the slowest is waited for in any case.
        assert seconds[-1] < seconds[0]
    assert farthest[1] == 1


# Choosing the lag.


def test_the_lag_that_is_chosen_is_in_the_report_and_within_the_bound() -> None:
    asked = create_peers(AetSgd(max_lag="auto"), nodes=3, iterations=60_000)
    for node in simulate_peers(asked, TIMING).nodes:
        assert node.updates == len(node.allowed_lags) == len(node.chosen_lags) == 110
        assert node.allowed_lags[-1] == 7
        assert all(
            lag <= most for lag, most in zip(node.chosen_lags, node.allowed_lags, strict=True)
        )
    said = simulate_peers(create_peers(AetSgd(max_lag=3)), TIMING)
    assert said.nodes[0].chosen_lags == []


def test_slower_messages_have_a_larger_lag_chosen() -> None:
    found = []
    for message_s in (1e-4, 2e-2, 8e-2):
        delays = Delays(step_s=(5e-4, 5e-4), message_s=(message_s, message_s))
        asked = create_peers(LocalSgd(max_lag="auto", steps=20), nodes=3, iterations=600)
        nodes, invariants = run_checked(create_scenario(asked, replace(TIMING, delays=delays)))
        found.append(nodes[0].chosen_lags[-1])
        assert invariants.largest_lag <= max(nodes[0].chosen_lags)
    # Rounds take 10 ms: what is late by 20 needs 2, what is late by 80 needs 8.
    assert found == [1, 2, 8]


def test_a_chosen_lag_is_nearly_as_quick_as_the_best_one() -> None:
    def seconds(lag: Any) -> float:
        asked = create_peers(LocalSgd(max_lag=lag, steps=20), nodes=5, iterations=2000)
        delays = Delays(message_s=(2e-2, 4e-2))
        options = replace(TIMING, delays=delays)
        return simulate_peers(asked, options).seconds

    assert seconds("auto") < 1.1 * seconds(10) < 0.7 * seconds(0)


# Leaving, coming back, joining.


def faulty(said: Algorithm, faults: str, **more: Any) -> PeerReport:
    comes_s = more.pop("comes_s", {})
    asked = create_peers(said, **({"patience_s": 0.05, "iterations": 1000} | more))
    return simulate_peers(asked, replace(TIMING, faults=faults, joins_s=comes_s))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_leaves_is_missed_and_the_rest_goes_on(name: str) -> None:
    report = faulty(ALGORITHMS[name], "crash 2 at 0.1")
    outcomes = [node.outcome for node in report.nodes]
    assert outcomes == ["done", "done", "gone", "done", "done"]
    assert report.nodes[2].reason == "it crashed"
    assert report.nodes[2].steps < 1000
    for near in (1, 3):
        assert any(
            "n2 is lost; training continues without it" in line
            for line in report.nodes[near].notices
        )
    assert not any("lost" in line for place in (0, 4) for line in report.nodes[place].notices)
    assert [node.steps for node in report.nodes if node.outcome == "done"] == [1000] * 4
    # A ring without one is a line, still in one piece.
    assert report.parts == [["n0", "n1", "n3", "n4"]]
    assert not report.succeeded


def test_a_topology_that_falls_apart_is_said() -> None:
    report = faulty(AetSgd(), "crash 2 at 0.1", shape="line")
    assert report.parts == [["n0", "n1"], ["n3", "n4"]]
    star = faulty(AetSgd(), "vanish 0 at 0.1", shape="star", nodes=4)
    assert star.parts == [["n1"], ["n2"], ["n3"]]
    for node in star.nodes[1:]:
        assert any("no neighbour is left" in line for line in node.notices)
        assert (node.outcome, node.steps) == ("done", 1000)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_comes_back_catches_up_from_a_neighbour(name: str) -> None:
    group = SimulatedGroup(
        ALGORITHMS[name],
        "ring",
        4,
        iterations=600,
        patience_s=0.05,
        faults=parse_faults("crash 1 at 0.2 for 0.05", 4),
    )
    reports = group.run()
    back = reports[1]
    assert [each.outcome for each in reports] == ["done"] * 4
    assert back.incarnation == "000002"
    assert back.model_from in ("n0", "n2")
    assert (back.started_s or 0.0) > 0.25
    # It did not begin from the start.
    assert 0 < group.steps["n1"].visits < 500
    assert back.steps == 600
    assert any(f"starts with the model of {back.model_from} after" in line for line in back.notices)
    if name != "event":
        assert {each.last_update for each in reports} == {reports[0].last_update}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_joins_late_begins_where_the_others_are(name: str) -> None:
    group = SimulatedGroup(ALGORITHMS[name], "line", 3, iterations=600, patience_s=0.05)
    scene = PeerScenario(group.peers.topology, group.create_node, joins_s={"n2": 0.2})
    reports, _ = run_checked(scene)
    late = reports[2]
    assert (late.incarnation, late.model_from, late.outcome) == ("000001", "n1", "done")
    assert 0.2 < (late.started_s or 0.0) < 0.26
    assert group.steps["n2"].visits < 550
    assert late.steps == 600
    # n1 did not wait for it longer than its patience was.
    assert (reports[1].started_s or 0.0) < 0.06


def test_the_model_that_is_taken_over_is_the_neighbours_and_its_round_continues() -> None:
    seen: dict[str, Any] = {}
    group = SimulatedGroup(
        AetSgd(learning_rate=0.5, decay=0.0, gain=1.0), "line", 2, iterations=600, patience_s=0.05
    )

    def look(name: str, at_s: float, node: Node, emitted: Outputs) -> None:
        for command in emitted:
            if isinstance(command, commands.Send) and (
                start := getattr(command.message, "training", None)
            ):
                assert start is True
                seen["offer"] = command.message
            if isinstance(command, notices.TrainingStarted) and command.model_from:
                seen["began"] = command
                seen["model"] = node.model.vector.copy()
                seen["next"] = node.computing

    faults = parse_faults("crash 0 at 0.1 for 0.02", 2)
    PeerDriver(PeerScenario(group.peers.topology, group.create_node, faults=faults), look).run()
    offer = seen["offer"]
    assert seen["began"].updates_done == offer.updates_done > 2
    assert seen["model"].tobytes() == offer.model
    assert seen["next"].number == offer.updates_done + 1
    assert seen["next"].steps == 10 * (offer.updates_done + 1)


def test_who_is_alone_at_first_trains_and_the_others_find_it() -> None:
    report = faulty(AetSgd(), "", shape="line", nodes=2, comes_s={"n1": 0.3})
    first, second = report.nodes
    assert report.succeeded
    assert 0.05 <= (first.started_s or 0.0) < 0.06
    assert second.model_from == "n0"


# Faults by chance.


def soaked(seed: int) -> tuple[PeerScenario, dict[str, Node], str]:
    rng = np.random.default_rng(seed)
    shapes = ["ring", "line", "star", "complete", "torus:2x2", "regular:3", "small-world:2,0.5"]
    shape = str(rng.choice(shapes))
    nodes = {"torus:2x2": 4, "regular:3": 4}.get(shape, int(rng.integers(3, 7)))
    topology = topology_for(shape, nodes, seed)
    some: list[Algorithm] = [
        AetSgd(max_lag=int(rng.integers(0, 4)), growth=5.0),
        AetSgd(max_lag="auto", growth=5.0),
        LocalSgd(steps=20, max_lag=int(rng.integers(0, 3))),
        EventTriggeredSgd(),
        GossipSgd(steps=20),
    ]
    said = some[int(rng.integers(5))]
    iterations = 60 if isinstance(said, EventTriggeredSgd) else 300
    step_s = (2e-4, 2e-3) if iterations == 300 else (1e-3, 1e-2)
    group = PeerSettings(TASK, said, iterations, patience_s=0.2)
    made_of: dict[str, Node] = {}

    def made(name: str, life: str) -> tuple[Node, Steps]:
        public = isinstance(said, EventTriggeredSgd | GossipSgd)
        steps: Steps = IntegerSteps(np.random.default_rng(seed)) if public else NoSteps(16, 1000)
        made_of[name] = group.create_node(name, life, topology.neighbours(name), steps)
        return made_of[name], steps

    faults = random_faults(rng, nodes, 0.5)
    late = {topology.names[int(rng.integers(nodes))]: float(rng.uniform(0, 0.4))}
    comes_s = late if rng.random() < 0.3 else {}
    delays = Delays(step_s=step_s, message_s=(1e-3, 3e-2), seed=seed)
    told = f"seed {seed}: {said} on {shape} of {nodes}, {comes_s}: {format_faults(faults)}"
    return PeerScenario(topology, made, delays, faults, comes_s), made_of, told


@pytest.mark.parametrize("first", range(0, 250, 25))
def test_no_schedule_of_faults_stops_training_or_loses_or_doubles_an_update(first: int) -> None:
    for seed in range(first, first + 25):
        scene, made_of, told = soaked(seed)
        try:
            nodes, _ = run_checked(scene)
        except Exception as error:
            error.add_note(told)
            raise
        assert {node.outcome for node in nodes} <= {"done", "gone"}, told
        whole = {node.name for node in nodes if node.outcome == "done"}
        assert all(made_of[name].steps == made_of[name].identity.iterations for name in whole), told
        if "corrupt" not in told:
            for name in whole:
                assert knows_its_neighbours(made_of, name, whole), told


def knows_its_neighbours(made_of: dict[str, Node], name: str, whole: set[str]) -> bool:
    """Of those that it has not given up, it has the model as they told it last, bit for bit."""
    for other in made_of[name].neighbours.values():
        node = made_of[other.name]
        met = other.reachable and other.incarnation == node.identity.incarnation
        if isinstance(node, DifferenceNode) and met and other.name in whole:
            assert other.model is not None
            if other.model.tobytes() != node.own_public.tobytes():
                return False
    return True


def test_nodes_that_wait_for_each_other_are_noticed() -> None:
    """The machines do not; one that is broken would."""
    group = SimulatedGroup(AetSgd(), "line", 2)

    def made(name: str, life: str) -> tuple[Node, Steps]:
        node, steps = group.create_node(name, life)
        node.next_steps = lambda: None  # type: ignore[method-assign]
        return node, steps

    with pytest.raises(InvariantError, match="n0, n1 wait for each other"):
        PeerDriver(PeerScenario(line(2), made)).run()


def test_work_grows_with_nodes_and_edges_only() -> None:
    """No more commands are heard, and no more is held, for each node of a ring that is larger."""
    heard: dict[int, float] = {}
    for nodes in (10, 40):
        count = 0

        def look(*_: Any) -> None:
            nonlocal count
            count += 1

        simulate_peers(create_peers(AetSgd(), nodes=nodes, iterations=200), TIMING, watch=look)
        heard[nodes] = count / nodes
    assert heard[40] == pytest.approx(heard[10], rel=0.05)


def test_topologies_of_ones_own_are_as_good() -> None:
    own = Topology(("left", "right"), (("left", "right"),))
    report = simulate_peers(Peers(PeerSettings(TASK, AetSgd(), 100), own, "own.txt"), TIMING)
    assert [node.name for node in report.nodes] == ["left", "right"]
    assert report.succeeded

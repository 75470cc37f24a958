"""Training without an orchestrator in virtual time, with delays and faults."""

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
from melisma.fleet.task import Task, TaskSizes
from melisma.learning.batches import batch_indices
from melisma.learning.loaded_task import load_task
from melisma.learning.pytorch.models import to_model_input
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.stepper import NullStepper, Stepper
from melisma.peer import commands, notices
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.difference_node import DifferenceNode
from melisma.peer.group import Peers, PeerSettings, partition_samples, take_samples
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.peer.topologies import line, topology_for
from melisma.peer.topology import Topology
from melisma.runs.peer_report import PeerReport
from melisma.simulation.faults import format_faults, parse_faults, random_faults
from melisma.simulation.invariants.violations import InvariantError
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver
from melisma.simulation.peers.peer_invariants import PeerInvariants
from melisma.simulation.peers.peer_scenario import PeerScenario
from melisma.simulation.peers.peer_simulation import (
    PeerOptions,
    create_scenario,
    random_crashes,
    simulate_peers,
)
from tests.lanes import cases
from tests.peer.simulated_group import SimulatedGroup, create_peers, run_checked
from tests.peer.tiny_nodes import INITIAL, TASK, IntegerSteps

BLOBS = Task(
    name="blobs",
    model="mlp",
    data="tests.live.tiny_task:blobs",
    deadline_s=1.0,
    batch=16,
    model_args={"layers": [4, 16, 2]},
    sizes=TaskSizes(samples=600, sample_bytes=24, model_bytes=4 * 114, sample_ops=600),
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
    "algorithm",
    [
        AetSgd(learning_rate=0.1, decay=0.0, gain=1.05),
        LocalSgd(learning_rate=0.1, decay=0.0, gain=1.05, steps=70),
        GossipSgd(learning_rate=0.1, decay=0.05, steps=7),
    ],
)
def test_one_node_is_plain_sgd_bit_for_bit(
    algorithm: AetSgd | LocalSgd | GossipSgd, tmp_path: Path
) -> None:
    alone = create_peers(algorithm, "ring", 1, 300, task=BLOBS)
    report = simulate_peers(alone, folder=tmp_path / "run")
    (node,) = report.nodes
    assert (node.outcome, node.steps, node.messages, node.waiting_s) == ("finished", 300, 0, 0.0)
    assert node.samples == sum(min(16, 600 - 16 * (step % 38)) for step in range(300))
    found = load_file(tmp_path / "run" / "models" / "n0.safetensors")
    expected = sgd(algorithm, 300)
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


def sgd(algorithm: AetSgd | LocalSgd | GossipSgd, steps: int) -> dict[str, Any]:
    """Train with `torch.optim.SGD` on the same batches, at the same learning rates."""
    material = load_task(BLOBS)
    trainer = TorchTrainer(BLOBS)
    order = partition_samples(BLOBS, material.data.train.labels, 1)[0]
    x, y = trainer.tensors(take_samples(material.data.train, order))
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    turns = batch_indices(len(y), 99, BLOBS.batch, generator(BLOBS.seed, "peer", 1, 0))
    number, left = 0, 0
    for step in range(steps):
        if not left:
            number, left = (
                number + 1,
                10 * (number + 1) if isinstance(algorithm, AetSgd) else algorithm.steps,
            )
            optimizer.param_groups[0]["lr"] = algorithm.learning_rate / (
                1 + algorithm.decay * step**0.5
            )
        left, batch = left - 1, next(turns)
        optimizer.zero_grad()
        trainer.loss(trainer.model(to_model_input(x[batch])), y[batch]).backward()
        optimizer.step()
    return {name: each.detach().numpy() for name, each in trainer.model.state_dict().items()}


# All algorithms.


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("compression", ["none", "q8"])
def test_every_algorithm_trains_accurate_models_on_all_nodes(name: str, compression: str) -> None:
    peers = create_peers(
        ALGORITHMS[name], nodes=3, iterations=200, task=BLOBS, compression=compression
    )
    report = simulate_peers(peers, PeerOptions(score_every=100))
    assert report.succeeded
    for node in report.nodes:
        assert node.accuracy is not None
        # Event-triggered nodes send little in so few steps.
        assert node.accuracy > (0.8 if name == "event" else 0.9)
        assert node.model_from == ""
        assert node.samples > 200 * 15
        assert [score.steps for score in node.scores][-1] == 200
        assert len(node.scores) > 1
    assert report.parts == [["n0", "n1", "n2"]]


def test_the_same_seed_gives_the_same_report_byte_for_byte() -> None:
    def report(faults: str | int = 7) -> bytes:
        peers = create_peers(
            AetSgd(learning_rate=0.1, max_lag="auto"), iterations=200, task=BLOBS, patience_s=0.05
        )
        options = PeerOptions(delays=HEAVY, faults=faults, score_every=50)
        return msgspec.json.encode(simulate_peers(peers, options).as_dict())

    first = report()
    assert report() == first
    assert report(faults="7") == first
    assert report(faults=8) != first


@pytest.mark.parametrize("name", ALGORITHMS)
def test_timing_gives_the_same_times_as_training(name: str) -> None:
    """For algorithms whose messages do not depend on the model."""
    found = []
    for work in ("timing", "train"):
        peers = create_peers(ALGORITHMS[name], nodes=3, iterations=100, task=BLOBS)
        report = simulate_peers(peers, PeerOptions(work=work))
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


def test_a_report_is_json_without_nan() -> None:
    plain = simulate_peers(create_peers(AetSgd()), TIMING).as_dict()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again["nodes"][0]["accuracy"] is None
    assert again["accuracy"] is None
    assert again["total"]["steps"] == 3000
    assert again["parts"] == [["n0", "n1", "n2", "n3", "n4"]]


# Updates.


@pytest.mark.parametrize("seed", range(cases(12)))
def test_every_update_counts_exactly_once_under_delays_and_losses(seed: int) -> None:
    """Checked by the models themselves: with integer gradients no sum is rounded."""
    rng = np.random.default_rng(seed)
    shape, nodes = str(rng.choice(["ring", "line", "star", "complete"])), int(rng.integers(2, 6))
    algorithms: list[Algorithm] = [
        AetSgd(learning_rate=0.5, decay=0.0, gain=1.0, max_lag=int(rng.integers(4))),
        LocalSgd(learning_rate=0.5, decay=0.0, gain=1.0, steps=9),
    ]
    faults = random_faults(rng, nodes, 0.3, most=30)
    harmless = tuple(each for each in faults if each.kind not in ("crash", "vanish", "corrupt"))
    group = SimulatedGroup(
        algorithms[seed % 2],
        shape,
        nodes,
        iterations=200,
        faults=harmless,
        delays=Delays(seed=seed),
    )
    assert {each.outcome for each in group.run()} == {"finished"}
    for name, steps in group.steps.items():
        others = group.peers.topology.neighbours(name)
        expected = INITIAL - sum(group.own_change(each) for each in (name, *others))
        assert np.array_equal(steps.vector, expected), (name, format_faults(harmless))


@pytest.mark.parametrize("compression", ["none", "q8", "q4", "topk:0.1"])
@pytest.mark.parametrize(
    "algorithm", [GossipSgd(learning_rate=0.1), EventTriggeredSgd(learning_rate=0.1, threshold=2.0)]
)
@pytest.mark.parametrize("seed", range(cases(3)))
def test_copies_equal_the_public_model_of_their_owner_bit_for_bit(
    compression: str, algorithm: Algorithm, seed: int
) -> None:
    slow = Delays(message_s=(1e-4, 2e-2), seed=seed)
    group = SimulatedGroup(
        algorithm, "ring", 4, iterations=60, compression=compression, size=300, delays=slow
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
def test_gossip_preserves_the_mean_of_all_models(shape: str, compression: str) -> None:
    """Models also agree in the end, when gradients are 0."""
    algorithm = GossipSgd(
        learning_rate=0.5, decay=0.0, mixing=1.0 if compression == "none" else 0.5
    )
    group = SimulatedGroup(
        algorithm, shape, 5, iterations=90, compression=compression, gradient_steps=5
    )
    group.run()
    models = np.array([steps.vector for steps in group.steps.values()], np.float64)
    moved = np.array([group.own_change(name) for name in group.steps])
    assert np.abs(moved - moved.mean(axis=0)).max() > 5
    np.testing.assert_allclose(models.mean(axis=0), INITIAL - moved.mean(axis=0), atol=1e-3)
    assert np.abs(models - models.mean(axis=0)).max() < 0.05


# Lag.


@pytest.mark.parametrize("shape", ["ring", "star", "complete", "line"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", [AetSgd(max_lag=0), GossipSgd(steps=20)])
def test_without_lag_neighbours_are_in_lock_step(
    shape: str, kind: str, algorithm: Algorithm
) -> None:
    peers = create_peers(algorithm, shape)
    reached = dict.fromkeys(peers.topology.names, 0)

    def watch(name: str, at_s: float, node: Node, outputs: Outputs) -> None:
        invariants.observe(name, at_s, node, outputs)
        reached[name] = node.update_number
        assert all(abs(reached[a] - reached[b]) <= 1 for a, b in peers.topology.edges)

    invariants = PeerInvariants()
    scenario = create_scenario(peers, replace(TIMING, delays=KINDS[kind]))
    invariants.check_end(PeerDriver(scenario, watch).run())
    assert invariants.largest_lag == 0
    assert min(reached.values()) == max(reached.values()) > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "seed"), [("ring", 0), ("ring", 1), ("ring", 2), ("star", 3)])
def test_a_larger_lag_is_never_slower(kind: str, seed: int, shape: str) -> None:
    seconds, farthest = [], []
    for lag in range(5):
        peers = create_peers(AetSgd(max_lag=lag), shape, iterations=800)
        delays = msgspec.structs.replace(KINDS[kind], seed=seed)
        nodes, invariants = run_checked(create_scenario(peers, replace(TIMING, delays=delays)))
        seconds.append(PeerReport.from_nodes(peers, nodes, simulated=True).seconds)
        farthest.append(invariants.largest_lag)
    assert all(later <= before for before, later in pairwise(seconds)), seconds
    assert all(far <= lag for lag, far in enumerate(farthest))
    if kind != "node":
        # No lag helps against a node that is always the slowest.
        assert seconds[-1] < seconds[0]
    assert farthest[1] == 1


# Choosing the lag.


def test_the_chosen_lags_are_in_the_report_and_within_the_bound() -> None:
    peers = create_peers(AetSgd(max_lag="auto"), nodes=3, iterations=60_000)
    for node in simulate_peers(peers, TIMING).nodes:
        assert node.updates == len(node.allowed_lags) == len(node.chosen_lags) == 110
        assert node.allowed_lags[-1] == 7
        assert all(
            lag <= most for lag, most in zip(node.chosen_lags, node.allowed_lags, strict=True)
        )
    fixed = simulate_peers(create_peers(AetSgd(max_lag=3)), TIMING)
    assert fixed.nodes[0].chosen_lags == []


def test_slower_messages_lead_to_a_larger_lag() -> None:
    found = []
    for message_s in (1e-4, 2e-2, 8e-2):
        delays = Delays(step_s=(5e-4, 5e-4), message_s=(message_s, message_s))
        peers = create_peers(LocalSgd(max_lag="auto", steps=20), nodes=3, iterations=600)
        nodes, invariants = run_checked(create_scenario(peers, replace(TIMING, delays=delays)))
        found.append(nodes[0].chosen_lags[-1])
        assert invariants.largest_lag <= max(nodes[0].chosen_lags)
    # Rounds take 10 ms: messages of 20 ms need a lag of 2, of 80 ms a lag of 8.
    assert found == [1, 2, 8]


def test_a_chosen_lag_is_nearly_as_fast_as_the_best_one() -> None:
    def seconds(lag: Any) -> float:
        peers = create_peers(LocalSgd(max_lag=lag, steps=20), nodes=5, iterations=2000)
        delays = Delays(message_s=(2e-2, 4e-2))
        options = replace(TIMING, delays=delays)
        return simulate_peers(peers, options).seconds

    assert seconds("auto") < 1.1 * seconds(10) < 0.7 * seconds(0)


# Crashes, returns and joins.


def simulate_with_faults(algorithm: Algorithm, faults: str, **more: Any) -> PeerReport:
    joins_s = more.pop("joins_s", {})
    peers = create_peers(algorithm, **({"patience_s": 0.05, "iterations": 1000} | more))
    return simulate_peers(peers, replace(TIMING, faults=faults, joins_s=joins_s))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_others_continue_after_a_crash(name: str) -> None:
    report = simulate_with_faults(ALGORITHMS[name], "crash 2 at 0.1")
    outcomes = [node.outcome for node in report.nodes]
    assert outcomes == ["finished", "finished", "left", "finished", "finished"]
    assert report.nodes[2].reason == "it crashed"
    assert report.nodes[2].steps < 1000
    for near in (1, 3):
        assert any(
            "n2 is lost; training continues without it" in line
            for line in report.nodes[near].notices
        )
    assert not any("lost" in line for place in (0, 4) for line in report.nodes[place].notices)
    assert [node.steps for node in report.nodes if node.outcome == "finished"] == [1000] * 4
    # A ring without one node is a line, which is connected.
    assert report.parts == [["n0", "n1", "n3", "n4"]]
    assert not report.succeeded


def test_the_report_lists_disconnected_parts() -> None:
    report = simulate_with_faults(AetSgd(), "crash 2 at 0.1", topology="line")
    assert report.parts == [["n0", "n1"], ["n3", "n4"]]
    star = simulate_with_faults(AetSgd(), "vanish 0 at 0.1", topology="star", nodes=4)
    assert star.parts == [["n1"], ["n2"], ["n3"]]
    for node in star.nodes[1:]:
        assert any("no neighbour is left" in line for line in node.notices)
        assert (node.outcome, node.steps) == ("finished", 1000)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_node_that_returns_adopts_the_model_of_a_neighbour(name: str) -> None:
    group = SimulatedGroup(
        ALGORITHMS[name],
        "ring",
        4,
        iterations=600,
        patience_s=0.05,
        faults=parse_faults("vanish 1 at 0.2 for 0.05", 4),
    )
    reports = group.run()
    back = reports[1]
    assert [each.outcome for each in reports] == ["finished"] * 4
    assert back.incarnation == 2
    assert back.model_from in ("n0", "n2")
    assert (back.started_s or 0.0) > 0.25
    # It did not start from the initial model.
    assert 0 < group.steps["n1"].visits < 500
    assert back.steps == 600
    assert any(f"starts with the model of {back.model_from} after" in line for line in back.notices)
    if name != "event":
        assert {each.last_update for each in reports} == {reports[0].last_update}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_node_that_joins_late_adopts_the_model_of_a_neighbour(name: str) -> None:
    group = SimulatedGroup(ALGORITHMS[name], "line", 3, iterations=600, patience_s=0.05)
    scenario = PeerScenario(group.peers.topology, group.create_node, joins_s={"n2": 0.2})
    reports, _ = run_checked(scenario)
    late = reports[2]
    assert (late.incarnation, late.model_from, late.outcome) == (1, "n1", "finished")
    assert 0.2 < (late.started_s or 0.0) < 0.26
    assert group.steps["n2"].visits < 550
    assert late.steps == 600
    # n1 waited for it no longer than patience_s.
    assert (reports[1].started_s or 0.0) < 0.06


def test_an_adopted_model_is_the_offered_one_and_its_round_continues() -> None:
    seen: dict[str, Any] = {}
    group = SimulatedGroup(
        AetSgd(learning_rate=0.5, decay=0.0, gain=1.0), "line", 2, iterations=600, patience_s=0.05
    )

    def watch(name: str, at_s: float, node: Node, outputs: Outputs) -> None:
        for command in outputs:
            if isinstance(command, commands.Send) and (
                start := getattr(command.message, "training", None)
            ):
                assert start is True
                seen["offer"] = command.message
            if isinstance(command, notices.TrainingStarted) and command.model_from:
                seen["began"] = command
                seen["model"] = node.model.vector.copy()
                seen["next"] = node.computing

    faults = parse_faults("vanish 0 at 0.1 for 0.02", 2)
    PeerDriver(PeerScenario(group.peers.topology, group.create_node, faults=faults), watch).run()
    offer = seen["offer"]
    assert seen["began"].updates_done == offer.updates_done > 2
    assert seen["model"].tobytes() == offer.model
    assert seen["next"].number == offer.updates_done + 1
    assert seen["next"].steps == 10 * (offer.updates_done + 1)


def test_a_node_that_is_alone_at_first_trains_and_is_joined() -> None:
    report = simulate_with_faults(AetSgd(), "", topology="line", nodes=2, joins_s={"n1": 0.3})
    first, second = report.nodes
    assert report.succeeded
    assert 0.05 <= (first.started_s or 0.0) < 0.06
    assert second.model_from == "n0"


# Random faults.


def random_scenario(seed: int) -> tuple[PeerScenario, dict[str, Node], str]:
    rng = np.random.default_rng(seed)
    shapes = ["ring", "line", "star", "complete", "torus:2x2", "regular:3", "small-world:2,0.5"]
    shape = str(rng.choice(shapes))
    nodes = {"torus:2x2": 4, "regular:3": 4}.get(shape, int(rng.integers(3, 7)))
    topology = topology_for(shape, nodes, seed)
    algorithms: list[Algorithm] = [
        AetSgd(max_lag=int(rng.integers(0, 4)), growth=5.0),
        AetSgd(max_lag="auto", growth=5.0),
        LocalSgd(steps=20, max_lag=int(rng.integers(0, 3))),
        EventTriggeredSgd(),
        GossipSgd(steps=20),
    ]
    algorithm = algorithms[int(rng.integers(5))]
    iterations = 60 if isinstance(algorithm, EventTriggeredSgd) else 300
    step_s = (2e-4, 2e-3) if iterations == 300 else (1e-3, 1e-2)
    group = PeerSettings(TASK, algorithm, iterations, patience_s=0.2)
    nodes_by_name: dict[str, Node] = {}

    def create_node(name: str, incarnation: int) -> tuple[Node, Stepper]:
        public = isinstance(algorithm, EventTriggeredSgd | GossipSgd)
        steps: Stepper = (
            IntegerSteps(np.random.default_rng(seed)) if public else NullStepper(16, 1000)
        )
        nodes_by_name[name] = group.create_node(name, incarnation, topology.neighbours(name), steps)
        return nodes_by_name[name], steps

    faults = random_faults(rng, nodes, 0.5) + random_crashes(rng, nodes, 0.5)
    late = {topology.names[int(rng.integers(nodes))]: float(rng.uniform(0, 0.4))}
    joins_s = late if rng.random() < 0.3 else {}
    delays = Delays(step_s=step_s, message_s=(1e-3, 3e-2), seed=seed)
    description = (
        f"seed {seed}: {algorithm} on {shape} of {nodes}, {joins_s}: {format_faults(faults)}"
    )
    return PeerScenario(topology, create_node, delays, faults, joins_s), nodes_by_name, description


@pytest.mark.parametrize("first", range(0, cases(250), 25))
def test_no_fault_schedule_stops_training_or_loses_or_repeats_an_update(first: int) -> None:
    for seed in range(first, min(first + 25, cases(250))):
        scenario, nodes_by_name, description = random_scenario(seed)
        try:
            nodes, _ = run_checked(scenario)
        except Exception as error:
            raise AssertionError(description) from error
        assert {node.outcome for node in nodes} <= {"finished", "left"}, description
        done = {node.name for node in nodes if node.outcome == "finished"}
        assert all(
            nodes_by_name[name].steps == nodes_by_name[name].identity.iterations for name in done
        ), description
        if "corrupt" not in description:
            for name in done:
                assert has_exact_copies(nodes_by_name, name, done), description


def has_exact_copies(nodes_by_name: dict[str, Node], name: str, done: set[str]) -> bool:
    """Return whether its copies of reachable neighbours equal their public models, bit for bit."""
    for other in nodes_by_name[name].neighbours.values():
        node = nodes_by_name[other.name]
        met = other.reachable and other.incarnation == node.identity.incarnation
        if isinstance(node, DifferenceNode) and met and other.name in done:
            assert other.model is not None
            if other.model.tobytes() != node.own_public.tobytes():
                return False
    return True


def test_a_deadlock_is_detected() -> None:
    """Two nodes that never compute wait for each other."""
    group = SimulatedGroup(AetSgd(), "line", 2)

    def create_node(name: str, incarnation: int) -> tuple[Node, Stepper]:
        node, steps = group.create_node(name, incarnation)
        node.next_steps = lambda: None  # type: ignore[method-assign]
        return node, steps

    with pytest.raises(InvariantError, match="n0, n1 wait for each other"):
        PeerDriver(PeerScenario(line(2), create_node)).run()


def test_the_work_per_node_does_not_grow_with_the_number_of_nodes() -> None:
    """The number of events per node is the same in a larger ring."""
    heard: dict[int, float] = {}
    for nodes in (10, 40):
        count = 0

        def watch(*_: Any) -> None:
            nonlocal count
            count += 1

        simulate_peers(create_peers(AetSgd(), nodes=nodes, iterations=200), TIMING, watch=watch)
        heard[nodes] = count / nodes
    assert heard[40] == pytest.approx(heard[10], rel=0.05)


def test_a_custom_topology_is_simulated() -> None:
    own = Topology(("left", "right"), (("left", "right"),))
    report = simulate_peers(Peers(PeerSettings(TASK, AetSgd(), 100), own, "own.txt"), TIMING)
    assert [node.name for node in report.nodes] == ["left", "right"]
    assert report.succeeded

"""`simulate_peers`: training without an orchestrator in virtual time, from settings to a report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import save

from melisma.atomic import write_atomic
from melisma.fleet.rng import generator
from melisma.learning.compression import compression_for
from melisma.learning.data.datasets import Split
from melisma.learning.loaded_task import load_task
from melisma.learning.stepper import NullStepper, Stepper, stepper_for
from melisma.learning.trainer_factory import one_thread
from melisma.peer.group import Peers, partition_samples, take_samples
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.runs.folder import MODELS_FOLDER, PICTURE_FILE, create_run_folder
from melisma.runs.peer_report import PeerReport
from melisma.runs.svg import save_picture
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import Fault, random_faults
from melisma.simulation.peers.attacks import (
    KEY,
    Attack,
    PeerFault,
    parse_faults_and_attacks,
    random_attacks,
)
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver, PeerWatcher
from melisma.simulation.peers.peer_invariants import PeerInvariants
from melisma.simulation.peers.peer_scenario import PeerScenario

CreateSteps = Callable[[int, int], Stepper]
"""Create the model and samples of a node from its index and incarnation."""


@dataclass(frozen=True)
class PeerOptions:
    """Options of a simulation: its level of computation, delays, and faults.

    With `work` "timing" nothing is trained. `faults` is a schedule as in `simulate`, in which
    messages from a node are its reports and messages to it its instructions, with the attacks of
    `attacks.py`, or the seed of a random schedule. Nodes in `joins_s` join later. Models are scored
    after every `score_every` steps if that is not 0, and at the end.
    """

    work: Literal["timing", "train"] = "train"
    delays: Delays = field(default_factory=Delays)
    faults: str | int = ""
    joins_s: Mapping[str, float] = field(default_factory=dict)
    score_every: int = 0


def simulate_peers(
    peers: Peers,
    options: PeerOptions | None = None,
    *,
    file: str | Path | None = None,
    folder: str | Path | None = None,
    watch: PeerWatcher = lambda *_: None,
) -> PeerReport:
    """Run nodes in virtual time; raise `InvariantError` at the first violation of an invariant.

    Models and a picture are written to `folder` if given. `watch` sees the outputs of each node.
    """
    options = options or PeerOptions()
    run_folder = create_run_folder(folder) if folder is not None else None
    invariants = PeerInvariants()

    def observe(name: str, at_s: float, node: Node, outputs: Outputs) -> None:
        invariants.observe(name, at_s, node, outputs)
        watch(name, at_s, node, outputs)

    scenario = create_scenario(peers, options, file)
    driver = PeerDriver(scenario, observe, invariants.observe_resume)
    with one_thread():
        nodes = driver.run()
    invariants.check_end(nodes)
    report = PeerReport.from_nodes(peers, nodes, simulated=True)
    return report if run_folder is None else _save(report, run_folder, driver.steps)


def create_scenario(
    peers: Peers, options: PeerOptions, file: str | Path | None = None
) -> PeerScenario:
    """Create the scenario of a group; data are loaded only if models are trained."""
    topology, timing = peers.topology, options.work == "timing"
    parsed = parse_peer_faults(options.faults, peers, options.delays)
    faults = tuple(fault for fault in parsed if isinstance(fault, Fault))
    attacks = tuple(fault for fault in parsed if isinstance(fault, Attack))
    index = {name: number for number, name in enumerate(topology.names)}
    create_steps, test = _timing_steps(peers) if timing else _training_steps(peers, file)

    def create_node(name: str, incarnation: int) -> tuple[Node, Stepper]:
        steps = create_steps(index[name], incarnation)
        settings, neighbours = peers.node_settings[index[name]], topology.neighbours(name)
        keys = {neighbour: KEY.format(neighbour) for neighbour in neighbours}
        return settings.create_node(name, incarnation, neighbours, steps, keys), steps

    return PeerScenario(
        topology,
        create_node,
        options.delays,
        faults,
        options.joins_s,
        test,
        options.score_every,
        _update_bytes(peers) if timing else 0,
        attacks,
    )


def _timing_steps(peers: Peers) -> tuple[CreateSteps, None]:
    task = peers.settings.task
    samples = max(1, task.samples // len(peers.topology.names))
    return lambda *_: NullStepper(task.batch, samples), None


def _training_steps(peers: Peers, file: str | Path | None) -> tuple[CreateSteps, Split | None]:
    loaded = load_task(peers.settings.task, file)
    task, train, test = loaded.task, loaded.data.train, loaded.data.test
    parts = partition_samples(task, train.labels, len(peers.topology.names))

    def create_steps(node: int, incarnation: int) -> Stepper:
        samples = take_samples(train, parts[node])
        return stepper_for(task, samples, generator(task.seed, "peer", incarnation, node))

    return create_steps, test if len(test) else None


def parse_peer_faults(faults: str | int, peers: Peers, delays: Delays) -> tuple[PeerFault, ...]:
    """Parse a schedule of faults and attacks, or draw one if `faults` is a seed."""
    count = len(peers.topology.names)
    if isinstance(faults, int) or faults.isdecimal():
        until_s = peers.settings.iterations * float(np.mean(delays.step_s))
        attacks = random_attacks(generator(int(faults), "attacks"), count, until_s)
        crashes = random_crashes(generator(int(faults), "crashes"), count, until_s)
        drawn = random_faults(generator(int(faults), "faults"), count, until_s)
        return (*drawn, *crashes, *attacks)
    return parse_faults_and_attacks(faults, FaultTargets(count, peers.topology.names))


def random_crashes(rng: np.random.Generator, nodes: int, until_s: float) -> tuple[Fault, ...]:
    """Draw up to 4 crashes after which nodes resume, most of them soon."""
    return tuple(
        Fault(
            "crash",
            (int(rng.integers(nodes)),),
            at_s=float(f"{rng.uniform(0, until_s):.4g}"),
            for_s=float(f"{rng.exponential(0.05 * until_s):.4g}"),
        )
        for _ in range(int(rng.integers(5)))
    )


def _update_bytes(peers: Peers) -> int:
    """Return the size of an update that is not computed."""
    parameters = peers.settings.task.model_bytes // 4
    return len(compression_for(peers.settings.compression).pack(np.zeros(parameters, np.float32)))


def _save(report: PeerReport, folder: Path, steps: Mapping[str, Stepper]) -> PeerReport:
    for name, trained in steps.items():
        if arrays := trained.arrays():
            write_atomic(folder / MODELS_FOLDER / f"{name}.safetensors", save(arrays), mode=0o600)
    save_picture(report.plot, folder / PICTURE_FILE)
    return replace(report, folder=folder)

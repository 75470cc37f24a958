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
from melisma.learning.loaded_task import gathered
from melisma.learning.steps import NoSteps, Steps, steps_for
from melisma.learning.trainers import one_thread
from melisma.peer.group import Peers, partition_samples, take_samples
from melisma.peer.node import Node, Outputs
from melisma.runs.folder import create_run_folder
from melisma.runs.peer_report import PeerReport
from melisma.runs.svg import save_picture
from melisma.simulation.faults import Fault, parse_faults, random_faults
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver, PeerScenario, PeerWatcher
from melisma.simulation.peers.peer_invariants import PeerInvariants

MODELS, PICTURE = "models", "picture.svg"


@dataclass(frozen=True)
class PeerOptions:
    """How nodes are simulated: what takes how long, what goes wrong, and what is computed.

    `faults` are words as of `simulate`, or a number that draws some; messages of a node are its
    reports, those to it its orders. Nodes that join later `come`. With `every`, models are scored
    after so many steps as well as at the end.
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
    """Run nodes in virtual time; what must hold is held at every step, else `BrokenError`.

    Models and picture are kept if there is a `folder`. `watch` sees what each node says.
    """
    options = options or PeerOptions()
    place = create_run_folder(folder) if folder is not None else None
    books = PeerInvariants()

    def seen(name: str, at_s: float, node: Node, commands: Outputs) -> None:
        books.observe(name, at_s, node, commands)
        watch(name, at_s, node, commands)

    driver = PeerDriver(peer_scenario(peers, options, file), seen)
    with one_thread():
        nodes = driver.run()
    books.check_end(nodes)
    report = PeerReport.of(peers, nodes, simulated=True)
    return report if place is None else _kept(report, place, driver.steps)


def peer_scenario(
    peers: Peers, options: PeerOptions, file: str | Path | None = None
) -> PeerScenario:
    """Who there is and what happens to them."""
    topology = peers.topology
    faults = parse_peer_faults(options.faults, peers, options.delays)
    number = {name: place for place, name in enumerate(topology.names)}
    test: Split | None = None
    update_bytes = 0
    steps: Callable[[int, int], Steps]
    if options.work == "timing":
        task = peers.settings.task
        samples = max(1, task.samples // len(topology.names))
        update_bytes = _weight(peers)

        def steps(place: int, life: int) -> Steps:  # noqa: ARG001 - as the other
            return NoSteps(task.batch, samples)
    else:
        material = gathered(peers.settings.task, file)
        task, test = material.task, material.data.test
        parts = partition_samples(task, material.data.train.labels, len(topology.names))

        def steps(place: int, life: int) -> Steps:
            mine = take_samples(material.data.train, parts[place])
            return steps_for(task, mine, generator(task.seed, "peer", life, place))

    def made(name: str, life: str) -> tuple[Node, Steps]:
        mine = steps(number[name], int(life))
        group = peers.node_settings[number[name]]
        return group.create_node(name, life, topology.neighbours(name), mine), mine

    return PeerScenario(
        topology,
        made,
        options.delays,
        faults,
        options.joins_s,
        test if test is not None and len(test) else None,
        options.score_every,
        update_bytes,
    )


def parse_peer_faults(said: str | int, peers: Peers, delays: Delays) -> tuple[Fault, ...]:
    """Faults from words, or drawn by a number."""
    count = len(peers.topology.names)
    if isinstance(said, int) or said.isdecimal():
        until_s = peers.settings.iterations * float(np.mean(delays.step_s))
        return random_faults(generator(int(said), "faults"), count, until_s)
    return parse_faults(said, count)


def _weight(peers: Peers) -> int:
    """Bytes of an update that is not computed."""
    parameters = peers.settings.task.model_bytes // 4
    return len(compression_for(peers.settings.compression).pack(np.zeros(parameters, np.float32)))


def _kept(report: PeerReport, folder: Path, steps: Mapping[str, Steps]) -> PeerReport:
    for name, each in steps.items():
        if arrays := each.arrays():
            write_atomic(folder / MODELS / f"{name}.safetensors", save(arrays))
    save_picture(report.plot, folder / PICTURE)
    return replace(report, folder=folder)

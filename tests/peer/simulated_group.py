"""Whole runs of nodes in virtual time, with their invariants checked."""

from collections import defaultdict
from typing import Any

import numpy as np

from melisma.learning.stepper import Stepper
from melisma.peer.algorithms import Algorithm
from melisma.peer.group import Peers, PeerSettings
from melisma.peer.node import Node
from melisma.peer.topologies import topology_for
from melisma.runs.peer_report import NodeReport
from melisma.simulation.faults import Fault
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver
from melisma.simulation.peers.peer_invariants import PeerInvariants
from melisma.simulation.peers.peer_scenario import PeerScenario
from tests.peer.tiny_nodes import TASK, IntegerSteps


def create_peers(
    algorithm: Algorithm,
    topology: str = "ring",
    nodes: int = 5,
    iterations: int = 600,
    **options: Any,
) -> Peers:
    task = options.pop("task", TASK)
    given: dict[str, Any] = {"patience_s": 1000.0, "guard": "off"} | options
    settings = PeerSettings(task, algorithm, iterations, **given)
    return Peers(settings, topology_for(topology, nodes, 1), topology)


def run_checked(scenario: PeerScenario) -> tuple[list[NodeReport], PeerInvariants]:
    """Run a scenario in which all invariants hold."""
    invariants = PeerInvariants()
    reports = PeerDriver(scenario, invariants.observe, invariants.observe_resume).run()
    invariants.check_end(reports)
    return reports, invariants


class SimulatedGroup:
    """A group of nodes that take integer steps, with the gradients of each."""

    def __init__(self, algorithm: Algorithm, topology: str, nodes: int, **options: Any) -> None:
        self.gradient_steps = options.pop("gradient_steps", 10**9)
        self.size = options.pop("size", 4)
        self.delays = options.pop("delays", Delays())
        self.faults: tuple[Fault, ...] = options.pop("faults", ())
        self.peers = create_peers(algorithm, topology, nodes, **options)
        self.nodes: dict[str, Node] = {}
        self.steps: dict[str, IntegerSteps] = {}
        self.gradients: dict[str, list[Any]] = defaultdict(list)

    def run(self) -> list[NodeReport]:
        topology = self.peers.topology
        return run_checked(PeerScenario(topology, self.create_node, self.delays, self.faults))[0]

    def create_node(self, name: str, incarnation: int) -> tuple[Node, Stepper]:
        index = self.peers.topology.names.index(name)
        steps = RecordedSteps(self, name, np.random.default_rng([index, incarnation]))
        neighbours = self.peers.topology.neighbours(name)
        self.nodes[name] = self.peers.settings.create_node(name, incarnation, neighbours, steps)
        self.steps[name] = steps
        return self.nodes[name], steps

    def own_change(self, name: str) -> Any:
        """Return the change of a node's model by its own gradients."""
        return sum(self.gradients[name])


class RecordedSteps(IntegerSteps):
    """Steps that record their gradients; after `gradient_steps` gradients are 0."""

    def __init__(self, group: SimulatedGroup, name: str, rng: np.random.Generator) -> None:
        super().__init__(rng, group.size)
        self._group, self._name = group, name

    def step(self, rate: float) -> float:
        before = self.gradient_sum.copy()
        if self.visits >= self._group.gradient_steps:
            self.visits += 1
            return 0.0
        loss = super().step(rate)
        self._group.gradients[self._name].append(np.float64(rate) * (self.gradient_sum - before))
        return loss

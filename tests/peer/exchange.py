"""Whole runs of nodes in virtual time, with all that must hold held."""

from collections import defaultdict
from typing import Any

import numpy as np

from melisma.learning.steps import Steps
from melisma.peer.algorithms import Algorithm
from melisma.peer.group import Peers, PeerSettings
from melisma.peer.node import Node
from melisma.peer.topology import topology_for
from melisma.runs.peer_report import NodeReport
from melisma.simulation.faults import Fault
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver, PeerScenario
from melisma.simulation.peers.peer_invariants import PeerInvariants
from tests.peer.staging import TASK, Slopes


def peers(
    said: Algorithm, shape: str = "ring", nodes: int = 5, iterations: int = 600, **more: Any
) -> Peers:
    task = more.pop("task", TASK)
    group = PeerSettings(task, said, iterations, **({"patience_s": 1000.0} | more))
    return Peers(group, topology_for(shape, nodes, 1), shape)


def booked(scene: PeerScenario) -> tuple[list[NodeReport], PeerInvariants]:
    """A run in which all that must hold, holds."""
    books = PeerInvariants()
    found = PeerDriver(scene, books.observe).run()
    books.check_end(found)
    return found, books


class Exchange:
    """Nodes on whole numbers, and what they do to each other."""

    def __init__(self, said: Algorithm, shape: str, nodes: int, **more: Any) -> None:
        self.quiet_after = more.pop("quiet_after", 10**9)
        self.size = more.pop("size", 4)
        self.delays = more.pop("delays", Delays())
        self.faults: tuple[Fault, ...] = more.pop("faults", ())
        self.peers = peers(said, shape, nodes, **more)
        self.nodes: dict[str, Node] = {}
        self.steps: dict[str, Slopes] = {}
        self.gradients: dict[str, list[Any]] = defaultdict(list)

    def run(self) -> list[NodeReport]:
        scene = PeerScenario(self.peers.topology, self.made, self.delays, self.faults)
        return booked(scene)[0]

    def made(self, name: str, life: str) -> tuple[Node, Steps]:
        place = self.peers.topology.names.index(name)
        steps = Moved(self, name, np.random.default_rng([place, int(life)]), self.size)
        near = self.peers.topology.neighbours(name)
        self.nodes[name] = self.peers.settings.create_node(name, life, near, steps)
        self.steps[name] = steps
        return self.nodes[name], steps

    def moved(self, name: str) -> Any:
        """By its own gradients."""
        return sum(self.gradients[name])


class Moved(Slopes):
    """They are noted; after a while there are none."""

    def __init__(self, exchange: Exchange, name: str, rng: np.random.Generator, size: int) -> None:
        super().__init__(rng, size)
        self._exchange, self._name = exchange, name

    def step(self, rate: float) -> float:
        before = self.slopes.copy()
        if self.visits >= self._exchange.quiet_after:
            self.visits += 1
            return 0.0
        found = super().step(rate)
        self._exchange.gradients[self._name].append(np.float64(rate) * (self.slopes - before))
        return found

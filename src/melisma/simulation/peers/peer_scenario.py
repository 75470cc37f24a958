"""The nodes of a simulation, with their delays and faults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from melisma.fleet.array_types import Floats
from melisma.learning.data.datasets import Split
from melisma.learning.stepper import Stepper
from melisma.peer import messages
from melisma.peer.node import Node
from melisma.peer.node_snapshot import ReceivedMessage, encode, take_snapshot
from melisma.peer.sent_messages import SentMessages
from melisma.peer.topology import Topology
from melisma.runs.peer_report import NodeRecorder
from melisma.simulation.faults import Fault
from melisma.simulation.peers.attacks import KEY, Attack
from melisma.simulation.peers.delays import Delays

CreateNode = Callable[[str, int], tuple[Node, Stepper]]


@dataclass(frozen=True)
class PeerScenario:
    """A simulation; `create_node` creates a node from its name and incarnation.

    Nodes in `joins_s` join later. With a `test` set, models are scored after every `score_every`
    steps, or only at the end if that is 0; scoring takes no time. Where nothing is trained,
    `update_bytes` is added to the size of an update.
    """

    topology: Topology
    create_node: CreateNode
    delays: Delays = field(default_factory=Delays)
    faults: tuple[Fault, ...] = ()
    joins_s: Mapping[str, float] = field(default_factory=dict)
    test: Split | None = None
    score_every: int = 0
    update_bytes: int = 0
    attacks: tuple[Attack, ...] = ()

    @property
    def index(self) -> dict[str, int]:
        """The number of each node by name."""
        return {name: index for index, name in enumerate(self.topology.names)}


@dataclass
class NodeDisk:
    """The disk of a node: its last snapshot, and the messages that arrived since."""

    snapshot: bytes = b""
    inbox: list[ReceivedMessage] = field(default_factory=list)


@dataclass
class SimulatedNode:
    """One process of a node: its state machine, its model, and its progress in a round.

    Without a `disk` it cannot resume.
    """

    node: Node
    steps: Stepper
    recorder: NodeRecorder
    clock_rate: float
    step_ends_s: Floats = field(default_factory=lambda: np.empty(0))
    steps_taken: int = 0
    scored_steps: int = 0
    outcome: str = ""
    reason: str = ""
    disk: NodeDisk | None = None
    sent: SentMessages = field(default_factory=SentMessages)

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.identity.name

    @property
    def key(self) -> str:
        """The key that signs the messages of this node, in all its incarnations."""
        return KEY.format(self.name)

    @property
    def patience_s(self) -> float:
        """The time after which the node gives up a neighbour that does not answer."""
        return self.node.identity.patience_s

    @property
    def alive(self) -> bool:
        """Whether the node has not ended."""
        return self.outcome == ""

    def local_time(self, now_s: float) -> float:
        """Return the time on the clock of the node."""
        return now_s * self.clock_rate

    def catch_up(self, at_s: float) -> None:
        """Take the steps that end by that time."""
        due = int(np.searchsorted(self.step_ends_s, at_s, "right"))
        if self.node.computing is not None:
            for _ in range(self.steps_taken, due):
                self.steps.step(self.node.computing.learning_rate)
        self.steps_taken = max(self.steps_taken, due)

    @property
    def crashed(self) -> bool:
        """Whether the process ended, and resumes from its disk."""
        return self.disk is not None and self.outcome == "left"

    def keep(self, message: messages.Message, key: str) -> None:
        """Write a message that arrived to the disk; a heartbeat need not be kept."""
        if self.disk is not None and not isinstance(message, messages.Heartbeat):
            self.disk.inbox.append(ReceivedMessage(message, key))

    def save(self) -> None:
        """Write a snapshot to the disk; it contains all messages that were handled."""
        if self.disk is not None:
            steps_left = len(self.step_ends_s) - self.steps_taken if self.node.computing else 0
            snapshot = take_snapshot(self.node, self.steps, steps_left, self.sent)
            self.disk.snapshot, self.disk.inbox = encode(snapshot), []

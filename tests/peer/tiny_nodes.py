"""Nodes with four parameters, and the messages sent to them."""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task, TaskSizes
from melisma.learning.compression import Vector, compression_for
from melisma.learning.data.datasets import Split
from melisma.learning.stepper import StepperState
from melisma.learning.trainer import Score
from melisma.peer import commands, messages, notices
from melisma.peer.algorithms import Algorithm, LocalSgd
from melisma.peer.group import create_node
from melisma.peer.guard import GuardMode
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs

TASK = Task(
    name="peers",
    model="mlp",
    data="nothing:here",
    deadline_s=1.0,
    batch=16,
    model_args={"layers": [4, 2]},
    sizes=TaskSizes(samples=1000, sample_bytes=16, model_bytes=40, sample_ops=60),
)
COMPATIBILITY = {"model": "a line of 4 parameters"}
INITIAL = np.array([100, 200, 300, 400], np.float32)
Kind = TypeVar("Kind", bound=commands.Command | notices.NodeNotice)


@dataclass(eq=False)
class IntegerSteps:
    """Steps along random integer gradients, so that sums in float32 are exact."""

    rng: np.random.Generator
    size: int = 4
    largest: int = 8
    vector: Vector = field(init=False)
    gradient_sum: Vector = field(init=False)
    visits: int = 0

    def __post_init__(self) -> None:
        self.vector = np.resize(INITIAL, self.size).astype(np.float32)
        self.gradient_sum = np.zeros(self.size, np.float32)

    def step(self, rate: float) -> float:
        gradient = self.rng.integers(-self.largest, self.largest + 1, self.size)
        self.vector -= np.float32(rate) * gradient.astype(np.float32)
        self.gradient_sum += gradient.astype(np.float32)
        self.visits += 1
        return 0.0

    def score(self, samples: Split) -> Score:
        return Score(0, 0.0, 0)

    def state(self) -> StepperState:
        state = json.dumps(self.rng.bit_generator.state).encode()
        return StepperState(batches=0, visits=self.visits, rng_state=state)

    def restore(self, state: StepperState) -> None:
        self.visits = state.visits
        self.rng.bit_generator.state = json.loads(state.rng_state)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"vector": self.vector.copy()}


def new_node(
    algorithm: Algorithm | None = None,
    neighbours: tuple[str, ...] = ("b",),
    iterations: int = 30,
    compression: str = "none",
    name: str = "a",
    guard: GuardMode = "off",
) -> Node:
    """Create a node that has not started, by default with rounds of 3 steps and no guard."""
    identity = NodeIdentity(name, 1, iterations, COMPATIBILITY, patience_s=10.0, guard=guard)
    model = Model(INITIAL.copy(), np.zeros_like(INITIAL))
    algorithm = algorithm or LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3)
    return create_node(identity, neighbours, model, compression_for(compression), algorithm)


def start(node: Node) -> Node:
    """Start a node: its neighbours have accepted it, and train."""
    node.start(0.0)
    for name in [*node.neighbours]:
        node.on_message(0.0, accepted(name))
        node.on_message(0.0, started(name))
    assert node.started
    return node


def compute(node: Node, gradient: Any = 0, at_s: float = 1.0) -> Outputs:
    """Take the steps that the node asked for, along this gradient in all."""
    assert node.computing is not None
    node.model.gradient_sum[:] += np.float32(1) * gradient
    node.model.vector[:] -= np.float32(node.computing.learning_rate) * gradient
    return node.on_computed(at_s)


def hello(sender: str = "b", incarnation: int = 1, **compatibility: str) -> messages.Hello:
    return messages.Hello(
        sender=sender,
        incarnation=incarnation,
        compatibility=COMPATIBILITY | compatibility,
        degree=1,
    )


def accepted(
    sender: str = "b", incarnation: int = 1, done: int = 0, steps: int = 0, model: Any = None
) -> messages.Accepted:
    """Return an answer to node a; of a sender that trains, if there is a model."""
    return messages.Accepted(
        sender=sender,
        incarnation=incarnation,
        to_incarnation=1,
        degree=1,
        training=model is not None,
        updates_done=done,
        steps=steps,
        model=b"" if model is None else to_bytes(model),
    )


def started(
    sender: str = "b", incarnation: int = 1, done: int = 0, model: Any = None
) -> messages.Started:
    content = b"" if model is None else to_bytes(model)
    return messages.Started(
        sender=sender, incarnation=incarnation, updates_done=done, model=content
    )


def update(
    number: int, change: Any = 0, rate: float = 1.0, sender: str = "b", incarnation: int = 1
) -> messages.Update:
    return messages.Update(
        sender=sender,
        incarnation=incarnation,
        to_incarnation=1,
        number=number,
        learning_rate=rate,
        content=to_bytes(np.float32(1) * (INITIAL * 0 + change)),
    )


def rejected(sender: str, reason: str, to: int = 1) -> messages.Rejected:
    return messages.Rejected(sender=sender, incarnation=1, to_incarnation=to, reason=reason)


def heartbeat(sender: str = "b", incarnation: int = 1) -> messages.Heartbeat:
    return messages.Heartbeat(sender=sender, incarnation=incarnation)


def goodbye(sender: str = "b", incarnation: int = 1, last: int = 0) -> messages.Goodbye:
    return messages.Goodbye(sender=sender, incarnation=incarnation, last_update=last)


def to_bytes(vector: Any) -> bytes:
    return np.asarray(vector, np.float32).tobytes()


def of(outputs: Outputs, kind: type[Kind]) -> list[Kind]:
    """Return the outputs of that type."""
    return [output for output in outputs if isinstance(output, kind)]


def sent(outputs: Outputs, kind: type[messages.PeerMessage]) -> list[Any]:
    """Return the messages of that type that are sent."""
    sent_messages = (send.message for send in of(outputs, commands.Send))
    return [message for message in sent_messages if isinstance(message, kind)]


def receivers(outputs: Outputs) -> list[str]:
    """Return the names to which messages are sent."""
    return [send.to for send in of(outputs, commands.Send)]

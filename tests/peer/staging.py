"""Nodes small enough to be read, and what is said to them."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Sizes, Task
from melisma.learning.compression import Vector, compression_for
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score
from melisma.peer import commands, messages
from melisma.peer.algorithms import Algorithm, LocalSgd
from melisma.peer.node import Model, Node, NodeIdentity, Outputs
from melisma.peer.nodes import create_node

TASK = Task(
    name="peers",
    model="mlp",
    data="nothing:here",
    deadline_s=1.0,
    batch=16,
    model_args={"layers": [4, 2]},
    sizes=Sizes(samples=1000, sample_bytes=16, model_bytes=40, sample_ops=60),
)
FORM = {"model": "a line of 4 parameters"}
START = np.array([100, 200, 300, 400], np.float32)
Kind = TypeVar("Kind", bound=commands.Command)


@dataclass(eq=False)
class Slopes:
    """Steps along whole numbers drawn by chance, so that sums in float32 are exact."""

    rng: np.random.Generator
    size: int = 4
    most: int = 8
    vector: Vector = field(init=False)
    slopes: Vector = field(init=False)
    visits: int = 0

    def __post_init__(self) -> None:
        self.vector = np.resize(START, self.size).astype(np.float32)
        self.slopes = np.zeros(self.size, np.float32)

    def step(self, rate: float) -> float:
        gradient = self.rng.integers(-self.most, self.most + 1, self.size).astype(np.float32)
        self.vector -= np.float32(rate) * gradient
        self.slopes += gradient
        self.visits += 1
        return 0.0

    def score(self, samples: Split) -> Score:
        return Score(0, 0.0, 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"vector": self.vector.copy()}


def node(
    said: Algorithm | None = None,
    neighbours: tuple[str, ...] = ("b",),
    iterations: int = 30,
    compression: str = "none",
    name: str = "a",
) -> Node:
    """A node at the beginning of its life, of rounds of 3 steps unless said otherwise."""
    me = NodeIdentity(name, "1", iterations, FORM, patience_s=10.0)
    model = Model(START.copy(), np.zeros_like(START))
    said = said or LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3)
    return create_node(me, neighbours, model, compression_for(compression), said)


def begun(one: Node) -> Node:
    """The same, when its neighbours have answered and train."""
    one.start(0.0)
    for name in [*one.neighbours]:
        one.on_message(0.0, welcome(name))
        one.on_message(
            0.0, messages.Started(sender=name, incarnation="1", updates_done=0, model=b"")
        )
    assert one.started
    return one


def computed(one: Node, gradient: Any = 0, at_s: float = 1.0) -> Outputs:
    """It has taken the steps that it wanted to, along this in all."""
    assert one.computing is not None
    one.model.gradient_sum[:] += np.float32(1) * gradient
    one.model.vector[:] -= np.float32(one.computing.learning_rate) * gradient
    return one.on_computed(at_s)


def hello(sender: str = "b", life: str = "1", **form: str) -> messages.Hello:
    return messages.Hello(sender=sender, incarnation=life, compatibility=FORM | form, degree=1)


def welcome(
    sender: str = "b", life: str = "1", done: int = 0, steps: int = 0, model: Any = None
) -> messages.Accepted:
    """An answer to node a; of who trains, if there is a model."""
    content = b"" if model is None else packed(model)
    return messages.Accepted(
        sender=sender,
        incarnation=life,
        to_incarnation="1",
        degree=1,
        training=model is not None,
        updates_done=done,
        steps=steps,
        model=content,
    )


def started(
    sender: str = "b", life: str = "1", done: int = 0, model: Any = None
) -> messages.Started:
    content = b"" if model is None else packed(model)
    return messages.Started(sender=sender, incarnation=life, updates_done=done, model=content)


def update(
    number: int, change: Any = 0, rate: float = 1.0, sender: str = "b", life: str = "1"
) -> messages.Update:
    content = packed(np.float32(1) * (START * 0 + change))
    return messages.Update(
        sender=sender,
        incarnation=life,
        to_incarnation="1",
        number=number,
        learning_rate=rate,
        content=content,
    )


def packed(vector: Any) -> bytes:
    return np.asarray(vector, np.float32).tobytes()


def of(emitted: Outputs, kind: type[Kind]) -> list[Kind]:
    return [each for each in emitted if isinstance(each, kind)]


def sent(emitted: Outputs, kind: type[messages.PeerMessage]) -> list[Any]:
    """Messages of that kind that are to be sent."""
    found = (each.message for each in of(emitted, commands.Send))
    return [message for message in found if isinstance(message, kind)]

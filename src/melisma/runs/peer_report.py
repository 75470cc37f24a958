"""What became of training without an orchestrator: of each node, and of all together."""

from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from melisma.peer import commands
from melisma.peer.group import Peers
from melisma.peer.node import Node
from melisma.peer.round_nodes import Rounds

if TYPE_CHECKING:
    from melisma.runs.svg import Picture


class Scored(msgspec.Struct, frozen=True):
    """How good a node's model was after so many steps."""

    at_s: float
    steps: int
    samples: int
    sent_bytes: int
    accuracy: float | None
    loss: float | None


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node, in the last of its lives; times are seconds from the beginning of the run.

    `steps` count those that came with a model that it took over, `samples` only its own visits.
    `updates` are what it told its neighbours, a round each, and `number` is that of the last one;
    `messages` are all that it sent, greetings too, as often as they were sent. It waited
    `waiting_s` for its neighbours. `lags` are those that were chosen, one a round.
    """

    name: str
    outcome: str
    why: str = ""
    life: str = ""
    steps: int = 0
    samples: int = 0
    updates: int = 0
    number: int = 0
    messages: int = 0
    sent_bytes: int = 0
    waiting_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    model_of: str = ""
    lags: list[int] = msgspec.field(default_factory=list)
    allowed: list[int] = msgspec.field(default_factory=list)
    computed_s: list[tuple[float, float]] = msgspec.field(default_factory=list)
    scores: list[Scored] = msgspec.field(default_factory=list)
    told: list[str] = msgspec.field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """Of its last model."""
        return self.scores[-1].accuracy if self.scores else None

    @property
    def loss(self) -> float | None:
        """Of its last model."""
        return self.scores[-1].loss if self.scores else None


@dataclass
class Tally:
    """Keeps the figures of one life of a node, as its driver tells them."""

    node: Node
    messages: int = 0
    sent_bytes: int = 0
    waiting_s: float = 0.0
    began_s: float = nan
    model_of: str = ""
    computed_s: list[tuple[float, float]] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    _since_s: float = nan

    def sent(self, size_bytes: int) -> None:
        """One more message."""
        self.messages += 1
        self.sent_bytes += size_bytes

    def computed(self, at_s: float) -> None:
        """What it was to compute is done, and from now on it waits."""
        self.computed_s.append((self._since_s, at_s))
        self._since_s = at_s

    def heard(self, at_s: float, emitted: list[commands.Any]) -> None:
        """What it said."""
        for command in emitted:
            match command:
                case commands.Began(model_of=model_of):
                    self.began_s = self._since_s = at_s
                    self.model_of = model_of
                case commands.Compute():
                    self.waiting_s += at_s - self._since_s
                    self._since_s = at_s
            if line := told(command):
                self.told.append(f"{at_s:.3f} s: {line}")

    def report(self, at_s: float, outcome: str, why: str, samples: int) -> NodeReport:
        """All of it."""
        node = self.node
        choices = node.lag.choices if isinstance(node, Rounds) else []
        return NodeReport(
            name=node.me.name,
            outcome=outcome,
            why=why,
            life=node.me.life,
            steps=node.steps,
            samples=samples,
            updates=node.told_updates,
            number=node.number,
            messages=self.messages,
            sent_bytes=self.sent_bytes,
            waiting_s=self.waiting_s,
            began_s=_known(self.began_s),
            ended_s=at_s,
            model_of=self.model_of,
            lags=[each.lag for each in choices],
            allowed=[each.allowed for each in choices],
            computed_s=self.computed_s,
            scores=self.scores,
            told=self.told,
        )


def told(command: commands.Any) -> str:
    """What of a command is to be told to whoever watches; empty if nothing."""
    match command:
        case commands.Lost(name=name, alone=alone):
            rest = "no neighbour is left, it goes on alone" if alone else "the rest goes on"
            return f"{name} is gone; {rest}"
        case commands.Found(name=name, back=True):
            return f"{name} is back"
        case commands.Met(name=name, level=level) if level:
            return f"{name} begins anew"
        case commands.Began(model_of=model_of, done=done) if model_of:
            return f"begins with the model of {model_of} after {done} updates"
        case commands.Refused(sender=sender, why=why):
            return f"{sender}: {why}"
    return ""


@dataclass(frozen=True)
class PeerReport:
    """A whole run: what was trained and how, and each node."""

    algorithm: str
    topology: str
    model: str
    data: str
    compression: str
    simulated: bool
    nodes: list[NodeReport]
    parts: list[list[str]] = field(default_factory=list)
    """The nodes that were left at the end, by which of them can reach each other."""
    folder: Path | None = None

    @classmethod
    def of(cls, peers: Peers, nodes: list[NodeReport], *, simulated: bool) -> "PeerReport":
        """The report of nodes that have come to their ends."""
        group = peers.group
        gone = [each.name for each in nodes if each.outcome != "done"]
        return cls(
            str(group.algorithm.__struct_config__.tag),
            peers.shape,
            group.task.model,
            group.task.data,
            group.compression,
            simulated,
            nodes,
            peers.topology.without(gone).parts(),
        )

    @property
    def began_s(self) -> float:
        """When the first node began to train."""
        return min((node.computed_s[0][0] for node in self.nodes if node.computed_s), default=nan)

    @property
    def seconds(self) -> float:
        """From then until the last node had done its steps."""
        ends = [node.computed_s[-1][1] for node in self.nodes if node.computed_s]
        return max(ends, default=nan) - self.began_s

    @property
    def accuracy(self) -> float:
        """Of the nodes' models on average, of those that came to their end if any did."""
        done = [node for node in self.nodes if node.outcome == "done"] or self.nodes
        known = [node.accuracy for node in done if node.accuracy is not None]
        return float(np.mean(known)) if known else nan

    @property
    def succeeded(self) -> bool:
        """Whether every node came to its end."""
        return all(node.outcome == "done" for node in self.nodes)

    def sum(self, name: str) -> float:
        """Of one figure over all nodes."""
        return float(sum(getattr(node, name) for node in self.nodes))

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is not known is null."""
        counts = ("steps", "samples", "updates", "messages", "sent_bytes")
        total = {name: int(self.sum(name)) for name in counts}
        head = {
            "algorithm": self.algorithm,
            "topology": self.topology,
            "model": self.model,
            "data": self.data,
            "compression": self.compression,
            "simulated": self.simulated,
            "seconds": _known(self.seconds),
            "accuracy": _known(self.accuracy),
            "parts": self.parts,
            "total": {**total, "waiting_s": self.sum("waiting_s")},
        }
        nodes = msgspec.to_builtins(self.nodes)
        for node, plain in zip(self.nodes, nodes, strict=True):
            plain |= {"accuracy": node.accuracy, "loss": node.loss}
        return {**head, "nodes": nodes}

    def plot(self) -> "Picture":
        """Who computed and who waited, and how good the models became."""
        from melisma.runs.peer_picture import picture_of

        return picture_of(self)


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None

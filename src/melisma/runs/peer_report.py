"""What became of training without an orchestrator: of each node, and of all together."""

from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from melisma.peer import commands
from melisma.peer.gradient_node import GradientNode
from melisma.peer.group import Peers
from melisma.peer.node import Node

if TYPE_CHECKING:
    from melisma.runs.svg import Picture


class ScorePoint(msgspec.Struct, frozen=True):
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
    reason: str = ""
    incarnation: str = ""
    steps: int = 0
    samples: int = 0
    updates: int = 0
    last_update: int = 0
    messages: int = 0
    sent_bytes: int = 0
    waiting_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    model_from: str = ""
    chosen_lags: list[int] = msgspec.field(default_factory=list)
    allowed_lags: list[int] = msgspec.field(default_factory=list)
    compute_spans_s: list[tuple[float, float]] = msgspec.field(default_factory=list)
    scores: list[ScorePoint] = msgspec.field(default_factory=list)
    notices: list[str] = msgspec.field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """Of its last model."""
        return self.scores[-1].accuracy if self.scores else None

    @property
    def loss(self) -> float | None:
        """Of its last model."""
        return self.scores[-1].loss if self.scores else None


@dataclass
class NodeRecorder:
    """Keeps the figures of one life of a node, as its driver tells them."""

    node: Node
    messages: int = 0
    sent_bytes: int = 0
    waiting_s: float = 0.0
    started_s: float = nan
    model_from: str = ""
    compute_spans_s: list[tuple[float, float]] = field(default_factory=list)
    scores: list[ScorePoint] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    _since_s: float = nan

    def record_sent(self, size_bytes: int) -> None:
        """One more message."""
        self.messages += 1
        self.sent_bytes += size_bytes

    def record_computed(self, at_s: float) -> None:
        """What it was to compute is done, and from now on it waits."""
        self.compute_spans_s.append((self._since_s, at_s))
        self._since_s = at_s

    def record_outputs(self, at_s: float, emitted: list[commands.AnyCommand]) -> None:
        """What it said."""
        for command in emitted:
            match command:
                case commands.TrainingStarted(model_from=model_of):
                    self.started_s = self._since_s = at_s
                    self.model_from = model_of
                case commands.Compute():
                    self.waiting_s += at_s - self._since_s
                    self._since_s = at_s
            if line := describe_notice(command):
                self.notices.append(f"{at_s:.3f} s: {line}")

    def report(self, at_s: float, outcome: str, why: str, samples: int) -> NodeReport:
        """All of it."""
        node = self.node
        choices = node.lag.choices if isinstance(node, GradientNode) else []
        return NodeReport(
            name=node.identity.name,
            outcome=outcome,
            reason=why,
            incarnation=node.identity.incarnation,
            steps=node.steps,
            samples=samples,
            updates=node.own_updates,
            last_update=node.update_number,
            messages=self.messages,
            sent_bytes=self.sent_bytes,
            waiting_s=self.waiting_s,
            started_s=_known(self.started_s),
            ended_s=at_s,
            model_from=self.model_from,
            chosen_lags=[each.lag for each in choices],
            allowed_lags=[each.allowed for each in choices],
            compute_spans_s=self.compute_spans_s,
            scores=self.scores,
            notices=self.notices,
        )


def describe_notice(command: commands.AnyCommand) -> str:
    """What of a command is to be told to whoever watches; empty if nothing."""
    match command:
        case commands.NeighbourLost(name=name, alone=alone):
            rest = "no neighbour is left, it goes on alone" if alone else "the rest goes on"
            return f"{name} is gone; {rest}"
        case commands.NeighbourReady(name=name, returned=True):
            return f"{name} is back"
        case commands.NeighbourJoined(name=name, assumed_updates=level) if level:
            return f"{name} begins anew"
        case commands.TrainingStarted(model_from=model_of, updates_done=done) if model_of:
            return f"begins with the model of {model_of} after {done} updates"
        case commands.MessageRejected(sender=sender, reason=why):
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
        group = peers.settings
        gone = [each.name for each in nodes if each.outcome != "done"]
        return cls(
            str(group.algorithm.__struct_config__.tag),
            peers.topology_name,
            group.task.model,
            group.task.data,
            group.compression,
            simulated,
            nodes,
            peers.topology.without(gone).parts(),
        )

    @property
    def started_s(self) -> float:
        """When the first node began to train."""
        return min(
            (node.compute_spans_s[0][0] for node in self.nodes if node.compute_spans_s), default=nan
        )

    @property
    def seconds(self) -> float:
        """From then until the last node had done its steps."""
        ends = [node.compute_spans_s[-1][1] for node in self.nodes if node.compute_spans_s]
        return max(ends, default=nan) - self.started_s

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

    def total(self, name: str) -> float:
        """Of one figure over all nodes."""
        return float(sum(getattr(node, name) for node in self.nodes))

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is not known is null."""
        counts = ("steps", "samples", "updates", "messages", "sent_bytes")
        total = {name: int(self.total(name)) for name in counts}
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
            "total": {**total, "waiting_s": self.total("waiting_s")},
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

"""Reports on training without an orchestrator: of each node, and of the whole group."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from melisma.peer import commands, notices
from melisma.peer.gradient_node import GradientNode
from melisma.peer.group import Peers
from melisma.peer.node import Node
from melisma.text import visible

if TYPE_CHECKING:
    from melisma.runs.svg import Picture

Output = commands.AnyCommand | notices.AnyNotice
MAX_NOTICES = 1000
"""The number of notices in a report; a neighbour could cause any number of them."""


class ScorePoint(msgspec.Struct, frozen=True):
    """The quality of a node's model after a number of steps."""

    at_s: float
    steps: int
    samples: int
    sent_bytes: int
    accuracy: float | None
    loss: float | None


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last incarnation of a node; times are seconds since the start of the run.

    `steps` include those of a model that it adopted from the neighbour `model_from`; `samples`
    counts only its own visits. `updates` is the number of updates that it computed, `last_update`
    the number of the last one. `messages` counts all sent messages, repetitions included. It waited
    `waiting_s` for its neighbours, and rejected `forgeries` messages that were signed with
    another key than their sender's. `chosen_lags` has one lag per round, `allowed_lags` its bound.
    `updates_applied` counts the updates of each neighbour that changed its model.
    """

    name: str
    outcome: str
    reason: str = ""
    incarnation: int = 0
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
    forgeries: int = 0
    updates_applied: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last model."""
        return self.scores[-1].accuracy if self.scores else None

    @property
    def loss(self) -> float | None:
        """The loss of the last model."""
        return self.scores[-1].loss if self.scores else None


class RecordedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a `NodeRecorder`, to continue them after a restart."""

    messages: int
    sent_bytes: int
    waiting_s: float
    started_s: float
    model_from: str
    compute_spans_s: list[tuple[float, float]]
    scores: list[ScorePoint]
    notices: list[str]
    updates_applied: dict[str, int]


@dataclass
class NodeRecorder:
    """Collects the figures of one incarnation of a node while a driver runs it."""

    node: Node
    messages: int = 0
    sent_bytes: int = 0
    waiting_s: float = 0.0
    started_s: float = nan
    model_from: str = ""
    compute_spans_s: list[tuple[float, float]] = field(default_factory=list)
    scores: list[ScorePoint] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    updates_applied: Counter[str] = field(default_factory=Counter)
    _since_s: float = nan

    def figures(self) -> RecordedFigures:
        """Return all figures."""
        return msgspec.convert(self, RecordedFigures, from_attributes=True)

    def restore(self, at_s: float, figures: RecordedFigures) -> None:
        """Continue from figures; the time in which the node did not run is no waiting."""
        for name, value in msgspec.structs.asdict(figures).items():
            setattr(self, name, value)
        self.updates_applied = Counter(figures.updates_applied)
        self._since_s = at_s

    def record_sent(self, size_bytes: int) -> None:
        """Count a message."""
        self.messages += 1
        self.sent_bytes += size_bytes

    def record_computed(self, at_s: float) -> None:
        """End a span of computing; from now on the node waits."""
        self.compute_spans_s.append((self._since_s, at_s))
        self._since_s = at_s

    def record_outputs(self, at_s: float, outputs: Sequence[Output]) -> None:
        """Record the start of training, spans of waiting, and notices."""
        for output in outputs:
            match output:
                case notices.TrainingStarted(model_from=model_from):
                    self.started_s = self._since_s = at_s
                    self.model_from = model_from
                case commands.TakeSteps():
                    self.waiting_s += at_s - self._since_s
                    self._since_s = at_s
                case notices.UpdateApplied(sender=sender):
                    self.updates_applied[sender] += 1
            if line := describe_notice(output):
                self.record_notice(at_s, line)

    def record_notice(self, at_s: float, line: str) -> None:
        """Record a line for users."""
        if len(self.notices) < MAX_NOTICES:
            self.notices.append(f"{at_s:.3f} s: {line}")

    def report(self, at_s: float, outcome: str, reason: str, samples: int) -> NodeReport:
        """Return the report of the node at its end."""
        node = self.node
        choices = node.lag.choices if isinstance(node, GradientNode) else []
        return NodeReport(
            name=node.identity.name,
            outcome=outcome,
            reason=reason,
            incarnation=node.identity.incarnation,
            steps=node.steps,
            samples=samples,
            updates=node.own_updates,
            last_update=node.update_number,
            messages=self.messages,
            sent_bytes=self.sent_bytes,
            waiting_s=self.waiting_s,
            started_s=_finite_or_none(self.started_s),
            ended_s=at_s,
            model_from=self.model_from,
            chosen_lags=[choice.lag for choice in choices],
            allowed_lags=[choice.allowed for choice in choices],
            compute_spans_s=self.compute_spans_s,
            scores=self.scores,
            notices=self.notices,
            forgeries=node.membership.forgeries.total(),
            updates_applied=dict(self.updates_applied),
        )


def describe_notice(output: Output) -> str:
    """Describe a notice that matters to users; return an empty string for all other outputs."""
    return visible(_describe_notice(output))


def _describe_notice(output: Output) -> str:
    match output:
        case notices.NeighbourLost(name=name, alone=alone):
            left = "no neighbour is left" if alone else "training continues without it"
            return f"{name} is lost; {left}"
        case notices.NeighbourStalled(name=name, waited_s=waited_s):
            waited = f"{name} answers, but sent no update for {waited_s:.1f} s"
            return f"{waited}; training continues without waiting for it"
        case notices.ForgeryRejected(sender=sender, reason=reason):
            return f"forged message in the name of {sender}: {reason}"
        case notices.IncarnationRefuted(known_by=name):
            return f"{name} knows a later incarnation of this node; continuing as a newer one"
        case notices.UpdateApplied(sender=sender, number=number, factor=factor) if factor < 1:
            return f"update {number} of {sender} is scaled by {factor:.3g}: far larger than others"
        case notices.NeighbourReady(name=name, returned=True):
            return f"{name} is back"
        case notices.NeighbourJoined(name=name, assumed_updates=assumed_updates) if assumed_updates:
            return f"{name} joins"
        case notices.TrainingStarted(model_from=model_from, updates_done=number) if model_from:
            return f"starts with the model of {model_from} after {number} updates"
        case notices.MessageRejected(sender=sender, reason=reason):
            return f"{sender}: {reason}"
    return ""


@dataclass(frozen=True)
class PeerReport:
    """A whole run: its settings and a report for each node."""

    algorithm: str
    topology: str
    model: str
    data: str
    compression: str
    simulated: bool
    nodes: list[NodeReport]
    parts: list[list[str]] = field(default_factory=list)
    """The connected components of the nodes that trained to the end."""
    folder: Path | None = None

    @classmethod
    def from_nodes(cls, peers: Peers, nodes: list[NodeReport], *, simulated: bool) -> "PeerReport":
        """Create the report of a group whose nodes have ended."""
        settings = peers.settings
        unfinished = [node.name for node in nodes if node.outcome != "finished"]
        return cls(
            str(settings.algorithm.__struct_config__.tag),
            peers.topology_name,
            settings.task.model,
            settings.task.data,
            settings.compression,
            simulated,
            nodes,
            peers.topology.without(unfinished).parts(),
        )

    @property
    def started_s(self) -> float:
        """The time at which the first node started to compute."""
        spans = [node.compute_spans_s for node in self.nodes if node.compute_spans_s]
        return min((span[0][0] for span in spans), default=nan)

    @property
    def seconds(self) -> float:
        """The time from the start until the last node had taken its steps."""
        spans = [node.compute_spans_s for node in self.nodes if node.compute_spans_s]
        return max((span[-1][1] for span in spans), default=nan) - self.started_s

    @property
    def accuracy(self) -> float:
        """The mean accuracy of the nodes that trained to the end, or of all if none did."""
        done = [node for node in self.nodes if node.outcome == "finished"] or self.nodes
        known = [node.accuracy for node in done if node.accuracy is not None]
        return float(np.mean(known)) if known else nan

    @property
    def succeeded(self) -> bool:
        """Whether every node trained to the end."""
        return all(node.outcome == "finished" for node in self.nodes)

    def total(self, name: str) -> float:
        """Return the sum of one figure over all nodes."""
        return float(sum(getattr(node, name) for node in self.nodes))

    def as_dict(self) -> dict[str, Any]:
        """Return builtins for JSON; unknown figures are None."""
        counts = ("steps", "samples", "updates", "messages", "sent_bytes")
        total = {name: int(self.total(name)) for name in counts}
        head = {
            "algorithm": self.algorithm,
            "topology": self.topology,
            "model": self.model,
            "data": self.data,
            "compression": self.compression,
            "simulated": self.simulated,
            "seconds": _finite_or_none(self.seconds),
            "accuracy": _finite_or_none(self.accuracy),
            "parts": self.parts,
            "total": {**total, "waiting_s": self.total("waiting_s")},
        }
        nodes = msgspec.to_builtins(self.nodes)
        for node, builtins in zip(self.nodes, nodes, strict=True):
            builtins |= {"accuracy": node.accuracy, "loss": node.loss}
        return {**head, "nodes": nodes}

    def plot(self) -> "Picture":
        """Draw when each node computed and waited, and how accurate its model became."""
        from melisma.runs.peer_picture import draw_peers

        return draw_peers(self)


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None

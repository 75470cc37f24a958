"""Nodes without an orchestrator in virtual time: the machines of `peer/`, led by one agenda.

Steps of a round are taken as late as they can be: when a message comes, those that were due before
it, and the rest at the end. Messages arrive at least once: what is lost is sent again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

import msgspec
import numpy as np

from melisma.fleet.channel import Floats
from melisma.learning.data.datasets import Split
from melisma.learning.steps import Steps
from melisma.peer import commands, messages
from melisma.peer.node import Node, Outputs
from melisma.peer.topology import Topology
from melisma.runs.interruption import interruptible
from melisma.runs.peer_report import NodeRecorder, NodeReport, ScorePoint
from melisma.simulation.faults import Fault
from melisma.simulation.invariants import InvariantError
from melisma.simulation.kernel import EventQueue
from melisma.simulation.peers.delays import Delays

CreateNode = Callable[[str, str], tuple[Node, Steps]]
PeerWatcher = Callable[[str, float, Node, Outputs], None]
RESENDS = 4
"""What is lost is sent again so many times within the patience of a node."""


@dataclass(frozen=True)
class PeerScenario:
    """Who there is and what happens to them; `made` makes a node of that name in that life.

    Nodes that are not there from the beginning `come` later. With a `test` set a model is scored
    after every `every` steps, or only at the end; that takes no time. Where nothing is trained,
    an update weighs `update_bytes` more than it does.
    """

    topology: Topology
    create_node: CreateNode
    delays: Delays = field(default_factory=Delays)
    faults: tuple[Fault, ...] = ()
    joins_s: Mapping[str, float] = field(default_factory=dict)
    test: Split | None = None
    score_every: int = 0
    update_bytes: int = 0


@dataclass
class SimulatedNode:
    """One life of a node: what it computes, and how far it is."""

    node: Node
    steps: Steps
    recorder: NodeRecorder
    clock_rate: float
    round_started_s: float = 0.0
    step_ends_s: Floats = field(default_factory=lambda: np.empty(0))
    steps_taken: int = 0
    scored_steps: int = 0
    outcome: str = ""
    reason: str = ""

    @property
    def alive(self) -> bool:
        """Whether it still does anything."""
        return self.outcome == ""

    def catch_up(self, at_s: float) -> None:
        """Take the steps that end by then."""
        due = int(np.searchsorted(self.step_ends_s, at_s, "right"))
        if self.node.computing is not None:
            for _ in range(self.steps_taken, due):
                self.steps.step(self.node.computing.learning_rate)
        self.steps_taken = max(self.steps_taken, due)


class PeerDriver:
    """Runs a scene to its end."""

    def __init__(self, scene: PeerScenario, watch: PeerWatcher = lambda *_: None) -> None:
        self._scene, self._watch = scene, watch
        self._agenda = EventQueue()
        self._number = {name: place for place, name in enumerate(scene.topology.names)}
        self._seats: dict[str, SimulatedNode] = {}
        self._lives: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self._updates: Counter[str] = Counter()
        self._to_come = self._quiet = self._flying = 0

    @property
    def steps(self) -> dict[str, Steps]:
        """What each node trains, in the last of its lives."""
        return {name: seat.steps for name, seat in self._seats.items()}

    def run(self) -> list[NodeReport]:
        """Until every node that is there has come to its end."""
        for name in self._scene.topology.names:
            self._comes(name, self._scene.joins_s.get(name, 0.0))
        for fault in self._scene.faults:
            if fault.kind in ("crash", "vanish"):
                for who in fault.learners:
                    self._agenda.schedule(fault.at_s, partial(self._dies, fault, who))
        with interruptible() as check:
            while not self._over() and self._agenda.step():
                check()
                self._check_for_life()
        return [self._report(name) for name in self._scene.topology.names if name in self._seats]

    # What happens to nodes.

    def _comes(self, name: str, at_s: float) -> None:
        self._to_come += 1
        self._agenda.schedule(at_s, partial(self._born, name))

    def _born(self, name: str) -> None:
        self._quiet = 0
        self._to_come -= 1
        self._lives[name] += 1
        node, steps = self._scene.create_node(name, f"{self._lives[name]:06}")
        clock = 1.0
        for fault in self._scene.faults:
            if fault.kind == "clock" and self._number[name] in fault.learners:
                clock *= fault.by
        seat = self._seats[name] = SimulatedNode(node, steps, NodeRecorder(node), clock)
        self._do(seat, node.start(self._now_of(seat)))

    def _dies(self, fault: Fault, who: int) -> None:
        self._quiet = 0
        name = self._scene.topology.names[who]
        seat = self._seats.get(name)
        if seat is None or not seat.alive:
            return
        seat.catch_up(self._agenda.now_s)
        seat.outcome, seat.reason = "gone", f"it {fault.kind}ed"
        if fault.for_s is not None:
            self._comes(name, self._agenda.now_s + fault.for_s)

    def _gone(self, seat: SimulatedNode, name: str) -> None:
        if not seat.alive:
            return
        seat.catch_up(self._agenda.now_s)
        self._do(seat, seat.node.on_unreachable(self._now_of(seat), name))

    # What nodes want.

    def _do(self, seat: SimulatedNode, emitted: Outputs) -> None:
        now_s = self._agenda.now_s
        # To be there and to look for others leads to nothing by itself.
        if any(not isinstance(each, commands.Send | commands.Wake) for each in emitted):
            self._quiet = 0
        seat.recorder.record_outputs(now_s, emitted)
        self._watch(seat.node.identity.name, now_s, seat.node, emitted)
        for command in emitted:
            match command:
                case commands.Compute():
                    self._compute(seat, command)
                case commands.Send(to=to, message=message):
                    self._send(seat, to, message)
                case commands.Wake(at_s=at_s):
                    self._agenda.schedule(at_s / seat.clock_rate, partial(self._wakes, seat))
                case commands.Finish(why=why):
                    self._score(seat)
                    seat.outcome, seat.reason = "failed" if why else "done", why

    def _compute(self, seat: SimulatedNode, order: commands.Compute) -> None:
        number = self._number[seat.node.identity.name]
        now_s = self._agenda.now_s
        seconds = self._scene.delays.steps(number, order.number, order.steps)
        for fault in self._scene.faults:
            if fault.kind == "slow" and number in fault.learners and _within(fault, now_s):
                seconds = seconds * fault.by
        seat.round_started_s, seat.steps_taken = now_s, 0
        seat.step_ends_s = now_s + np.cumsum(seconds)
        self._agenda.schedule(float(seat.step_ends_s[-1]), partial(self._computed, seat))

    def _computed(self, seat: SimulatedNode) -> None:
        if not seat.alive:
            return
        self._quiet = 0
        assert seat.node.computing is not None
        seat.catch_up(inf)
        seat.recorder.record_computed(self._agenda.now_s)
        self._do(seat, seat.node.on_computed(self._now_of(seat)))
        if (
            self._scene.score_every
            and seat.node.steps >= seat.scored_steps + self._scene.score_every
        ):
            self._score(seat)

    def _wakes(self, seat: SimulatedNode) -> None:
        if seat.alive:
            self._quiet += 1
            seat.catch_up(self._agenda.now_s)
            self._do(seat, seat.node.on_wake(self._now_of(seat)))

    def _score(self, seat: SimulatedNode) -> None:
        seat.scored_steps = seat.node.steps
        accuracy = loss = None
        if self._scene.test is not None:
            score = seat.steps.score(self._scene.test)
            accuracy, loss = score.accuracy, score.loss
        tally = seat.recorder
        tally.scores.append(
            ScorePoint(
                self._agenda.now_s,
                seat.node.steps,
                seat.steps.visits,
                tally.sent_bytes,
                accuracy,
                loss,
            )
        )

    # Messages.

    def _send(self, seat: SimulatedNode, to: str, message: messages.Message) -> None:
        sender = seat.node.identity.name
        size_bytes = len(msgspec.msgpack.encode(message))
        self._sent[sender] += 1
        self._arrived[to] += 1
        sent, arrived = self._sent[sender], self._arrived[to]
        if isinstance(message, messages.Update):
            size_bytes += self._scene.update_bytes
            self._updates[sender] += 1
            message = self._corrupted(sender, message)
        seat.recorder.record_sent(size_bytes)
        delay_s = self._scene.delays.message(self._number[sender], sent, size_bytes)
        again: list[float] = []
        for fault in self._scene.faults:
            hit = (
                fault.message == "report"
                and fault.nth == sent
                and self._number[sender] in fault.learners
            ) or (
                fault.message == "order"
                and fault.nth == arrived
                and self._number.get(to, -1) in fault.learners
            )
            if hit and fault.kind == "lose":
                seat.recorder.record_sent(size_bytes)
                delay_s += seat.node.identity.patience_s / RESENDS
            elif hit and fault.kind == "delay":
                delay_s += fault.by
            elif hit and fault.kind == "duplicate":
                seat.recorder.record_sent(size_bytes)
                again.append(fault.by)
        arrives_s = self._agenda.now_s + delay_s
        if (
            self._flies(seat, to, message, arrives_s)
            > self._agenda.now_s + seat.node.identity.patience_s
        ):
            given_up_s = self._agenda.now_s + seat.node.identity.patience_s
            self._agenda.schedule(given_up_s, partial(self._gone, seat, to))
        for late_s in again:
            self._flies(seat, to, message, arrives_s + late_s)

    def _flies(self, seat: SimulatedNode, to: str, message: messages.Message, at_s: float) -> float:
        """When it arrives: later, if a partition is in the way."""
        for fault in sorted(self._scene.faults, key=lambda each: each.at_s):
            if fault.kind == "partition" and _within(fault, at_s):
                sides = [
                    self._number[name] in fault.learners for name in (seat.node.identity.name, to)
                ]
                at_s = fault.at_s + (fault.for_s or 0.0) if sides[0] != sides[1] else at_s
        self._flying += 1
        self._agenda.schedule(at_s, partial(self._lands, seat, to, message, self._agenda.now_s))
        return at_s

    def _lands(
        self, sender: SimulatedNode, to: str, message: messages.Message, sent_s: float
    ) -> None:
        self._flying -= 1
        self._arrives(sender, to, message, sent_s)

    def _arrives(
        self, sender: SimulatedNode, to: str, message: messages.Message, sent_s: float
    ) -> None:
        now_s, seat = self._agenda.now_s, self._seats.get(to)
        if seat is None or not seat.alive:
            self._nobody(sender, to, message, sent_s)
            return
        if sender.alive:
            sender.node.on_acknowledged(2 * (now_s - sent_s))
        seat.catch_up(now_s)
        self._do(seat, seat.node.on_message(self._now_of(seat), message))

    def _nobody(
        self, sender: SimulatedNode, to: str, message: messages.Message, sent_s: float
    ) -> None:
        """It is tried again for a while; then the sender is told that nobody is there."""
        now_s, patience_s = self._agenda.now_s, sender.node.identity.patience_s
        if not sender.alive:
            return
        if now_s > sent_s + patience_s:
            self._gone(sender, to)
        else:
            again = partial(self._arrives, sender, to, message, sent_s)
            self._agenda.schedule(now_s + patience_s / RESENDS, again)

    def _corrupted(self, sender: str, update: messages.Update) -> messages.Update:
        for fault in self._scene.faults:
            hit = fault.kind == "corrupt" and self._number[sender] in fault.learners
            if hit and fault.nth == self._updates[sender]:
                return msgspec.structs.replace(update, content=b"\xff" * 7)
        return update

    # The end.

    def _now_of(self, seat: SimulatedNode) -> float:
        return self._agenda.now_s * seat.clock_rate

    def _over(self) -> bool:
        return not self._to_come and not any(seat.alive for seat in self._seats.values())

    def _check_for_life(self) -> None:
        """Nodes that do nothing but wake, with no message under way, wait for each other."""
        if self._flying or self._quiet <= 3 * len(self._seats) + 3:
            return
        waiting = [seat for seat in self._seats.values() if seat.alive]
        if not any(seat.node.computing for seat in waiting):
            names = ", ".join(seat.node.identity.name for seat in waiting)
            raise InvariantError(f"{names} wait for each other")

    def _report(self, name: str) -> NodeReport:
        seat = self._seats[name]
        outcome = seat.outcome or "waiting"
        return seat.recorder.report(self._agenda.now_s, outcome, seat.reason, seat.steps.visits)


def _within(fault: Fault, at_s: float) -> bool:
    return fault.at_s <= at_s < fault.at_s + (fault.for_s or 0.0)

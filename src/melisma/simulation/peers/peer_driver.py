"""Drives the state machines of `peer/` in virtual time, by one event queue.

The steps of a round are taken as late as possible: those due before a message arrives, and the
rest at the end. Messages arrive at least once: lost ones are sent again.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf

import msgspec
import numpy as np

from melisma.learning.stepper import Stepper
from melisma.peer import commands, messages
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.runs.interruption import interruptible
from melisma.runs.peer_report import NodeRecorder, NodeReport, ScorePoint
from melisma.simulation.faults import Fault
from melisma.simulation.invariants import InvariantError
from melisma.simulation.kernel import EventQueue
from melisma.simulation.peers.attacks import FORGED_KEY, Attack, forged_messages
from melisma.simulation.peers.peer_scenario import PeerScenario, SimulatedNode

PeerWatcher = Callable[[str, float, Node, Outputs], None]
RESENDS = 4
"""How often a lost message is sent within the patience of a node."""
CORRUPT_CONTENT = b"\xff" * 7


class PeerDriver:
    """Runs a scenario to its end; `watch` sees the outputs of every node."""

    def __init__(self, scenario: PeerScenario, watch: PeerWatcher = lambda *_: None) -> None:
        self._scenario, self._watch = scenario, watch
        self._queue = EventQueue()
        self._index = {name: index for index, name in enumerate(scenario.topology.names)}
        self._nodes: dict[str, SimulatedNode] = {}
        self._incarnations: Counter[str] = Counter()
        self._messages_from: Counter[str] = Counter()
        self._messages_to: Counter[str] = Counter()
        self._updates_from: Counter[str] = Counter()
        self._expected_joins = self._in_flight = 0
        self._active_s = 0.0
        self._idle_wakes = 0
        """Wakes since a node last did more than send messages."""

    @property
    def steps(self) -> dict[str, Stepper]:
        """The trained models by node, of the last incarnation."""
        return {name: simulated.steps for name, simulated in self._nodes.items()}

    def run(self) -> list[NodeReport]:
        """Run until every node has ended."""
        for name in self._scenario.topology.names:
            self._schedule_join(name, self._scenario.joins_s.get(name, 0.0))
        for fault in self._scenario.faults:
            if fault.kind in ("crash", "vanish"):
                for index in fault.learners:
                    self._queue.schedule(fault.at_s, partial(self._crash, fault, index))
        for attack in self._scenario.attacks:
            if attack.kind == "forge":
                self._queue.schedule(attack.at_s, partial(self._forge, attack))
        with interruptible() as check:
            while not self._all_ended() and self._queue.step():
                check()
                self._check_deadlock()
        return [self._report(name) for name in self._scenario.topology.names if name in self._nodes]

    # Nodes join and crash.

    def _schedule_join(self, name: str, at_s: float) -> None:
        self._expected_joins += 1
        self._queue.schedule(at_s, partial(self._join, name))

    def _join(self, name: str) -> None:
        self._idle_wakes, self._active_s = 0, self._queue.now_s
        self._expected_joins -= 1
        self._incarnations[name] += 1
        node, steps = self._scenario.create_node(name, self._incarnations[name])
        clock_rate = 1.0
        for fault in self._scenario.faults:
            if fault.kind == "clock" and self._index[name] in fault.learners:
                clock_rate *= fault.by
        simulated = SimulatedNode(node, steps, NodeRecorder(node), clock_rate)
        self._nodes[name] = simulated
        self._execute(simulated, node.start(self._local_time(simulated)))

    def _crash(self, fault: Fault, index: int) -> None:
        self._idle_wakes = 0
        name = self._scenario.topology.names[index]
        simulated = self._nodes.get(name)
        if simulated is None or not simulated.alive:
            return
        simulated.catch_up(self._queue.now_s)
        simulated.outcome, simulated.reason = "left", f"it {fault.kind}ed"
        if fault.for_s is not None:
            self._schedule_join(name, self._queue.now_s + fault.for_s)

    # Commands.

    def _execute(self, simulated: SimulatedNode, outputs: Outputs) -> None:
        now_s = self._queue.now_s
        if any(not isinstance(output, commands.Send | commands.Wake) for output in outputs):
            self._idle_wakes, self._active_s = 0, now_s
        simulated.recorder.record_outputs(now_s, outputs)
        self._watch(simulated.name, now_s, simulated.node, outputs)
        for output in outputs:
            match output:
                case commands.TakeSteps():
                    self._compute(simulated, output)
                case commands.Send(to=to, message=message):
                    self._send(simulated, to, message)
                case commands.Wake(at_s=at_s):
                    wake = partial(self._on_wake, simulated)
                    self._queue.schedule(at_s / simulated.clock_rate, wake)
                case commands.Finish(reason=reason):
                    self._score(simulated)
                    simulated.outcome = "failed" if reason else "done"
                    simulated.reason = reason

    def _compute(self, simulated: SimulatedNode, compute: commands.TakeSteps) -> None:
        index, now_s = self._index[simulated.name], self._queue.now_s
        seconds = self._scenario.delays.step_seconds(index, compute.number, compute.steps)
        for fault in self._scenario.faults:
            if fault.kind == "slow" and index in fault.learners and _is_active(fault, now_s):
                seconds = seconds * fault.by
        simulated.steps_taken = 0
        simulated.step_ends_s = now_s + np.cumsum(seconds)
        end_s = float(simulated.step_ends_s[-1])
        self._queue.schedule(end_s, partial(self._on_computed, simulated))

    def _on_computed(self, simulated: SimulatedNode) -> None:
        if not simulated.alive:
            return
        self._idle_wakes, self._active_s = 0, self._queue.now_s
        assert simulated.node.computing is not None
        simulated.catch_up(inf)
        simulated.recorder.record_computed(self._queue.now_s)
        self._execute(simulated, simulated.node.on_computed(self._local_time(simulated)))
        every = self._scenario.score_every
        if every and simulated.node.steps >= simulated.scored_steps + every:
            self._score(simulated)

    def _on_wake(self, simulated: SimulatedNode) -> None:
        if simulated.alive:
            self._idle_wakes += 1
            simulated.catch_up(self._queue.now_s)
            self._execute(simulated, simulated.node.on_wake(self._local_time(simulated)))

    def _score(self, simulated: SimulatedNode) -> None:
        steps, recorder = simulated.node.steps, simulated.recorder
        simulated.scored_steps = steps
        accuracy = loss = None
        if self._scenario.test is not None:
            score = simulated.steps.score(self._scenario.test)
            accuracy, loss = score.accuracy, score.loss
        samples, sent_bytes = simulated.steps.visits, recorder.sent_bytes
        point = ScorePoint(self._queue.now_s, steps, samples, sent_bytes, accuracy, loss)
        recorder.scores.append(point)

    # Messages.

    def _send(self, sender: SimulatedNode, to: str, message: messages.Message) -> None:
        if self._is_silent(sender.name) and not isinstance(message, messages.Heartbeat):
            return
        size_bytes = len(msgspec.msgpack.encode(message))
        self._messages_from[sender.name] += 1
        self._messages_to[to] += 1
        if isinstance(message, messages.Update):
            size_bytes += self._scenario.update_bytes
            self._updates_from[sender.name] += 1
            message = self._corrupt(sender.name, message)
        sender.recorder.record_sent(size_bytes)
        index, nth = self._index[sender.name], self._messages_from[sender.name]
        delay_s = self._scenario.delays.message_seconds(index, nth, size_bytes)
        duplicates_s: list[float] = []
        for fault in self._message_faults(sender.name, to):
            if fault.kind == "delay":
                delay_s += fault.by
                continue
            sender.recorder.record_sent(size_bytes)
            if fault.kind == "lose":
                delay_s += sender.patience_s / RESENDS
            else:
                duplicates_s.append(fault.by)
        now_s = self._queue.now_s
        give_up_s, arrival_s = now_s + sender.patience_s, now_s + delay_s
        if self._transmit(sender, to, message, arrival_s) > give_up_s:
            self._queue.schedule(give_up_s, partial(self._on_unreachable, sender, to))
        for later_s in duplicates_s:
            self._transmit(sender, to, message, arrival_s + later_s)

    def _message_faults(self, sender: str, to: str) -> list[Fault]:
        """Return the faults that lose, delay or duplicate the message just counted."""
        counted = {
            "report": (self._messages_from[sender], self._index[sender]),
            "instruction": (self._messages_to[to], self._index.get(to, -1)),
        }
        return [
            fault
            for fault in self._scenario.faults
            if fault.kind in ("lose", "delay", "duplicate")
            and fault.nth == counted[fault.message][0]
            and counted[fault.message][1] in fault.learners
        ]

    def _corrupt(self, sender: str, update: messages.Update) -> messages.Update:
        for fault in self._scenario.faults:
            matches = fault.kind == "corrupt" and self._index[sender] in fault.learners
            if matches and fault.nth == self._updates_from[sender]:
                return msgspec.structs.replace(update, content=CORRUPT_CONTENT)
        return update

    def _transmit(
        self, sender: SimulatedNode, to: str, message: messages.Message, at_s: float
    ) -> float:
        """Schedule an arrival, after the end of partitions; return its time."""
        for fault in sorted(self._scenario.faults, key=lambda fault: fault.at_s):
            if fault.kind == "partition" and _is_active(fault, at_s):
                inside = [self._index[name] in fault.learners for name in (sender.name, to)]
                at_s = fault.at_s + (fault.for_s or 0.0) if inside[0] != inside[1] else at_s
        self._in_flight += 1
        arrive = partial(self._arrive, sender, to, message, self._queue.now_s)
        self._queue.schedule(at_s, arrive)
        return at_s

    def _arrive(
        self, sender: SimulatedNode, to: str, message: messages.Message, sent_s: float
    ) -> None:
        self._in_flight -= 1
        self._deliver(sender, to, message, sent_s)

    def _deliver(
        self, sender: SimulatedNode, to: str, message: messages.Message, sent_s: float
    ) -> None:
        receiver = self._nodes.get(to)
        if receiver is None or not receiver.alive:
            self._retry(sender, to, message, sent_s)
            return
        if sender.alive:
            sender.node.on_acknowledged(2 * (self._queue.now_s - sent_s))
        receiver.catch_up(self._queue.now_s)
        at_s = self._local_time(receiver)
        self._execute(receiver, receiver.node.on_message(at_s, message, sender.key))

    def _is_silent(self, name: str) -> bool:
        """Return whether a node withholds its messages now."""
        index, now_s = self._index[name], self._queue.now_s
        return any(
            attack.kind == "silence" and attack.node == index and attack.at_s <= now_s
            for attack in self._scenario.attacks
        )

    def _forge(self, attack: Attack) -> None:
        """Deliver forged messages in the name of a node to its neighbours."""
        name = self._scenario.topology.names[attack.node]
        for neighbour in self._scenario.topology.neighbours(name):
            receiver = self._nodes.get(neighbour)
            for message in forged_messages(name, self._incarnations[name]):
                if receiver is not None and receiver.alive:
                    receiver.catch_up(self._queue.now_s)
                    at_s = self._local_time(receiver)
                    outputs = receiver.node.on_message(at_s, message, FORGED_KEY)
                    self._execute(receiver, outputs)

    def _retry(
        self, sender: SimulatedNode, to: str, message: messages.Message, sent_s: float
    ) -> None:
        """Deliver later, or report the receiver as unreachable when patience is over."""
        now_s = self._queue.now_s
        if not sender.alive:
            return
        if now_s > sent_s + sender.patience_s:
            self._on_unreachable(sender, to)
        else:
            deliver = partial(self._deliver, sender, to, message, sent_s)
            self._queue.schedule(now_s + sender.patience_s / RESENDS, deliver)

    def _on_unreachable(self, simulated: SimulatedNode, name: str) -> None:
        if simulated.alive:
            simulated.catch_up(self._queue.now_s)
            at_s = self._local_time(simulated)
            self._execute(simulated, simulated.node.on_unreachable(at_s, name))

    # The end.

    def _local_time(self, simulated: SimulatedNode) -> float:
        return self._queue.now_s * simulated.clock_rate

    def _all_ended(self) -> bool:
        return not self._expected_joins and not any(node.alive for node in self._nodes.values())

    def _check_deadlock(self) -> None:
        """Raise `InvariantError` if nodes only wake, with no message in flight."""
        if self._in_flight or self._idle_wakes <= 3 * len(self._nodes) + 3:
            return
        waiting = [simulated for simulated in self._nodes.values() if simulated.alive]
        limits_s = (
            simulated.node.wait_limit_s(neighbour) / simulated.clock_rate
            for simulated in waiting
            for neighbour in simulated.node.membership.neighbours_to_await()
        )
        # Neighbours without progress are given up after a while.
        if self._queue.now_s - self._active_s <= 3 * max(limits_s, default=0.0):
            return
        if not any(simulated.node.computing for simulated in waiting):
            names = ", ".join(simulated.name for simulated in waiting)
            raise InvariantError(f"{names} wait for each other")

    def _report(self, name: str) -> NodeReport:
        simulated = self._nodes[name]
        outcome, samples = simulated.outcome or "waiting", simulated.steps.visits
        return simulated.recorder.report(self._queue.now_s, outcome, simulated.reason, samples)


def _is_active(fault: Fault, at_s: float) -> bool:
    return fault.at_s <= at_s < fault.at_s + (fault.for_s or 0.0)

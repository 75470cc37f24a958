"""Drives the state machines of `peer/` in virtual time, by one event queue.

The steps of a round are taken as late as possible: those due before a message arrives, and the
rest at the end.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, prod

import numpy as np

from melisma.learning.stepper import Stepper
from melisma.peer import commands, notices
from melisma.peer.node import Node
from melisma.peer.node_snapshot import NodeSnapshot, decode, needs_snapshot, restore, resume
from melisma.peer.node_state import Outputs
from melisma.runs.interruption import interruptible
from melisma.runs.peer_report import NodeRecorder, NodeReport, ScorePoint
from melisma.simulation.faults import Fault
from melisma.simulation.invariants.violations import InvariantError
from melisma.simulation.kernel import EventQueue
from melisma.simulation.peers.attacks import Attack
from melisma.simulation.peers.peer_network import PeerNetwork
from melisma.simulation.peers.peer_scenario import NodeDisk, PeerScenario, SimulatedNode

PeerWatcher = Callable[[str, float, Node, Outputs], None]
ResumeWatcher = Callable[[str, float, Node, Node], None]


class PeerDriver:
    """Runs a scenario to its end; `watch` sees the outputs of every node.

    A node that crashes resumes from its disk; one that vanishes starts anew. `watch_resume` sees a
    node that resumes and its former process.
    """

    def __init__(
        self,
        scenario: PeerScenario,
        watch: PeerWatcher = lambda *_: None,
        watch_resume: ResumeWatcher = lambda *_: None,
    ) -> None:
        self._scenario, self._watch, self._watch_resume = scenario, watch, watch_resume
        self._queue = EventQueue()
        self._index = scenario.index
        self._nodes: dict[str, SimulatedNode] = {}
        self._incarnations: Counter[str] = Counter()
        self._network = PeerNetwork(scenario, self._queue, self._nodes, self._execute)
        self._expected_joins = 0
        self._active_s = 0.0  # when a node last did more than send messages
        self._idle_wakes = 0  # wakes since then; a crash starts the count anew

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

    def _schedule_join(self, name: str, at_s: float) -> None:
        self._expected_joins += 1
        self._queue.schedule(at_s, partial(self._join, name))

    def _join(self, name: str) -> None:
        self._expected_joins -= 1
        self._incarnations[name] += 1
        simulated = self._create(name)
        self._execute(
            simulated, simulated.node.start(simulated.local_time(self._queue.now_s)), save=True
        )

    def _create(self, name: str) -> SimulatedNode:
        self._idle_wakes, self._active_s = 0, self._queue.now_s
        node, steps = self._scenario.create_node(name, self._incarnations[name])
        faults = [each for each in self._scenario.faults if self._index[name] in each.learners]
        clock_rate = prod(fault.by for fault in faults if fault.kind == "clock")
        disk = NodeDisk() if any(map(_resumes, faults)) else None
        simulated = SimulatedNode(node, steps, NodeRecorder(node), clock_rate, disk=disk)
        self._nodes[name] = simulated
        return simulated

    def _resume(self, former: SimulatedNode) -> None:
        """Start the process of a node again, with the state on its disk."""
        assert former.disk is not None
        self._expected_joins -= 1
        simulated = self._create(former.name)
        snapshot = decode(former.disk.snapshot, NodeSnapshot, f"the state of {former.name}")
        node, now_s = simulated.node, self._queue.now_s
        simulated.sent = restore(node, simulated.steps, snapshot)
        simulated.recorder = replace(former.recorder, node=node)
        unacknowledged = simulated.sent.pending()
        if node.computing is not None:
            self._compute(simulated, node.computing, snapshot.steps_left)
        outputs = resume(node, simulated.local_time(now_s), former.disk.inbox)
        # The former process has made these known already, and repeats no message of its own.
        news: Outputs = [each for each in outputs if not isinstance(each, notices.NodeNotice)]
        self._watch_resume(simulated.name, now_s, node, former.node)
        self._execute(simulated, news, save=True)
        for number, send in unacknowledged.items():
            self._network.send(simulated, send.to, send.message, number)

    def _forge(self, attack: Attack) -> None:
        name = self._scenario.topology.names[attack.node]
        self._network.forge(attack, self._incarnations[name])

    def _crash(self, fault: Fault, index: int) -> None:
        self._idle_wakes = 0
        name = self._scenario.topology.names[index]
        simulated = self._nodes.get(name)
        if simulated is None or not simulated.alive:
            return
        simulated.catch_up(self._queue.now_s)
        simulated.outcome, simulated.reason = "left", f"it {fault.kind}ed"
        if fault.for_s is None:
            return
        if _resumes(fault):
            self._expected_joins += 1
            self._queue.schedule(self._queue.now_s + fault.for_s, partial(self._resume, simulated))
        else:
            self._schedule_join(name, self._queue.now_s + fault.for_s)

    def _execute(self, simulated: SimulatedNode, outputs: Outputs, *, save: bool = False) -> None:
        """Carry out the outputs of a node, and save its state if they depend on it."""
        now_s = self._queue.now_s
        numbers = [
            simulated.sent.add(output) if isinstance(output, commands.Send) else 0
            for output in outputs
        ]
        if any(not isinstance(output, commands.Send | commands.Wake) for output in outputs):
            self._idle_wakes, self._active_s = 0, now_s
        simulated.recorder.record_outputs(now_s, outputs)
        self._watch(simulated.name, now_s, simulated.node, outputs)
        for number, output in zip(numbers, outputs, strict=True):
            match output:
                case commands.TakeSteps():
                    self._compute(simulated, output, output.steps)
                case commands.Send(to=to, message=message):
                    self._network.send(simulated, to, message, number)
                case commands.Wake(at_s=at_s):
                    wake = partial(self._on_wake, simulated)
                    self._queue.schedule(at_s / simulated.clock_rate, wake)
                case commands.Finish(reason=reason):
                    self._score(simulated)
                    simulated.outcome = "failed" if reason else "finished"
                    simulated.reason = reason
        # An event takes no time: no message has arrived yet.
        if save or needs_snapshot(outputs):
            simulated.save()

    def _compute(
        self, simulated: SimulatedNode, compute: commands.TakeSteps, steps_left: int
    ) -> None:
        index, now_s = self._index[simulated.name], self._queue.now_s
        seconds = self._scenario.delays.step_seconds(index, compute.number, compute.steps)
        for fault in self._scenario.faults:
            if fault.kind == "slow" and index in fault.learners and fault.is_active(now_s):
                seconds = seconds * fault.by
        simulated.steps_taken = 0
        simulated.step_ends_s = now_s + np.cumsum(seconds[compute.steps - steps_left :])
        end_s = float(simulated.step_ends_s[-1]) if steps_left else now_s
        self._queue.schedule(end_s, partial(self._on_computed, simulated))

    def _on_computed(self, simulated: SimulatedNode) -> None:
        if not simulated.alive:
            return
        self._idle_wakes, self._active_s = 0, self._queue.now_s
        assert simulated.node.computing is not None
        simulated.catch_up(inf)
        simulated.recorder.record_computed(self._queue.now_s)
        self._execute(
            simulated, simulated.node.on_computed(simulated.local_time(self._queue.now_s))
        )
        every = self._scenario.score_every
        if every and simulated.node.steps >= simulated.scored_steps + every:
            self._score(simulated)

    def _on_wake(self, simulated: SimulatedNode) -> None:
        if simulated.alive:
            self._idle_wakes += 1
            simulated.catch_up(self._queue.now_s)
            self._execute(
                simulated, simulated.node.on_wake(simulated.local_time(self._queue.now_s))
            )

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

    def _all_ended(self) -> bool:
        return not self._expected_joins and not any(node.alive for node in self._nodes.values())

    def _check_deadlock(self) -> None:
        """Raise `InvariantError` if nodes only wake, with no message in flight."""
        if self._network.in_flight or self._idle_wakes <= 3 * len(self._nodes) + 3:
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


def _resumes(fault: Fault) -> bool:
    """Return whether a node resumes from its disk after a fault."""
    return fault.kind == "crash" and fault.for_s is not None

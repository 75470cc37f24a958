"""Drives the state machines of `peer/` in virtual time, by one event queue.

The steps of a round are taken as late as possible: those due before a message arrives, and the
rest at the end.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np

from melisma.learning.stepper import Stepper
from melisma.peer import commands
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.runs.interruption import interruptible
from melisma.runs.peer_report import NodeRecorder, NodeReport, ScorePoint
from melisma.simulation.faults import Fault
from melisma.simulation.invariants.violations import InvariantError
from melisma.simulation.kernel import EventQueue
from melisma.simulation.peers.attacks import Attack
from melisma.simulation.peers.peer_network import PeerNetwork
from melisma.simulation.peers.peer_scenario import PeerScenario, SimulatedNode

PeerWatcher = Callable[[str, float, Node, Outputs], None]


class PeerDriver:
    """Runs a scenario to its end; `watch` sees the outputs of every node."""

    def __init__(self, scenario: PeerScenario, watch: PeerWatcher = lambda *_: None) -> None:
        self._scenario, self._watch = scenario, watch
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
        self._execute(simulated, node.start(simulated.local_time(self._queue.now_s)))

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
        if fault.for_s is not None:
            self._schedule_join(name, self._queue.now_s + fault.for_s)

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
                    self._network.send(simulated, to, message)
                case commands.Wake(at_s=at_s):
                    wake = partial(self._on_wake, simulated)
                    self._queue.schedule(at_s / simulated.clock_rate, wake)
                case commands.Finish(reason=reason):
                    self._score(simulated)
                    simulated.outcome = "failed" if reason else "finished"
                    simulated.reason = reason

    def _compute(self, simulated: SimulatedNode, compute: commands.TakeSteps) -> None:
        index, now_s = self._index[simulated.name], self._queue.now_s
        seconds = self._scenario.delays.step_seconds(index, compute.number, compute.steps)
        for fault in self._scenario.faults:
            if fault.kind == "slow" and index in fault.learners and fault.is_active(now_s):
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

"""The orchestrator in virtual time: gives events to the cycle machine and carries out its commands.

The cycle machine and the decisions of learners are those of live runs; only the clock, the network
and the devices are simulated.
"""

from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.learner import silence_limit_s
from melisma.cycle.machine import CycleMachine
from melisma.cycle.state import CycleState, WorkStatus
from melisma.errors import MelismaError
from melisma.fleet.array_types import NO_INTS, Bools, Floats, Ints
from melisma.runs.interruption import interruptible
from melisma.runs.trace import Step
from melisma.simulation.batteries import Batteries
from melisma.simulation.churn import BATTERY, Churn, SleepSpans, changes_of_run, departure_times_s
from melisma.simulation.compute.compute import ComputeBackend
from melisma.simulation.compute.work_record import WorkRecords
from melisma.simulation.faults import Corruption, Slowness, clock_rates
from melisma.simulation.kernel import EventQueue
from melisma.simulation.learners.simulated_benchmark import ask_bounds, measure
from melisma.simulation.learners.simulated_learners import SimulatedLearners
from melisma.simulation.learners.simulated_updates import SimulatedUpdates
from melisma.simulation.network import Deliver, SimulatedNetwork
from melisma.simulation.scenario import Scenario
from melisma.simulation.training_rounds import TrainingRounds

Watcher = Callable[[Step], object]
MAX_NAMES = 5  # learners named when many have left


class Driver:
    """Runs one scenario in virtual time; `watch` is called with every step."""

    def __init__(
        self, scenario: Scenario, compute: ComputeBackend, watch: Watcher = lambda _: None
    ) -> None:
        task, fleet, faults = scenario.task, scenario.fleet, scenario.faults
        self._scenario, self._fleet, self._compute, self._watch = scenario, fleet, compute, watch
        self.queue = EventQueue()
        changes = changes_of_run(fleet, scenario.horizon_s)
        leaves_s = departure_times_s(changes, fleet.learners)
        self.network = SimulatedNetwork(self.queue, faults, leaves_s)
        sleep = SleepSpans(changes, fleet.learners)
        local_shards = scenario.local_shard_samples.counts
        self.learners = SimulatedLearners(task, fleet, local_shards, sleep, Slowness(faults))
        self.learners.clock *= clock_rates(faults, fleet.learners)
        self._churn = Churn(scenario, changes, self.queue, self)
        battery = fleet.availability.battery
        self._batteries = Batteries(battery) if battery.is_limited else None
        self.work_records = WorkRecords(fleet.learners, recording=compute.trains)
        self._rounds = TrainingRounds(self, Corruption(faults))
        self._silence_limit_s = np.full(fleet.learners, task.deadline_s)
        self._wakes = 0
        self._machine = CycleMachine()
        self.finished: commands.Finish | None = None

    @property
    def state(self) -> CycleState:
        """The state of the cycle machine."""
        return self._machine.state

    def run(self) -> commands.Finish:
        """Run until the machine finishes, and return its last command."""
        self.handle(self._scenario.submission())
        self.report_joined(np.flatnonzero(self._churn.present))
        with interruptible() as check:
            while self.finished is None:
                check()
                if not isfinite(self.queue.next_s) or not self.queue.step():
                    raise MelismaError("the run hangs: no action is left, and it has not finished")
        return self.finished

    def cancel(self, reason: str) -> None:
        """Cancel the run."""
        self.handle(events.TaskCancelled(at_s=self.queue.now_s, reason=reason))

    def handle(self, event: Any) -> None:
        """Give an event to the cycle machine, record the step and carry out the commands."""
        if self.finished is not None:
            return
        issued = self._machine.handle(event)
        self._watch(Step(event, issued))
        for command in issued:
            HANDLERS[type(command)](self, command)

    def restart(self, learners: Ints) -> None:
        """Start these learners without any state, and let them join."""
        self.learners.restart(learners, self.queue.now_s)
        self.report_joined(learners)

    def silence(self, learners: Ints) -> None:
        """Stop these learners from sending anything more."""
        self.network.drop_unsent(learners)
        self.stop_energy(learners)
        self._watch_silence(learners)

    def _watch_silence(self, learners: Ints) -> None:
        """Let the orchestrator notice in time that learners at work are silent."""
        for limit_s in np.unique(self._silence_limit_s[learners]).tolist():
            members = learners[self._silence_limit_s[learners] == limit_s]
            at_s = self.queue.now_s + limit_s
            self.queue.schedule(at_s, partial(self._remove_silent, members))

    def _remove_silent(self, learners: Ints) -> None:
        """Report learners as gone that are still silent and have work; the last one is awaited."""
        table = self.state.learners
        learners = learners[table.present[learners] & ~self._churn.present[learners]]
        at_work = table.work[learners] == WorkStatus.ASSIGNED
        learners = learners[at_work | (table.late_cycles[learners] > 0)]
        learners = learners[: int(table.present.sum()) - 1]
        if learners.size:
            self.report_left(learners, "sent no sign of life")

    def report_joined(self, learners: Ints) -> None:
        """Report to the machine that these learners joined."""
        if not learners.size:
            return
        names, discloses = self._fleet.names, self._fleet.discloses
        if learners.size < len(names):
            names = tuple(names[learner] for learner in learners.tolist())
            discloses = tuple(discloses[learner] for learner in learners.tolist())
        samples = self._scenario.local_shard_samples
        self.handle(
            events.LearnersJoined(
                at_s=self.queue.now_s,
                learners=learners,
                names=names,
                discloses=discloses,
                local_shard_samples=samples.take(learners) if len(samples) else samples,
            )
        )

    def draw_energy(self, updates: SimulatedUpdates) -> Ints:
        """Draw the energy of work that begins; return the learners whose battery it empties."""
        if self._batteries is None:
            return NO_INTS
        task, learners = self._scenario.task, updates.learners
        size_bytes = 2 * task.model_bytes + task.shard_bytes * updates.shipped
        trained_j = self._fleet.sample_j[learners] * updates.visits
        joules = trained_j + self._fleet.byte_j[learners] * size_bytes
        empty = self._batteries.draw(learners, joules, self.queue.now_s, updates.arrives_s)
        self._schedule_empty(self._batteries, empty)
        return empty

    def draw_shard_energy(self, learners: Ints, shards: Ints, stops_s: Floats) -> Ints:
        """Draw the energy of further shards; return the learners whose battery it empties."""
        if self._batteries is None:
            return NO_INTS
        joules = self._fleet.byte_j[learners] * self._scenario.task.shard_bytes * shards
        empty = self._batteries.draw_more(learners, joules, stops_s)
        self._schedule_empty(self._batteries, empty)
        return empty

    def stop_energy(self, learners: Ints) -> None:
        """Stop drawing energy for work that ended early."""
        if self._batteries is not None:
            self._batteries.stop(learners, self.queue.now_s)

    def _schedule_empty(self, batteries: Batteries, learners: Ints) -> None:
        """Stop these learners at the heartbeat after their battery is empty."""
        at_s = batteries.empty_s[learners]
        order = np.argsort(at_s, kind="stable")
        stop = partial(self._stop_empty, batteries)
        self._churn.schedule_at_heartbeats(at_s[order], learners[order], stop)

    def _stop_empty(self, batteries: Batteries, learners: Ints) -> None:
        """Stop learners whose battery is empty, until it is charged."""
        now_s = self.queue.now_s
        empty = np.sort(batteries.take_empty(learners, now_s))
        self._churn.block(BATTERY, "battery empty", empty)
        charged_s = now_s + batteries.recharge_s(empty)
        for at_s in np.unique(charged_s[np.isfinite(charged_s)]).tolist():
            charged = empty[charged_s == at_s]
            self.queue.schedule(at_s, partial(self._churn.unblock, BATTERY, charged))

    @property
    def ran_empty(self) -> Bools:
        """The learners whose battery was empty at least once."""
        if self._batteries is None:
            return np.zeros(self._fleet.learners, np.bool_)
        return self._batteries.ran_empty

    def report_left(self, learners: Ints, reason: str) -> None:
        """Report to the machine that the orchestrator noticed these learners missing."""
        names = ", ".join(self._fleet.names[learner] for learner in learners[:MAX_NAMES].tolist())
        reason = f"{names}{', ...' * (learners.size > MAX_NAMES)}: {reason}"
        self.handle(events.LearnersLeft(at_s=self.queue.now_s, learners=learners, reason=reason))

    def benchmark(self, command: commands.Benchmark) -> None:
        """Let learners measure their costs."""

        def follow(indices: Ints) -> None:
            learners = command.learners[self.select_present(command.learners, indices)]
            ready_s, costs = measure(self.learners, learners, self.queue.now_s, command.seconds)

            def deliver(rows: Ints, came_s: Floats) -> None:
                self.handle(
                    events.CostsReported(
                        at_s=float(came_s[-1]), learners=learners[rows], costs=costs[:, :, rows]
                    )
                )

            self._answer(learners, ready_s, deliver)

        self.network.send_instruction(command.learners, follow)

    def ask_bound(self, command: commands.AskBound) -> None:
        """Ask learners how many shards they can train by the deadline."""

        def follow(indices: Ints) -> None:
            indices = self.select_present(command.learners, indices)
            learners, held = command.learners[indices], command.held[indices]
            ready_s, shards = ask_bounds(self.learners, learners, self.queue.now_s, command, held)

            def deliver(rows: Ints, came_s: Floats) -> None:
                self.handle(
                    events.BoundsReported(
                        at_s=float(came_s[-1]),
                        learners=learners[rows],
                        cycle=command.cycle,
                        deadline_s=command.deadline_s,
                        shards=shards[rows],
                    )
                )

            self._answer(learners, ready_s, deliver)

        self.network.send_instruction(command.learners, follow)

    def _answer(self, learners: Ints, ready_s: Floats, deliver: Deliver) -> None:
        """Send answers; those that the machine waits for are not delayed by the others.

        The first answer comes by itself: it may limit how long the machine waits for others.
        """
        is_awaited = self.state.learners.answer_awaited[learners]
        awaited = np.flatnonzero(is_awaited)
        earliest = int(np.argmin(ready_s[awaited])) if awaited.size else 0
        first, others = (
            awaited[earliest : earliest + 1],
            np.delete(awaited, slice(earliest, earliest + 1)),
        )
        for rows in (first, others, np.flatnonzero(~is_awaited)):
            self.network.send_reports(
                learners[rows], ready_s[rows], partial(_deliver_rows, rows, deliver)
            )

    def dispatch(self, command: commands.Dispatch) -> None:
        """Let learners train their shards and send their updates."""
        self.learners.set_length(self.state.task.deadline_s)
        self._rounds.dispatch(command)
        limits_s = silence_limit_s(command.predicted_s, command.seconds_left)
        self._silence_limit_s[command.learners] = limits_s
        silent = command.learners[~self._churn.present[command.learners]]
        if silent.size:
            self._watch_silence(silent)

    def extend(self, command: commands.Extend) -> None:
        """Give learners that train further shards."""
        self._rounds.extend(command)

    def prefetch(self, command: commands.Prefetch) -> None:
        """Let learners fetch shards while they wait for the next cycle."""
        self._rounds.prefetch(command)

    def withdraw(self, command: commands.Withdraw) -> None:
        """Stop the training of assignments that no longer count."""
        self._rounds.withdraw(command)

    def wake(self, command: commands.Wake) -> None:
        """Set the timer; it replaces the previous one."""
        self._wakes += 1
        nth = self._wakes

        def fire() -> None:
            if nth == self._wakes:
                self.handle(events.TimeReached(at_s=self.queue.now_s))

        self.queue.schedule(command.at_s, fire)

    def aggregate(self, command: commands.Aggregate) -> None:
        """Average the updates of these learners."""
        now_s, parts = self.queue.now_s, self.work_records.updates_to_average(command)
        averaged = self._compute.average(command.cycle, parts)
        scales = np.concatenate([np.empty(0), *averaged.scales])
        learners = np.concatenate([NO_INTS, *(part.learners for part in parts)])
        cycles = np.repeat([p.record.cycle for p in parts], [p.learners.size for p in parts])
        rows = np.flatnonzero(scales < 1.0)
        event = events.Aggregated(
            at_s=now_s,
            cycle=command.cycle,
            seconds=0.0,
            loss=averaged.losses,
            guarded=learners[rows],
            guarded_cycles=cycles[rows] if rows.size else NO_INTS,
            scales=scales[rows],
        )
        self.queue.schedule(now_s, lambda: self.handle(event))

    def evaluate(self, command: commands.Evaluate) -> None:
        """Evaluate the model."""
        now_s, score = self.queue.now_s, self._compute.score()
        event = events.Evaluated(
            at_s=now_s,
            cycle=command.cycle,
            loss=score.loss,
            accuracy=score.accuracy,
            seconds=0.0,
            finite=score.finite,
        )
        self.queue.schedule(now_s, lambda: self.handle(event))

    def restore(self, _: commands.Restore) -> None:
        """Return to the model before the latest average."""
        self._compute.restore()

    def dismiss(self, command: commands.Dismiss) -> None:
        """Record that learners left."""
        now_s = self.queue.now_s
        event = events.LearnersLeft(at_s=now_s, learners=command.learners, reason=command.reason)
        self.queue.schedule(now_s, lambda: self.handle(event))

    def finish(self, command: commands.Finish) -> None:
        """End the run."""
        self.finished = command

    def select_present(self, learners: Ints, indices: Ints) -> Ints:
        """Return the indices of learners that are up now."""
        present: Ints = indices[self._churn.present[learners[indices]]]
        return present


def _deliver_rows(rows: Ints, deliver: Deliver, indices: Ints, came_s: Floats) -> None:
    """Deliver reports that were sent as a part of all: `indices` point into its rows."""
    deliver(rows[indices], came_s)


HANDLERS: dict[type[commands.Command], Callable[[Driver, Any], None]] = {
    commands.Benchmark: Driver.benchmark,
    commands.AskBound: Driver.ask_bound,
    commands.Dispatch: Driver.dispatch,
    commands.Extend: Driver.extend,
    commands.Prefetch: Driver.prefetch,
    commands.Withdraw: Driver.withdraw,
    commands.Wake: Driver.wake,
    commands.Aggregate: Driver.aggregate,
    commands.Evaluate: Driver.evaluate,
    commands.Restore: Driver.restore,
    commands.Dismiss: Driver.dismiss,
    commands.Finish: Driver.finish,
}

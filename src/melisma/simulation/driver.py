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
from melisma.cycle.events import NO_INTS
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.learner import silence_limit_s
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import RaggedArray, concatenate_ranges
from melisma.cycle.state import WorkStatus
from melisma.errors import MelismaError
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.interruption import interruptible
from melisma.runs.trace import Step
from melisma.simulation.churn import Churn, SleepSpans, changes_of_run, departure_times_s
from melisma.simulation.compute.compute import ComputeBackend
from melisma.simulation.compute.work_record import WeightedWork, WorkRecord
from melisma.simulation.faults import Corruption, Slowness, clock_rates
from melisma.simulation.kernel import EventQueue
from melisma.simulation.learners import SimulatedLearners, SimulatedUpdates
from melisma.simulation.network import Deliver, InFlight, SimulatedNetwork
from melisma.simulation.scenario import Scenario

Watcher = Callable[[Step], object]
MAX_NAMES = 5  # learners named when many have left
# Requests for further shards arrive at this many instants of a cycle.
REQUEST_TICKS = 64
CORRUPT = "the update is refused: it holds numbers that are not finite"


class Driver:
    """Runs one scenario in virtual time; `watch` is called with every step."""

    def __init__(
        self, scenario: Scenario, compute: ComputeBackend, watch: Watcher = lambda _: None
    ) -> None:
        task, fleet, faults = scenario.task, scenario.fleet, scenario.faults
        self._scenario, self._fleet, self._compute, self._watch = scenario, fleet, compute, watch
        self._queue = EventQueue()
        self._corrupt = Corruption(faults)
        changes = changes_of_run(fleet, scenario.horizon_s)
        leaves_s = departure_times_s(changes, fleet.learners)
        self._network = SimulatedNetwork(self._queue, faults, leaves_s)
        sleep, local_shards = SleepSpans(changes, fleet.learners), scenario.local_shards.counts
        self._learners = SimulatedLearners(task, fleet, local_shards, sleep, Slowness(faults))
        self._learners.clock *= clock_rates(faults, fleet.learners)
        self._churn = Churn(scenario, changes, self._queue, self)
        self._works: dict[int, WorkRecord] = {}  # by cycle
        self._training: list[tuple[int, SimulatedUpdates, list[InFlight]]] = []
        self._silence_limit_s = np.full(fleet.learners, task.deadline_s)
        self._wakes = 0
        self._machine = CycleMachine()
        self.finished: commands.Finish | None = None

    def run(self) -> commands.Finish:
        """Run until the machine finishes, and return its last command."""
        self.handle(self._scenario.submission())
        self.report_joined(np.flatnonzero(self._churn.present))
        with interruptible() as check:
            while self.finished is None:
                check()
                if not isfinite(self._queue.next_s) or not self._queue.step():
                    raise MelismaError("the run hangs: no action is left, and it has not finished")
        return self.finished

    def cancel(self, reason: str) -> None:
        """Cancel the run."""
        self.handle(events.TaskCancelled(at_s=self._queue.now_s, reason=reason))

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
        self._learners.restart(learners, self._queue.now_s)
        self.report_joined(learners)

    def silence(self, learners: Ints) -> None:
        """Stop these learners from sending anything more."""
        self._network.drop_unsent(learners)
        self._watch_silence(learners)

    def _watch_silence(self, learners: Ints) -> None:
        """Let the orchestrator notice in time that learners at work are silent."""
        for limit_s in np.unique(self._silence_limit_s[learners]).tolist():
            members = learners[self._silence_limit_s[learners] == limit_s]
            at_s = self._queue.now_s + limit_s
            self._queue.schedule(at_s, partial(self._remove_silent, members))

    def _remove_silent(self, learners: Ints) -> None:
        """Report learners as gone that are still silent and have work; the last one is awaited."""
        table = self._machine.state.learners
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
        local_shards = self._scenario.local_shards
        self.handle(
            events.LearnersJoined(
                at_s=self._queue.now_s,
                learners=learners,
                names=names,
                discloses=discloses,
                local_shards=local_shards.take(learners) if len(local_shards) else local_shards,
            )
        )

    def report_left(self, learners: Ints, reason: str) -> None:
        """Report to the machine that the orchestrator noticed these learners missing."""
        names = ", ".join(self._fleet.names[learner] for learner in learners[:MAX_NAMES].tolist())
        reason = f"{names}{', ...' * (learners.size > MAX_NAMES)} {reason}"
        self.handle(events.LearnersLeft(at_s=self._queue.now_s, learners=learners, reason=reason))

    def benchmark(self, command: commands.Benchmark) -> None:
        """Let learners measure their costs."""

        def follow(indices: Ints) -> None:
            learners = command.learners[self._present(command.learners, indices)]
            ready_s, costs = self._learners.measure(learners, self._queue.now_s, command.seconds)

            def deliver(rows: Ints, came_s: Floats) -> None:
                self.handle(
                    events.EstimatesReported(
                        at_s=float(came_s[-1]), learners=learners[rows], costs=costs[:, :, rows]
                    )
                )

            self._answer(learners, ready_s, deliver)

        self._network.send_instruction(command.learners, follow)

    def ask_bound(self, command: commands.AskBound) -> None:
        """Ask learners how many shards they can train by the deadline."""

        def follow(indices: Ints) -> None:
            indices = self._present(command.learners, indices)
            learners, held = command.learners[indices], command.held[indices]
            ready_s, shards = self._learners.ask_bounds(learners, self._queue.now_s, command, held)

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

        self._network.send_instruction(command.learners, follow)

    def _answer(self, learners: Ints, ready_s: Floats, deliver: Deliver) -> None:
        """Send answers; those that the machine waits for are not delayed by the others.

        The first answer comes by itself: it may limit how long the machine waits for others.
        """
        silent = self._machine.state.learners.silent[learners]
        awaited = np.flatnonzero(~silent)
        earliest = int(np.argmin(ready_s[awaited])) if awaited.size else 0
        first, others = (
            awaited[earliest : earliest + 1],
            np.delete(awaited, slice(earliest, earliest + 1)),
        )
        for rows in (first, others, np.flatnonzero(silent)):
            self._network.send_reports(learners[rows], ready_s[rows], partial(_map, rows, deliver))

    def dispatch(self, command: commands.Dispatch) -> None:
        """Let learners train their shards and send their updates."""
        samples = self._machine.state.learners.samples[command.learners]
        self._record(command)

        def follow(indices: Ints) -> None:
            indices = self._present(command.learners, indices)
            updates = self._learners.train(command, indices, samples[indices], self._queue.now_s)

            def deliver(rows: Ints, came_s: Floats) -> None:
                arrived = updates.take(rows)
                self._record_batches(command.cycle, arrived)
                self._report_updates(command.cycle, arrived, came_s)

            self._send_requests(command, updates)
            in_flight = self._network.send_reports(updates.learners, updates.in_s, deliver)
            unfinished = [
                entry for entry in self._training if not all(each.is_done for each in entry[2])
            ]
            self._training = [*unfinished, (command.cycle, updates, in_flight)]

        self._network.send_instruction(command.learners, follow)
        limits_s = silence_limit_s(command.predicted_s, command.seconds_left)
        self._silence_limit_s[command.learners] = limits_s
        silent = command.learners[~self._churn.present[command.learners]]
        if silent.size:
            self._watch_silence(silent)

    def _record(self, command: commands.Dispatch | commands.Extend) -> None:
        """Record the shards that learners are given, for the time when they are trained."""
        if command.cycle not in self._works:
            known = [cycle for cycle in self._works if cycle >= command.cycle - MAX_LATE_CYCLES - 1]
            self._works = {cycle: self._works[cycle] for cycle in known}
            self._works[command.cycle] = WorkRecord(command.cycle, self._fleet.learners)
        self._works[command.cycle].add(
            command.learners, command.attempts, command.shards, command.passes
        )

    def _record_released(
        self, command: commands.Dispatch, chosen: Ints, updates: SimulatedUpdates, shards: Ints
    ) -> None:
        """Record released shards that the machine takes back: their learners do not train them."""
        learners = updates.learners[chosen]
        expected = self._machine.state.expects_in_cycle(
            learners, command.cycle, updates.attempts[chosen]
        )
        owners = np.repeat(learners, updates.released[chosen])
        taken = np.repeat(expected, updates.released[chosen])
        self._works[command.cycle].release(owners[taken], shards[taken])

    def _record_batches(self, cycle: int, updates: SimulatedUpdates) -> None:
        """Record the batches of updates that the machine accepts: the first of each assignment."""
        accepted = self._machine.state.expects(updates.learners, cycle, updates.attempts)
        if accepted.any():
            self._works[cycle].batches[updates.learners[accepted]] = updates.batches[accepted]

    def _send_requests(self, command: commands.Dispatch, updates: SimulatedUpdates) -> None:
        """Send the requests for further shards, and shards that learners will not get to."""
        # Requests of many learners arrive together, as messages to a busy orchestrator do.
        tick_s = self._scenario.task.deadline_s / REQUEST_TICKS
        ask_s = np.ceil(updates.ask_s / tick_s) * tick_s

        def request(rows: Ints, came_s: Floats) -> None:
            self.handle(
                events.ShardsRequested(
                    at_s=float(came_s[-1]),
                    learners=updates.learners[asking[rows]],
                    cycle=command.cycle,
                    shards=updates.wanted[asking[rows]],
                )
            )

        def release(rows: Ints, came_s: Floats) -> None:
            chosen = releasing[rows]
            shards = command.shards.take(updates.indices[chosen])
            last = shards.starts + shards.counts - updates.released[chosen]
            numbers = shards.values[concatenate_ranges(last, updates.released[chosen])]
            self._record_released(command, chosen, updates, numbers)
            self.handle(
                events.ShardsReleased(
                    at_s=float(came_s[-1]),
                    learners=updates.learners[chosen],
                    cycle=command.cycle,
                    shards=RaggedArray(updates.released[chosen], numbers),
                )
            )

        # A learner that stops before the tick does not ask any more.
        active = ask_s < updates.stops_s
        asking = np.flatnonzero((updates.wanted > 0) & active)
        releasing = np.flatnonzero((updates.released > 0) & active)
        self._network.send_reports(updates.learners[asking], ask_s[asking], request)
        self._network.send_reports(updates.learners[releasing], ask_s[releasing], release)

    def extend(self, command: commands.Extend) -> None:
        """Give learners that train further shards."""
        self._record(command)

        def follow(indices: Ints) -> None:
            indices = self._present(command.learners, indices)
            for cycle, updates, _ in self._training:
                if cycle != command.cycle:
                    continue
                both, rows, found = np.intersect1d(
                    updates.learners, command.learners[indices], return_indices=True
                )
                if both.size:
                    chosen = indices[found]
                    self._learners.extend(
                        updates,
                        rows,
                        command.attempts[chosen],
                        command.shards.take(chosen),
                        self._queue.now_s,
                    )

        self._network.send_instruction(command.learners, follow)

    def prefetch(self, command: commands.Prefetch) -> None:
        """Let learners fetch shards while they wait for the next cycle."""

        def follow(indices: Ints) -> None:
            indices = self._present(command.learners, indices)
            shards = command.shards.take(indices)
            self._learners.prefetch(command.learners[indices], shards, self._queue.now_s)

        self._network.send_instruction(command.learners, follow)

    def _report_updates(self, cycle: int, updates: SimulatedUpdates, came_s: Floats) -> None:
        corrupt, at_s = self._corrupt(updates.learners, updates.visits), float(came_s[-1])
        for rows, refused in ((np.flatnonzero(~corrupt), ""), (np.flatnonzero(corrupt), CORRUPT)):
            if not rows.size:
                continue
            subset = updates.take(rows)
            if not refused:
                self._report_costs(subset, at_s)
            self.handle(
                events.UpdatesReceived(
                    at_s=at_s,
                    learners=subset.learners,
                    cycle=cycle,
                    attempts=subset.attempts.copy(),
                    visits=subset.visits,
                    planned_visits=np.minimum(subset.visits, subset.arrived_visits),
                    shipped=subset.shipped,
                    loss=np.full(rows.size, np.nan),
                    phases=subset.phases,
                    arrivals_s=came_s[rows],
                    refused=refused,
                )
            )

    def _report_costs(self, updates: SimulatedUpdates, at_s: float) -> None:
        if self._machine.state.needs == "costs" and updates.measured.any():
            known = updates.take(np.flatnonzero(updates.measured))
            self.handle(
                events.EstimatesReported(at_s=at_s, learners=known.learners, costs=known.costs)
            )

    def withdraw(self, command: commands.Withdraw) -> None:
        """Stop the training of assignments that no longer count."""

        def follow(indices: Ints) -> None:
            learners, now_s = command.learners[indices], self._queue.now_s
            for cycle, updates, in_flight in self._training:
                if cycle == command.cycle:
                    # A learner that has stopped training sends its update in any case.
                    busy = np.isin(updates.learners, learners) & (updates.stops_s > now_s)
                    self._learners.stop(updates.learners[busy], updates.in_s[busy], now_s)
                    for reports in in_flight:
                        reports.lose(updates.learners[busy])

        self._network.send_instruction(command.learners, follow)

    def wake(self, command: commands.Wake) -> None:
        """Set the timer; it replaces the previous one."""
        self._wakes += 1
        nth = self._wakes

        def fire() -> None:
            if nth == self._wakes:
                self.handle(events.TimeReached(at_s=self._queue.now_s))

        self._queue.schedule(command.at_s, fire)

    def aggregate(self, command: commands.Aggregate) -> None:
        """Average the updates of these learners."""
        now_s, parts = self._queue.now_s, self._updates_to_average(command)
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
        self._queue.schedule(now_s, lambda: self.handle(event))

    def _updates_to_average(self, command: commands.Aggregate) -> list[WeightedWork]:
        """Return the work of all updates to average: this cycle's, then late ones by cycle."""
        late = command.late
        parts = [
            (command.cycle, (command.learners, command.attempts, command.weights, command.visits))
        ]
        for cycle in np.unique(late.cycles).tolist():
            rows = late.cycles == cycle
            columns = late.learners, late.attempts, late.weights, late.visits
            parts.append((cycle, (*(column[rows] for column in columns),)))
        return [
            WeightedWork(self._works[cycle], *columns)
            for cycle, columns in parts
            if columns[0].size
        ]

    def evaluate(self, command: commands.Evaluate) -> None:
        """Evaluate the model."""
        now_s, score = self._queue.now_s, self._compute.score()
        event = events.Evaluated(
            at_s=now_s,
            cycle=command.cycle,
            loss=score.loss,
            accuracy=score.accuracy,
            seconds=0.0,
            finite=score.finite,
        )
        self._queue.schedule(now_s, lambda: self.handle(event))

    def restore(self, _: commands.Restore) -> None:
        """Return to the model before the latest average."""
        self._compute.restore()

    def dismiss(self, command: commands.Dismiss) -> None:
        """Record that learners left."""
        now_s = self._queue.now_s
        event = events.LearnersLeft(at_s=now_s, learners=command.learners, reason=command.reason)
        self._queue.schedule(now_s, lambda: self.handle(event))

    def finish(self, command: commands.Finish) -> None:
        """End the run."""
        self.finished = command

    def _present(self, learners: Ints, indices: Ints) -> Ints:
        """Return the indices of learners that are up now."""
        present: Ints = indices[self._churn.present[learners[indices]]]
        return present


def _map(rows: Ints, deliver: Deliver, indices: Ints, came_s: Floats) -> None:
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

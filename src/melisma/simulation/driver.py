"""The orchestrator in virtual time: gives events to the cycle machine and carries out its commands.

The cycle machine and the decisions of learners are those of live runs; only the clock, the network
and the devices are simulated.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
from msgspec import structs

from melisma.cycle import commands, events
from melisma.cycle.learner import silence_limit_s
from melisma.cycle.machine import CycleMachine
from melisma.cycle.restarts import reconnect_s
from melisma.cycle.state import CycleState, WorkStatus
from melisma.errors import DataError, MelismaError
from melisma.fleet.array_types import NO_FLOATS, NO_INTS, Bools, Floats, Ints
from melisma.fleet.rng import uniform
from melisma.runs.interruption import interruptible
from melisma.runs.recovery import RecoveredRun
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import ComputeBackend
from melisma.simulation.compute.work_record import WeightedWork, WorkRecords
from melisma.simulation.energy_use import EnergyUse
from melisma.simulation.faults import Corruption, Slowness, clock_rates, greedy_learners
from melisma.simulation.journaling.missed_changes import MissedChanges
from melisma.simulation.journaling.orchestrator_process import OrchestratorProcess
from melisma.simulation.journaling.storage import make_storage
from melisma.simulation.learners.simulated_benchmark import ask_bounds, measure
from melisma.simulation.learners.simulated_learners import SimulatedLearners
from melisma.simulation.network import Deliver, OrchestratorDownError
from melisma.simulation.scenario import Scenario
from melisma.simulation.surroundings import Surroundings
from melisma.simulation.training_rounds import TrainingRounds

Watcher = Callable[[Step], object]
HANGS = "the run hangs: no action is left, and it has not finished"
MAX_NAMES = 5  # learners named when many have left
LEARNER_COMMANDS = (
    *(commands.Benchmark, commands.AskBound, commands.Dispatch, commands.Extend, commands.Resend),
    *(commands.Prefetch, commands.Withdraw),
)


class Driver:
    """Runs one scenario in virtual time; `watch` is called with every step.

    `shared` are the surroundings of learners that work for other tasks, too, and `process` is the
    part of this task in the process of all of them, if a fault can stop it.
    """

    def __init__(
        self,
        scenario: Scenario,
        compute: ComputeBackend,
        watch: Watcher = lambda _: None,
        shared: Surroundings | None = None,
        process: OrchestratorProcess | None = None,
    ) -> None:
        task, fleet, faults = scenario.task, scenario.fleet, scenario.faults
        self._scenario, self._fleet, self._compute, self._watch = scenario, fleet, compute, watch
        around = Surroundings(scenario, self) if shared is None else shared
        self.queue, self.network, self._churn = around.queue, around.network, around.churn
        local_shards = scenario.local_shard_samples.counts
        slowness = Slowness(faults)
        self.learners = SimulatedLearners(task, fleet, local_shards, around.sleep, slowness)
        self.learners.clock *= clock_rates(faults, fleet.learners)
        self.energy = EnergyUse(scenario, around.queue, around.churn)
        self.work_records = WorkRecords(fleet.learners, recording=compute.trains)
        greedy = greedy_learners(faults)
        if greedy:
            compute.set_greedy(greedy)
        self._rounds = TrainingRounds(self, Corruption(faults), greedy)
        self._silence_limit_s = np.full(fleet.learners, task.deadline_s)
        self._wakes = 0
        self._machine = CycleMachine()
        self._process = self._make_process() if shared is None else process
        self._missed, self._is_shared = MissedChanges(), shared is not None
        self._has_begun = False
        if process is not None:
            self._machine = process.machine
        self._model = 0  # the version of the model that was computed
        self.finished: commands.Finish | None = None

    def _make_process(self) -> OrchestratorProcess | None:
        """Return the process of the orchestrator, if a fault can stop it."""
        faults = [fault for fault in self._scenario.faults if fault.of_orchestrator]
        if not faults:
            return None
        storage = make_storage(faults, lambda: self.queue.now_s, self._scenario.task.seed)
        process = OrchestratorProcess(faults, storage, self.queue, self.network, self._watch)
        process.schedule_stops(self._restart_orchestrator)
        self._machine = process.machine
        return process

    @property
    def state(self) -> CycleState:
        """The state of the cycle machine."""
        return self._machine.state

    @property
    def repeats_instructions(self) -> bool:
        """Whether the orchestrator may send an instruction again after a restart."""
        return self._process is not None

    def run(self) -> commands.Finish:
        """Run until the machine finishes, and return its last command."""
        self.begin()
        with interruptible() as check:
            while self.finished is None:
                check()
                if not isfinite(self.queue.next_s):
                    raise MelismaError(HANGS)
                with suppress(OrchestratorDownError):
                    self.queue.step()
        return self.finished

    def begin(self) -> None:
        """Submit the task now, to the learners that are up."""
        self._has_begun = True
        submission = self._scenario.submission()
        if self.queue.now_s > 0:
            count = int(self._churn.present.sum())
            submission = structs.replace(
                submission, at_s=self.queue.now_s, learner_count=max(count, 1)
            )
        with suppress(OrchestratorDownError):
            self.handle(submission)
        self.report_joined(np.flatnonzero(self._churn.present))

    def close(self) -> None:
        """Release the journal, if there is one."""
        if self._process is not None:
            self._process.close()

    def cancel(self, reason: str) -> None:
        """Cancel the run; a damaged journal keeps the run as it is."""
        with suppress(OrchestratorDownError, DataError):
            if self._process is not None and self._process.is_down:
                self._restart_orchestrator()
            self.handle(events.TaskCancelled(at_s=self.queue.now_s, reason=reason))

    def handle(self, event: Any) -> None:
        """Give an event to the cycle machine, record the step and carry out the commands."""
        if self.finished is not None:
            return
        if self._process is not None:
            self._handle_in(self._process, event)
            return
        issued = self._machine.handle(event)
        self._watch(Step(event, issued))
        for command in issued:
            HANDLERS[type(command)](self, command)

    def _handle_in(self, process: OrchestratorProcess, event: Any) -> None:
        """Let a process that may stop handle an event; a dying one only sends instructions."""
        for command in process.handle(event):
            if not process.is_dying or isinstance(command, LEARNER_COMMANDS):
                HANDLERS[type(command)](self, command)
        process.finish_step()

    def _restart_orchestrator(self) -> None:
        """Go on with the run from the journal; learners that call again are heard."""
        if self._process is not None and self.finished is None:
            self.resume_run(self.recover())

    def recover(self) -> RecoveredRun | None:
        """Start another process, with the state in the journal; None if the run has to begin."""
        process = self._process
        assert process is not None
        self._wakes += 1  # Its timers ended with the process.
        run = process.restart()
        self._machine = process.machine
        return run

    def resume_run(self, run: RecoveredRun | None) -> None:
        """Go on with the state of `recover`."""
        process = self._process
        assert process is not None
        if run is None and self._is_shared:
            self.begin()
            return
        if run is None:
            self.handle(self._scenario.submission())
        elif run.finish is not None:
            self.finished = run.finish
            return
        self._hear_again(process)
        if run is not None:
            self._continue_from(run, process.downtime_s)

    def _continue_from(self, run: RecoveredRun, downtime_s: float) -> None:
        """Continue a run with the model of its journal, and the job that was under way."""
        if self._model != run.models.current:
            self._compute.restore()
            self._model = run.models.current
        self.handle(events.OrchestratorRestarted(at_s=self.queue.now_s, downtime_s=downtime_s))
        if run.job is not None:
            HANDLERS[type(run.job)](self, run.job)

    def _hear_again(self, process: OrchestratorProcess) -> None:
        """Report what happened to learners while the orchestrator was down, as it notices it."""
        calls_s = reconnect_s(process.downtime_s)
        share = uniform(process.stops, "rejoin", 0, np.zeros(1, np.int64))[0]
        now_s = self.queue.now_s
        self.queue.schedule(now_s + float(share) * calls_s, self._report_missed_joins)
        self.queue.schedule(now_s + calls_s, self._report_missed_departures)
        silent = np.flatnonzero(~self._churn.present)
        if silent.size:
            self.queue.schedule(now_s + calls_s, partial(self._watch_silence, silent))

    def _report_missed_joins(self) -> None:
        joined = self._missed.take_joined()
        present = self._churn.present[joined]
        self._missed.leave(joined[~present], "sent no sign of life")
        self.report_joined(joined[present])

    def _report_missed_departures(self) -> None:
        for reason, left in self._missed.take_left().items():
            self.report_left(left[~self._churn.present[left]], reason)

    def _schedule_result(self, event: Any) -> None:
        """Let the process that runs now, and no other, handle the result of a job at once."""
        stops = 0 if self._process is None else self._process.stops

        def report() -> None:
            if self._process is None or self._process.stops == stops:
                self.handle(event)

        self.queue.schedule(self.queue.now_s, report)

    def restart(self, learners: Ints) -> None:
        """Start these learners without any state, and let them join."""
        self.learners.restart(learners, self.queue.now_s)
        self.report_joined(learners)

    def resume(self, learners: Ints) -> None:
        """Let learners go on with what they saved; those that the machine misses join anew."""
        if self._process is not None and self._process.is_down:
            self.restart(learners)
            return
        self.report_resumed(learners, self.start_again(learners))

    def start_again(self, learners: Ints) -> Bools:
        """Start learners with what they saved; return which of them the machine has not missed."""
        if not self._has_begun:
            self.learners.restart(learners, self.queue.now_s)
            return np.zeros(learners.size, np.bool_)
        table = self.state.learners
        known = learners < table.present.size
        known[known] = table.present[learners[known]]
        self.learners.restart(learners[~known], self.queue.now_s)
        self.learners.resume(learners[known], self.queue.now_s)
        return known

    def report_resumed(self, learners: Ints, known: Bools) -> None:
        """Report learners that started again; those that were missed join anew."""
        self.report_joined(learners[~known])
        if known.any():
            event = events.LearnersResumed(at_s=self.queue.now_s, learners=learners[known])
            with suppress(OrchestratorDownError):
                self.handle(event)

    def interrupt(self, learners: Ints) -> None:
        """Stop these learners from sending anything until they restart."""
        self.network.drop_unsent(learners)
        self.energy.stop(learners)
        self.learners.interrupt(learners, self.queue.now_s)

    def silence(self, learners: Ints) -> None:
        """Stop these learners from sending anything more; this is noticed in time."""
        self.network.drop_unsent(learners)
        self.energy.stop(learners)
        self._watch_silence(learners)

    def _watch_silence(self, learners: Ints) -> None:
        """Let the orchestrator notice in time that learners at work are silent."""
        for limit_s in np.unique(self._silence_limit_s[learners]).tolist():
            members = learners[self._silence_limit_s[learners] == limit_s]
            at_s = self.queue.now_s + limit_s
            self.queue.schedule(at_s, partial(self._remove_silent, members))

    def _remove_silent(self, learners: Ints) -> None:
        """Report learners as gone that are still silent and have work; the last one is awaited."""
        if not self._has_begun or (self._process is not None and self._process.is_down):
            return  # Its successor watches all that are silent.
        table = self.state.learners
        learners = learners[learners < table.present.size]  # Others have never joined.
        learners = learners[table.present[learners] & ~self._churn.present[learners]]
        at_work = table.work[learners] == WorkStatus.ASSIGNED
        learners = learners[at_work | (table.late_cycles[learners] > 0)]
        learners = learners[: int(table.present.sum()) - 1]
        if learners.size:
            self.report_left(learners, "sent no sign of life")

    def report_joined(self, learners: Ints) -> None:
        """Report that these learners joined, unless the task is not submitted yet."""
        if not learners.size or not self._has_begun:
            return
        names, discloses = self._fleet.names, self._fleet.discloses
        if learners.size < len(names):
            names = tuple(names[learner] for learner in learners.tolist())
            discloses = tuple(discloses[learner] for learner in learners.tolist())
        samples = self._scenario.local_shard_samples
        event = events.LearnersJoined(
            at_s=self.queue.now_s,
            learners=learners,
            names=names,
            discloses=discloses,
            local_shard_samples=samples.take(learners) if len(samples) else samples,
        )
        try:
            self.handle(event)
        except OrchestratorDownError:
            self._missed.join(learners)

    def report_left(self, learners: Ints, reason: str) -> None:
        """Report to the machine that the orchestrator noticed these learners missing."""
        if not learners.size or not self._has_begun:
            return
        names = ", ".join(self._fleet.names[learner] for learner in learners[:MAX_NAMES].tolist())
        named = f"{names}{', ...' * (learners.size > MAX_NAMES)}: {reason}"
        event = events.LearnersLeft(at_s=self.queue.now_s, learners=learners, reason=named)
        try:
            self.handle(event)
        except OrchestratorDownError:
            self._missed.leave(learners, reason)

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

    def request_shares(self, command: commands.RequestShares) -> None:
        """Do nothing: whoever plans for all tasks sees the step."""

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

    def resend(self, command: commands.Resend) -> None:
        """Repeat assignments; learners that have them ignore it."""
        self.learners.set_length(self.state.task.deadline_s)
        self._rounds.resend(command)

    def prefetch(self, command: commands.Prefetch) -> None:
        """Let learners fetch shards while they wait for the next cycle."""
        self._rounds.prefetch(command)

    def withdraw(self, command: commands.Withdraw) -> None:
        """Stop the training of assignments that no longer count."""
        self._rounds.withdraw(command)

    def challenge(self, command: commands.Challenge) -> None:
        """Record which segments of updates are checked when they are computed."""
        self.work_records.challenge(command.cycle, command.learners, command.segments)

    def suspect(self, command: commands.Suspect) -> None:
        """Do nothing: the trace has the command."""

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
        parts = self.work_records.updates_to_average(command)
        damaged = [self._find_damaged(part) for part in parts]
        intact = [
            part.take(np.flatnonzero(~rows)) for part, rows in zip(parts, damaged, strict=True)
        ]
        averaged = self._compute.average(
            command.cycle, [part for part in intact if part.learners.size]
        )
        found = iter(averaged.scales)
        scales = np.concatenate(
            [
                np.empty(0),
                *(_fill(~rows, next(found) if not rows.all() else NO_FLOATS) for rows in damaged),
            ]
        )
        learners = np.concatenate([NO_INTS, *(part.learners for part in parts)])
        cycles = np.repeat([p.record.cycle for p in parts], [p.learners.size for p in parts])
        rows = np.flatnonzero((scales < 1.0) | np.isnan(scales))
        if self._process is not None and any(part.learners.size for part in intact):
            self._model = self._process.models.latest + 1
        self._schedule_result(
            events.Aggregated(
                at_s=self.queue.now_s,
                cycle=command.cycle,
                seconds=0.0,
                model=self._model,
                loss=averaged.losses,
                guarded=learners[rows],
                guarded_cycles=cycles[rows] if rows.size else NO_INTS,
                scales=scales[rows],
                verified=averaged.verified,
            )
        )

    def _find_damaged(self, part: WeightedWork) -> Bools:
        """Return which updates of a cycle were damaged on the disk of the orchestrator."""
        if self._process is None:
            return np.zeros(part.learners.size, np.bool_)
        cycles = np.full(part.learners.size, part.record.cycle)
        return self._process.find_damaged(part.learners, cycles, part.attempts)

    def evaluate(self, command: commands.Evaluate) -> None:
        """Evaluate the model."""
        score = self._compute.score()
        self._schedule_result(
            events.Evaluated(
                at_s=self.queue.now_s,
                cycle=command.cycle,
                loss=score.loss,
                accuracy=score.accuracy,
                seconds=0.0,
                finite=score.finite,
            )
        )

    def restore(self, _: commands.Restore) -> None:
        """Return to the model before the latest average."""
        self._compute.restore()
        if self._process is not None:
            self._model = self._process.models.current

    def dismiss(self, command: commands.Dismiss) -> None:
        """Record that learners left."""
        self._schedule_result(
            events.LearnersLeft(
                at_s=self.queue.now_s, learners=command.learners, reason=command.reason
            )
        )

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


def _fill(rows: Bools, values: Floats) -> Floats:
    """Return values in these rows, and NaN in the others."""
    filled = np.full(rows.size, np.nan)
    filled[rows] = values
    return filled


HANDLERS: dict[type[commands.Command], Callable[[Driver, Any], None]] = {
    commands.Benchmark: Driver.benchmark,
    commands.AskBound: Driver.ask_bound,
    commands.RequestShares: Driver.request_shares,
    commands.Dispatch: Driver.dispatch,
    commands.Extend: Driver.extend,
    commands.Resend: Driver.resend,
    commands.Prefetch: Driver.prefetch,
    commands.Withdraw: Driver.withdraw,
    commands.Challenge: Driver.challenge,
    commands.Suspect: Driver.suspect,
    commands.Wake: Driver.wake,
    commands.Aggregate: Driver.aggregate,
    commands.Evaluate: Driver.evaluate,
    commands.Restore: Driver.restore,
    commands.Dismiss: Driver.dismiss,
    commands.Finish: Driver.finish,
}

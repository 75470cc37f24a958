"""A trace told step by step: what is known of the run so far, and the report of it.

The same fold serves the report of a run that is over and the display of one that goes on, of three
learners or of a million. It repeats no decision of the machine: what counts is what the commands
say. The steps themselves are not kept.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any, Literal

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.ragged import Ints
from melisma.errors import DataError
from melisma.fleet.task import Task
from melisma.runs.assignments import NO_ASSIGNMENTS, STATUSES, Assignments, Names, Status
from melisma.runs.learner_set import LearnerSet
from melisma.runs.report import Cycle, Report
from melisma.runs.shard_sizes import ShardSizes
from melisma.runs.trace import Step
from melisma.runs.usage import UNKNOWN_RATES, UsageRates

Named = events.UpdatesReceived | commands.Dispatch | commands.Withdraw | commands.Aggregate

# An update that came once more says nothing new.
COUNTED_OR_REFUSED = (STATUSES.index("counted"), STATUSES.index("refused"))


class RunProgress:
    """What is known so far; `hear` one step after another."""

    def __init__(self) -> None:
        self.now_s = -inf
        self.outcome: commands.Outcome | Literal["running"] = "running"
        self.reason = ""
        self.names = np.empty(0, np.object_)
        self.joined, self.left, self.collecting = LearnerSet(), LearnerSet(), LearnerSet()
        self.collecting_cycle = (
            0  # the cycle for which learners were last asked what they would take
        )
        self._submitted: events.TaskSubmitted | None = None
        self._tariff = UNKNOWN_RATES
        self._contents = ShardSizes(np.empty(0, np.int64))
        self._reasons, self._places = [""], {"": 0}
        self._why_gone = np.empty(0, np.int32)
        self._cycles: dict[int, Cycle] = {}
        self._work: dict[int, Assignments] = {}
        self._averaged: commands.Aggregate | None = None

    @property
    def submission(self) -> events.TaskSubmitted:
        """How it began; `DataError` if that was never heard."""
        if self._submitted is None:
            raise DataError("the trace does not begin with a task")
        return self._submitted

    @property
    def task(self) -> Task:
        """What is trained."""
        return self.submission.task

    @property
    def current_cycle(self) -> Cycle | None:
        """The cycle that began last."""
        return self._whole(max(self._cycles), self.names) if self._cycles else None

    @property
    def evaluated_cycle(self) -> Cycle | None:
        """The cycle that was evaluated last."""
        known = [number for number, each in self._cycles.items() if each.evaluate_s >= 0]
        return self._whole(max(known), self.names) if known else None

    def report(self) -> Report:
        """All of it, but for the trace."""
        names = tuple(self.names.tolist())
        why = np.array(self._reasons, np.object_)[self._why_gone[self.left.numbers]]
        return Report(
            run=self.submission.run,
            task=self.task,
            names=names,
            departures=tuple(why.tolist()),
            began_s=self.submission.at_s,
            ended_s=self.now_s,
            cycles=tuple(self._whole(number, names) for number in sorted(self._cycles)),
            outcome=self.outcome,
            reason=self.reason,
        )

    def apply(self, step: Step) -> None:
        """One more step."""
        if self.outcome != "running":
            return
        # An update is told of when it is written down, with the instant at which it came.
        self.now_s = max(self.now_s, float(step.event.at_s))
        HEARD.get(type(step.event), _nothing)(self, step.event)
        for command in step.commands:
            SAID.get(type(command), _nothing)(self, command)

    def _submit(self, event: events.TaskSubmitted) -> None:
        self._submitted = event
        self._tariff, self._contents = UsageRates.of(event), ShardSizes(event.samples)
        self._make_room(len(event.names) or event.learners)
        self.names[: len(event.names)] = event.names

    def _make_room(self, count: int) -> None:
        missing = count - self.names.size
        if missing <= 0:
            return
        self.names = np.concatenate([self.names, np.full(missing, "", np.object_)])
        self._why_gone = np.pad(self._why_gone, (0, missing))

    def _join(self, event: events.LearnersJoined) -> None:
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.names[event.learners] = event.names
        self.joined.add(event.learners)
        self.left.discard(event.learners)
        if len(event.local_data):
            self._contents.add(event.learners, event.local_data)

    def _leave(self, event: events.LearnersLeft) -> None:
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.left.add(event.learners)
        self._why_gone[event.learners] = self._place(event.reason)
        self.collecting.discard(event.learners)
        for number, work in self._work.items():
            if work.with_status("training").any():
                self._end(number, work.rows_of(event.learners), "left", event.reason)

    def _told(self, event: events.EstimatesReported | events.BoundsReported) -> None:
        self.collecting.discard(event.learners)

    def _progress(self, event: events.ProgressReported) -> None:
        work = self._work.get(event.cycle, NO_ASSIGNMENTS)
        rows = work.latest_rows(event.learners)
        known = np.flatnonzero(rows >= 0)
        known = known[work.with_status("training")[rows[known]]]
        self._say(event.cycle, rows[known], visits=event.visits[known])

    def _update(self, event: events.UpdatesReceived) -> None:
        rows, places = self._found(event)
        taken = np.isin(
            self._work.get(event.cycle, NO_ASSIGNMENTS).status[rows], COUNTED_OR_REFUSED
        )
        rows, new = rows[~taken], _all_or(places[~taken], event.learners.size)
        self._say(
            event.cycle,
            rows,
            visits=event.visits[new],
            shipped=event.shipped[new],
            loss=event.loss[new],
            phases=event.phases[new],
            arrived_s=event.arrival_times_s[new],
        )
        ended_s = event.arrivals_s[new] if event.arrivals_s.size else self.now_s
        self._end(
            event.cycle, rows, "refused" if event.refused else "counted", event.refused, ended_s
        )

    def _aggregated(self, event: events.Aggregated) -> None:
        self._note(event.cycle, aggregate_s=event.seconds)
        averaged, self._averaged = self._averaged, None
        if event.loss.size and averaged is not None and averaged.cycle == event.cycle:
            rows, places = self._found(averaged)
            self._say(event.cycle, rows, loss=event.loss[places])

    def _evaluated(self, event: events.Evaluated) -> None:
        score = {"loss": _number(event.loss), "accuracy": _number(event.accuracy)}
        self._note(event.cycle, evaluate_s=event.seconds, evaluated_s=float(event.at_s), **score)

    def _measure(self, command: commands.Benchmark | commands.AskBound) -> None:
        self.collecting.add(command.learners)
        self.collecting_cycle = command.cycle if isinstance(command, commands.AskBound) else 0

    def _dispatch(self, command: commands.Dispatch) -> None:
        self._open(command.cycle, command.seconds_left)
        self._note(command.cycle, tail_s=command.tail_s, no_pass=command.no_pass.size)
        self.collecting.clear()
        samples = self._contents.samples_in(command.learners, command.shards)
        given = Assignments.from_dispatch(command, samples, self.now_s, self.names, self._reasons)
        before = self._work[command.cycle]
        self._work[command.cycle] = before.merge(given) if len(before) else given

    def _withdraw(self, command: commands.Withdraw) -> None:
        late = self.now_s >= self._deadline_s(command.cycle)
        rows, _ = self._found(command)
        self._end(command.cycle, rows, "late" if late else "dropped", command.reason)

    def _aggregate(self, command: commands.Aggregate) -> None:
        self._open(command.cycle, self.task.deadline_s)
        self.collecting.clear()
        self._averaged = command
        rows, places = self._found(command)
        self._say(command.cycle, rows, weight=command.weights[places])
        ending = "aggregated" if command.learners.size else "empty"
        reason = command.reason.removeprefix("empty: ")
        self._note(command.cycle, ending=ending, reason=reason, closed_s=self.now_s)

    def _finish(self, command: commands.Finish) -> None:
        self.outcome, self.reason = command.outcome, command.reason
        self.collecting.clear()
        if command.outcome == "failed" and self.collecting_cycle > max(
            self._cycles, default=self.collecting_cycle
        ):
            self._open(self.collecting_cycle, self.task.deadline_s)
        unfinished = self._averaged
        if unfinished is not None and unfinished.learners.size:
            self._break_off(unfinished.cycle, command)
        for number, each in self._cycles.items():
            if each.ending == "running":
                self._break_off(number, command)

    def _break_off(self, number: int, command: commands.Finish) -> None:
        """What came in a cycle that does not end is in no model."""
        came = np.flatnonzero(self._work[number].counted_visits)
        dropped = {"status": STATUSES.index("dropped"), "reason": self._place(command.reason)}
        self._say(number, came, weight=0.0, **dropped)
        ending = "empty" if command.outcome == "failed" and not came.size else "interrupted"
        self._note(number, ending=ending, reason=command.reason, closed_s=self.now_s)

    def _open(self, number: int, deadline_s: float) -> None:
        if number not in self._cycles:
            self._cycles[number] = Cycle(number, self.now_s, deadline_s, rates=self._tariff)
            self._work[number] = NO_ASSIGNMENTS

    def _note(self, number: int, **said: Any) -> None:
        self._cycles[number] = replace(self._cycles[number], **said)

    def _say(self, number: int, rows: Ints, **said: Any) -> None:
        if rows.size:
            self._work[number] = self._work[number].update(rows, **said)

    def _end(self, number: int, rows: Ints, status: Status, reason: str, at_s: Any = None) -> None:
        """Work that is under way ends once, now unless something else is said."""
        if rows.size:
            place, ended_s = self._place(reason), self.now_s if at_s is None else at_s
            self._work[number] = self._work[number].end(rows, status, place, ended_s)

    def _found(self, named: Named) -> tuple[Ints, Ints]:
        """Rows of the work that is named, and at which places; what is not known has none."""
        rows = self._work.get(named.cycle, NO_ASSIGNMENTS).find(named.learners, named.attempts)
        places = np.flatnonzero(rows >= 0)
        return rows[places], places

    def _place(self, reason: str) -> int:
        """Where a reason stands among all that were heard."""
        place = self._places.setdefault(reason, len(self._reasons))
        if place == len(self._reasons):
            self._reasons.append(reason)
        return place

    def _deadline_s(self, number: int) -> float:
        cycle = self._cycles.get(number)
        return cycle.began_s + cycle.deadline_s if cycle else nan

    def _whole(self, number: int, names: Names) -> Cycle:
        work = replace(self._work[number].freeze(), names=names)
        return replace(self._cycles[number], assignments=work)


def _all_or(places: Ints, count: int) -> Any:
    """These places, or all without a copy."""
    return slice(None) if places.size == count else places


def _number(value: float | None) -> float:
    return nan if value is None else value


def _nothing(story: RunProgress, said: Any) -> None:
    """Nothing that is told."""


HEARD: dict[type, Callable[[RunProgress, Any], None]] = {
    events.TaskSubmitted: RunProgress._submit,
    events.LearnersJoined: RunProgress._join,
    events.LearnersLeft: RunProgress._leave,
    events.EstimatesReported: RunProgress._told,
    events.BoundsReported: RunProgress._told,
    events.ProgressReported: RunProgress._progress,
    events.UpdatesReceived: RunProgress._update,
    events.Aggregated: RunProgress._aggregated,
    events.Evaluated: RunProgress._evaluated,
}
SAID: dict[type, Callable[[RunProgress, Any], None]] = {
    commands.Benchmark: RunProgress._measure,
    commands.AskBound: RunProgress._measure,
    commands.Dispatch: RunProgress._dispatch,
    commands.Withdraw: RunProgress._withdraw,
    commands.Aggregate: RunProgress._aggregate,
    commands.Finish: RunProgress._finish,
}

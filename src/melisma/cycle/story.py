"""A trace told step by step: what is known of the run so far, and the report of it.

The same fold serves the report of a run that is over and the display of one that goes on. It
repeats no decision of the machine: what counts is what the commands say.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any, Literal

from melisma.cycle import commands as do
from melisma.cycle import events as ev
from melisma.cycle.report import Assignment, Cycle, Report, Status
from melisma.cycle.trace import Step
from melisma.errors import DataError
from melisma.fleet.task import Task

Key = tuple[int, int]  # learner and attempt


class Story:
    """What is known so far; `hear` one step after another."""

    def __init__(self) -> None:
        self.now_s = -inf
        self.outcome: do.Outcome | Literal["under way"] = "under way"
        self.reason = ""
        self.names: list[str] = []
        self.joined: set[int] = set()
        self.gone: dict[int, str] = {}  # with the reason
        self.measuring: set[int] = set()
        self.asked = 0  # the cycle for which learners were last asked what they would take
        self._submitted: ev.TaskSubmitted | None = None
        self._trace: list[Step] = []
        self._own: dict[int, ev.Ints] = {}
        self._cycles: dict[int, Cycle] = {}
        self._work: dict[int, dict[Key, Assignment]] = {}
        self._latest: dict[int, Key] = {}

    @property
    def submitted(self) -> ev.TaskSubmitted:
        """How it began; `DataError` if that was never heard."""
        if self._submitted is None:
            raise DataError("the trace does not begin with a task")
        return self._submitted

    @property
    def task(self) -> Task:
        """What is trained."""
        return self.submitted.task

    @property
    def cycle(self) -> Cycle | None:
        """The cycle that began last."""
        return self._whole(max(self._cycles)) if self._cycles else None

    @property
    def scored(self) -> Cycle | None:
        """The cycle that was evaluated last."""
        known = [number for number, each in self._cycles.items() if each.evaluate_s >= 0]
        return self._whole(max(known)) if known else None

    def report(self) -> Report:
        """All of it."""
        return Report(
            run=self.submitted.run,
            task=self.task,
            names=tuple(self.names),
            gone=tuple(self.gone[learner] for learner in sorted(self.gone)),
            began_s=self.submitted.at_s,
            ended_s=self.now_s,
            cycles=tuple(self._whole(number) for number in sorted(self._cycles)),
            outcome=self.outcome,
            reason=self.reason,
            trace=tuple(self._trace),
        )

    def hear(self, step: Step) -> None:
        """One more step."""
        self._trace.append(step)
        if self.outcome != "under way":
            return
        # An update is told of when it is written down, with the instant at which it came.
        self.now_s = max(self.now_s, float(step.event.at_s))
        HEARD.get(type(step.event), _nothing)(self, step.event)
        for command in step.commands:
            SAID.get(type(command), _nothing)(self, command)

    def _submit(self, event: ev.TaskSubmitted) -> None:
        self._submitted = event
        self.names = list(event.names) or [""] * event.learners

    def _join(self, event: ev.LearnersJoined) -> None:
        for place, learner in enumerate(event.learners.tolist()):
            self.names += [""] * (learner + 1 - len(self.names))
            self.names[learner] = event.names[place]
            self.joined.add(learner)
            self.gone.pop(learner, None)
            if event.own:
                self._own[learner] = event.own[place]

    def _leave(self, event: ev.LearnersLeft) -> None:
        learners = set(event.learners.tolist())
        self.gone.update(dict.fromkeys(learners, event.reason))
        self.measuring -= learners
        for number, work in self._work.items():
            self._end(number, [key for key in work if key[0] in learners], "left", event.reason)

    def _told(self, event: ev.EstimatesReported | ev.BoundsReported) -> None:
        self.measuring -= set(event.learners.tolist())

    def _progress(self, event: ev.ProgressReported) -> None:
        work = self._work.get(event.cycle, {})
        for learner, visits in zip(event.learners.tolist(), event.visits.tolist(), strict=True):
            key = self._latest.get(learner, (learner, 0))
            if key in work and work[key].status == "training":
                work[key] = replace(work[key], visits=visits)

    def _update(self, event: ev.UpdatesReceived) -> None:
        work = self._work.get(event.cycle, {})
        for place, key in enumerate(_keys(event)):
            if key not in work or work[key].status in ("in", "refused"):
                continue
            work[key] = replace(
                work[key],
                visits=int(event.visits[place]),
                loss=float(event.loss[place]),
                phases=tuple(event.phases[place].tolist()),
                arrived_s=event.at_s,
            )
            self._end(event.cycle, [key], "refused" if event.refused else "in", event.refused)

    def _aggregated(self, event: ev.Aggregated) -> None:
        self._note(event.cycle, aggregate_s=event.seconds)

    def _evaluated(self, event: ev.Evaluated) -> None:
        score = {"loss": _number(event.loss), "accuracy": _number(event.accuracy)}
        self._note(event.cycle, evaluate_s=event.seconds, **score)

    def _measure(self, command: do.Benchmark | do.AskBound) -> None:
        self.measuring.update(command.learners.tolist())
        self.asked = command.cycle if isinstance(command, do.AskBound) else 0

    def _dispatch(self, command: do.Dispatch) -> None:
        self._open(command.cycle, command.seconds_left)
        self._note(command.cycle, tail_s=command.tail_s)
        self.measuring.clear()
        work = self._work[command.cycle]
        for place, key in enumerate(_keys(command)):
            learner, shards = key[0], command.shards[place]
            sizes = self._own.get(learner, self.submitted.samples)
            self._latest[learner] = key
            work[key] = Assignment(
                cycle=command.cycle,
                learner=learner,
                name=self.names[learner],
                attempt=key[1],
                shards=shards.size,
                passes=int(command.passes[place]),
                samples=int(sizes[shards].sum()),
                given_s=self.now_s,
                predicted_s=float(command.predicted_s[place]),
            )

    def _withdraw(self, command: do.Withdraw) -> None:
        late = self.now_s >= self._deadline_s(command.cycle)
        keys = [key for key in _keys(command) if key in self._work.get(command.cycle, {})]
        self._end(command.cycle, keys, "late" if late else "dropped", command.reason)

    def _aggregate(self, command: do.Aggregate) -> None:
        self._open(command.cycle, self.task.deadline_s)
        self.measuring.clear()
        work = self._work[command.cycle]
        for key, weight in zip(_keys(command), command.weights.tolist(), strict=True):
            work[key] = replace(work[key], weight=weight)
        ending = "averaged" if command.learners.size else "empty"
        reason = command.reason.removeprefix("empty: ")
        self._note(command.cycle, ending=ending, reason=reason, closed_s=self.now_s)

    def _finish(self, command: do.Finish) -> None:
        self.outcome, self.reason = command.outcome, command.reason
        self.measuring.clear()
        if command.outcome == "failed" and self.asked > max(self._cycles, default=self.asked):
            self._open(self.asked, self.task.deadline_s)
        for number, each in self._cycles.items():
            if each.ending == "under way":
                self._break_off(number, command)

    def _break_off(self, number: int, command: do.Finish) -> None:
        """What came in a cycle that does not end is in no model."""
        work = self._work[number]
        came = [key for key, each in work.items() if each.done]
        for key in came:
            work[key] = replace(work[key], status="dropped", reason=command.reason)
        ending = "empty" if command.outcome == "failed" and not came else "cut short"
        self._note(number, ending=ending, reason=command.reason, closed_s=self.now_s)

    def _open(self, number: int, deadline_s: float) -> None:
        if number not in self._cycles:
            self._cycles[number] = Cycle(number, self.now_s, deadline_s)
            self._work[number] = {}

    def _note(self, number: int, **said: Any) -> None:
        self._cycles[number] = replace(self._cycles[number], **said)

    def _end(self, number: int, keys: list[Key], status: Status, reason: str) -> None:
        """Work that is under way ends once."""
        work = self._work[number]
        for key in keys:
            if work[key].status == "training":
                work[key] = replace(work[key], status=status, reason=reason, ended_s=self.now_s)

    def _deadline_s(self, number: int) -> float:
        cycle = self._cycles.get(number)
        return cycle.began_s + cycle.deadline_s if cycle else nan

    def _whole(self, number: int) -> Cycle:
        work = self._work[number]
        return replace(self._cycles[number], assignments=tuple(work[key] for key in sorted(work)))


def _keys(named: ev.UpdatesReceived | do.Dispatch | do.Withdraw | do.Aggregate) -> list[Key]:
    return list(zip(named.learners.tolist(), named.attempts.tolist(), strict=True))


def _number(value: float | None) -> float:
    return nan if value is None else value


def _nothing(story: Story, said: Any) -> None:
    """Nothing that is told."""


HEARD: dict[type, Callable[[Story, Any], None]] = {
    ev.TaskSubmitted: Story._submit,
    ev.LearnersJoined: Story._join,
    ev.LearnersLeft: Story._leave,
    ev.EstimatesReported: Story._told,
    ev.BoundsReported: Story._told,
    ev.ProgressReported: Story._progress,
    ev.UpdatesReceived: Story._update,
    ev.Aggregated: Story._aggregated,
    ev.Evaluated: Story._evaluated,
}
SAID: dict[type, Callable[[Story, Any], None]] = {
    do.Benchmark: Story._measure,
    do.AskBound: Story._measure,
    do.Dispatch: Story._dispatch,
    do.Withdraw: Story._withdraw,
    do.Aggregate: Story._aggregate,
    do.Finish: Story._finish,
}

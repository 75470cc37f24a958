"""A reference for `RunProgress` with one record per assignment, and random traces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from typing import Any

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.runs.assignments import Assignment, Status
from melisma.runs.trace import Step
from melisma.testing import make_task

LEARNERS, SHARDS = 7, 12
DEADLINE_S = 10.0
RATES = np.arange(3.0 * LEARNERS).reshape(3, LEARNERS)
Key = tuple[int, int, int]  # cycle, learner and attempt


class NaiveProgress:
    """The assignments of a run, one record each."""

    def __init__(self) -> None:
        self.work: dict[Key, Assignment] = {}
        self.began_s: dict[int, float] = {}
        self.local_shards: dict[int, Any] = {}
        self.samples: Any = None
        self.aggregated_keys: list[Key] = []
        self.now_s = 0.0

    def apply(self, step: Step) -> None:
        self.now_s = max(self.now_s, step.event.at_s)
        for item in (step.event, *step.commands):
            if type(item) in HANDLERS:
                HANDLERS[type(item)](self, item)

    def on_task_submitted(self, event: events.TaskSubmitted) -> None:
        self.samples = event.shard_samples

    def on_learners_joined(self, event: events.LearnersJoined) -> None:
        if len(event.local_shards):
            self.local_shards |= dict(zip(event.learners.tolist(), event.local_shards, strict=True))

    def on_learners_left(self, event: events.LearnersLeft) -> None:
        for key in self.work:
            if key[1] in event.learners:
                self.end(key, "left", event.reason, self.now_s)

    def on_progress_reported(self, event: events.ProgressReported) -> None:
        for learner, visits in zip(event.learners.tolist(), event.visits.tolist(), strict=True):
            keys = [key for key in self.work if key[:2] == (event.cycle, learner)]
            if keys and self.work[max(keys)].status == "training":
                self.work[max(keys)] = replace(self.work[max(keys)], visits=visits)

    def on_updates_received(self, event: events.UpdatesReceived) -> None:
        for index, key in enumerate(keys(event)):
            if key not in self.work or self.work[key].status in ("counted", "refused"):
                continue
            arrived_s = float(event.arrivals_s[index]) if event.arrivals_s.size else self.now_s
            self.work[key] = replace(
                self.work[key],
                visits=int(event.visits[index]),
                shipped=int(event.shipped[index]),
                loss=float(event.loss[index]),
                phases=tuple(event.phases[index].tolist()),
                arrived_s=float(event.arrival_times_s[index]),
            )
            self.end(key, "refused" if event.refused else "counted", event.refused, arrived_s)

    def on_aggregated(self, event: events.Aggregated) -> None:
        for key, loss in zip(self.aggregated_keys, event.loss.tolist(), strict=False):
            self.work[key] = replace(self.work[key], loss=loss)

    def on_dispatch(self, command: commands.Dispatch) -> None:
        self.began_s.setdefault(command.cycle, self.now_s)
        for index, (key, shards) in enumerate(zip(keys(command), command.shards, strict=True)):
            self.work[key] = Assignment(
                cycle=key[0],
                learner=key[1],
                name=f"device-{key[1]}",
                attempt=key[2],
                shards=shards.size,
                passes=int(command.passes[index]),
                samples=sum(self.local_shards.get(key[1], self.samples)[shards].tolist()),
                dispatched_s=self.now_s,
                predicted_s=float(command.predicted_s[index]),
            )

    def on_withdraw(self, command: commands.Withdraw) -> None:
        late = self.now_s >= self.began_s.get(command.cycle, nan) + DEADLINE_S
        for key in keys(command):
            self.end(key, "late" if late else "dropped", command.reason, self.now_s)

    def on_aggregate(self, command: commands.Aggregate) -> None:
        self.aggregated_keys = keys(command)
        for key, weight in zip(self.aggregated_keys, command.weights.tolist(), strict=True):
            self.work[key] = replace(self.work[key], weight=weight)

    def end(self, key: Key, status: Status, reason: str, at_s: float) -> None:
        if key in self.work and self.work[key].status == "training":
            ended = replace(self.work[key], status=status, reason=reason, ended_s=at_s)
            self.work[key] = ended


HANDLERS: dict[type, Callable[[NaiveProgress, Any], None]] = {
    events.TaskSubmitted: NaiveProgress.on_task_submitted,
    events.LearnersJoined: NaiveProgress.on_learners_joined,
    events.LearnersLeft: NaiveProgress.on_learners_left,
    events.ProgressReported: NaiveProgress.on_progress_reported,
    events.UpdatesReceived: NaiveProgress.on_updates_received,
    events.Aggregated: NaiveProgress.on_aggregated,
    commands.Dispatch: NaiveProgress.on_dispatch,
    commands.Withdraw: NaiveProgress.on_withdraw,
    commands.Aggregate: NaiveProgress.on_aggregate,
}


def keys(message: Any) -> list[Key]:
    pairs = zip(message.learners.tolist(), message.attempts.tolist(), strict=True)
    return [(message.cycle, learner, attempt) for learner, attempt in pairs]


def random_trace(seed: int, federated: bool = False) -> list[Step]:
    """Return a random trace of a few learners, with messages that a real run cannot have."""
    return list(_RandomTrace(seed, federated).steps())


class _RandomTrace:
    def __init__(self, seed: int, federated: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.federated, self.now_s = federated, 0.0
        self.naive = NaiveProgress()

    def steps(self) -> Iterator[Step]:
        for event, issued in self.events_and_commands():
            step = Step(event, issued)
            self.naive.apply(step)
            yield step

    def events_and_commands(self) -> Iterator[tuple[Any, list[Any]]]:
        yield self.submitted(), []
        yield self.joined(np.arange(LEARNERS)), []
        for cycle in range(1, 4):
            yield self.time(), [self.dispatch(cycle)]
            for _ in range(self.rng.integers(1, 9)):
                yield self.random_event(cycle)
            yield self.time(), [self.withdraw(cycle), self.aggregate(cycle)]
            loss = self.rng.random(len(self.naive.aggregated_keys) * self.rng.integers(0, 2))
            yield events.Aggregated(at_s=self.now_s, cycle=cycle, seconds=0.1, loss=loss), []

    def random_event(self, cycle: int) -> tuple[Any, list[Any]]:
        kind = self.rng.integers(0, 8)
        if kind == 0:
            visits = self.rng.integers(0, 50, LEARNERS)
            learners = self.random_learners()
            at_s = self.advance()
            progress = events.ProgressReported(
                at_s=at_s, learners=learners, cycle=cycle, visits=visits[: learners.size]
            )
            return progress, []
        if kind == 1:
            left = events.LearnersLeft(
                at_s=self.advance(), learners=self.random_learners(), reason=f"reason {self.now_s}"
            )
            return left, []
        if kind == 2:
            return self.joined(self.random_learners()), []
        if kind == 3:
            return self.time(), [self.dispatch(cycle)]
        if kind == 4:
            return self.time(), [self.withdraw(cycle)]
        return self.updates(int(self.rng.integers(1, cycle + 1))), []

    def random_learners(self) -> Any:
        return self.rng.permutation(LEARNERS)[: self.rng.integers(1, LEARNERS + 1)]

    def advance(self) -> float:
        self.now_s += float(self.rng.random() * 3)
        return self.now_s

    def time(self) -> events.TimeReached:
        return events.TimeReached(at_s=self.advance())

    def submitted(self) -> events.TaskSubmitted:
        settings = make_task(mode="federated" if self.federated else "parallelized")
        samples = self.rng.integers(1, 20, 0 if self.federated else SHARDS)
        names = tuple(f"device-{k}" for k in range(LEARNERS))
        return events.TaskSubmitted(
            at_s=0.0,
            run="r1",
            task=settings,
            learner_count=3,
            shard_samples=samples,
            names=names,
            rates=RATES,
        )

    def joined(self, learners: Any) -> events.LearnersJoined:
        sizes = [self.rng.integers(1, 20, SHARDS + learner) for learner in learners.tolist()]
        return events.LearnersJoined(
            at_s=self.advance(),
            learners=learners,
            names=tuple(f"device-{k}" for k in learners.tolist()),
            discloses=("costs",) * learners.size,
            local_shards=RaggedArray.from_rows(sizes) if self.federated else NO_ROWS,
        )

    def dispatch(self, cycle: int) -> commands.Dispatch:
        learners = self.random_learners()
        dealt = [self.rng.permutation(SHARDS)[: self.rng.integers(0, SHARDS)] for _ in learners]
        return commands.Dispatch(
            reason="random",
            learners=learners,
            cycle=cycle,
            attempts=self.rng.integers(1, 4, learners.size),
            shards=RaggedArray.from_rows(dealt),
            passes=self.rng.integers(1, 4, learners.size),
            seconds_left=DEADLINE_S,
            tail_s=1.0,
            predicted_s=np.where(self.rng.random(learners.size) < 0.5, nan, 3.0),
        )

    def withdraw(self, cycle: int) -> commands.Withdraw:
        learners = self.random_learners()
        attempts = self.rng.integers(1, 4, learners.size)
        return commands.Withdraw(reason="late", learners=learners, cycle=cycle, attempts=attempts)

    def aggregate(self, cycle: int) -> commands.Aggregate:
        counted = [
            key
            for key, assignment in self.naive.work.items()
            if key[0] == cycle and assignment.counted_visits
        ]
        return commands.Aggregate(
            reason="all are in",
            cycle=cycle,
            learners=np.array([key[1] for key in counted], np.int64),
            attempts=np.array([key[2] for key in counted], np.int64),
            weights=self.rng.random(len(counted)),
        )

    def updates(self, cycle: int) -> events.UpdatesReceived:
        learners, began_s = self.random_learners(), self.now_s
        arrived_s = began_s + np.sort(self.rng.random(learners.size))
        self.now_s = float(arrived_s[-1])
        return events.UpdatesReceived(
            at_s=self.now_s,
            learners=learners,
            cycle=cycle,
            attempts=self.rng.integers(1, 4, learners.size),
            visits=self.rng.integers(0, 60, learners.size),
            shipped=self.rng.integers(0, 5, learners.size),
            loss=self.rng.random(learners.size),
            phases=self.rng.random((learners.size, len(events.PHASES))),
            arrivals_s=arrived_s,
            refused="not finite" if self.rng.random() < 0.2 else "",
        )


def split_events(trace: list[Step]) -> list[Step]:
    """Return the same trace with one event per learner instead of one for many."""
    steps = []
    for step in trace:
        parts = [Step(part, []) for part in split(step.event)]
        steps += [*parts[:-1], Step(parts[-1].event, step.commands)]
    return steps


def split(event: Any) -> list[Any]:
    """Return one event for each learner of an event."""
    if isinstance(event, events.TaskSubmitted) or not hasattr(event, "learners"):
        return [event]
    return [_event_of(event, index) for index in range(event.learners.size)]


def _event_of(event: Any, index: int) -> Any:
    values: dict[str, Any] = {}
    for name in set(event.__struct_fields__) - {"at_s", "cycle", "reason", "refused", "arrivals_s"}:
        column = getattr(event, name)
        ragged = isinstance(column, RaggedArray)
        row = np.array([index])[: len(column)]
        values[name] = column.take(row) if ragged else column[index:][:1]
    if isinstance(event, events.UpdatesReceived):
        values |= {"at_s": float(event.arrivals_s[index]), "arrivals_s": events.NO_FLOATS}
    return msgspec.structs.replace(event, **values)

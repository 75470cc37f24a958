"""A trace folded learner by learner, and random traces: what the columns are held against."""

from collections.abc import Iterator
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


class Naive:
    """The assignments of a run, one record each."""

    def __init__(self) -> None:
        self.work: dict[Key, Assignment] = {}
        self.began_s: dict[int, float] = {}
        self.own: dict[int, Any] = {}
        self.samples: Any = None
        self.averaged: list[Key] = []
        self.now_s = 0.0

    def hear(self, step: Step) -> None:
        self.now_s = max(self.now_s, step.event.at_s)
        for said in (step.event, *step.commands):
            getattr(self, type(said).__name__, lambda _: None)(said)

    def TaskSubmitted(self, event: events.TaskSubmitted) -> None:  # noqa: N802
        self.samples = event.samples

    def LearnersJoined(self, event: events.LearnersJoined) -> None:  # noqa: N802
        if len(event.local_data):
            self.own |= dict(zip(event.learners.tolist(), event.local_data, strict=True))

    def LearnersLeft(self, event: events.LearnersLeft) -> None:  # noqa: N802
        for key in self.work:
            if key[1] in event.learners:
                self.end(key, "left", event.reason, self.now_s)

    def ProgressReported(self, event: events.ProgressReported) -> None:  # noqa: N802
        for learner, visits in zip(event.learners.tolist(), event.visits.tolist(), strict=True):
            keys = [key for key in self.work if key[:2] == (event.cycle, learner)]
            if keys and self.work[max(keys)].status == "training":
                self.work[max(keys)] = replace(self.work[max(keys)], visits=visits)

    def UpdatesReceived(self, event: events.UpdatesReceived) -> None:  # noqa: N802
        for place, key in enumerate(keys(event)):
            if key not in self.work or self.work[key].status in ("counted", "refused"):
                continue
            came_s = float(event.arrivals_s[place]) if event.arrivals_s.size else self.now_s
            self.work[key] = replace(
                self.work[key],
                visits=int(event.visits[place]),
                shipped=int(event.shipped[place]),
                loss=float(event.loss[place]),
                phases=tuple(event.phases[place].tolist()),
                arrived_s=float(event.arrival_times_s[place]),
            )
            self.end(key, "refused" if event.refused else "counted", event.refused, came_s)

    def Aggregated(self, event: events.Aggregated) -> None:  # noqa: N802
        for key, loss in zip(self.averaged, event.loss.tolist(), strict=False):
            self.work[key] = replace(self.work[key], loss=loss)

    def Dispatch(self, command: commands.Dispatch) -> None:  # noqa: N802
        self.began_s.setdefault(command.cycle, self.now_s)
        for place, (key, shards) in enumerate(zip(keys(command), command.shards, strict=True)):
            self.work[key] = Assignment(
                cycle=key[0],
                learner=key[1],
                name=f"device-{key[1]}",
                attempt=key[2],
                shards=shards.size,
                passes=int(command.passes[place]),
                samples=sum(self.own.get(key[1], self.samples)[shards].tolist()),
                dispatched_s=self.now_s,
                predicted_s=float(command.predicted_s[place]),
            )

    def Withdraw(self, command: commands.Withdraw) -> None:  # noqa: N802
        late = self.now_s >= self.began_s.get(command.cycle, nan) + DEADLINE_S
        for key in keys(command):
            self.end(key, "late" if late else "dropped", command.reason, self.now_s)

    def Aggregate(self, command: commands.Aggregate) -> None:  # noqa: N802
        self.averaged = keys(command)
        for key, weight in zip(self.averaged, command.weights.tolist(), strict=True):
            self.work[key] = replace(self.work[key], weight=weight)

    def end(self, key: Key, status: Status, reason: str, at_s: float) -> None:
        if key in self.work and self.work[key].status == "training":
            ended = replace(self.work[key], status=status, reason=reason, ended_s=at_s)
            self.work[key] = ended


def keys(named: Any) -> list[Key]:
    both = zip(named.learners.tolist(), named.attempts.tolist(), strict=True)
    return [(named.cycle, learner, attempt) for learner, attempt in both]


def random_trace(seed: int, federated: bool = False) -> list[Step]:
    """Anything that could be said of a few learners, and some of what could not."""
    return list(_Chance(seed, federated).steps())


class _Chance:
    def __init__(self, seed: int, federated: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.federated, self.now_s = federated, 0.0
        self.naive = Naive()

    def steps(self) -> Iterator[Step]:
        for event, said in self.said():
            step = Step(event, said)
            self.naive.hear(step)
            yield step

    def said(self) -> Iterator[tuple[Any, list[Any]]]:
        yield self.submitted(), []
        yield self.joined(np.arange(LEARNERS)), []
        for cycle in range(1, 4):
            yield self.time(), [self.dispatch(cycle)]
            for _ in range(self.rng.integers(1, 9)):
                yield self.something(cycle)
            yield self.time(), [self.withdraw(cycle), self.aggregate(cycle)]
            loss = self.rng.random(len(self.naive.averaged) * self.rng.integers(0, 2))
            yield events.Aggregated(at_s=self.now_s, cycle=cycle, seconds=0.1, loss=loss), []

    def something(self, cycle: int) -> tuple[Any, list[Any]]:
        what = self.rng.integers(0, 8)
        if what == 0:
            visits = self.rng.integers(0, 50, LEARNERS)
            who = self.some()
            at_s = self.later()
            progress = events.ProgressReported(
                at_s=at_s, learners=who, cycle=cycle, visits=visits[: who.size]
            )
            return progress, []
        if what == 1:
            left = events.LearnersLeft(
                at_s=self.later(), learners=self.some(), reason=f"why {self.now_s}"
            )
            return left, []
        if what == 2:
            return self.joined(self.some()), []
        if what == 3:
            return self.time(), [self.dispatch(cycle)]
        if what == 4:
            return self.time(), [self.withdraw(cycle)]
        return self.updates(int(self.rng.integers(1, cycle + 1))), []

    def some(self) -> Any:
        return self.rng.permutation(LEARNERS)[: self.rng.integers(1, LEARNERS + 1)]

    def later(self) -> float:
        self.now_s += float(self.rng.random() * 3)
        return self.now_s

    def time(self) -> events.TimeReached:
        return events.TimeReached(at_s=self.later())

    def submitted(self) -> events.TaskSubmitted:
        settings = make_task(mode="federated" if self.federated else "parallelized")
        samples = self.rng.integers(1, 20, 0 if self.federated else SHARDS)
        names = tuple(f"device-{k}" for k in range(LEARNERS))
        return events.TaskSubmitted(
            at_s=0.0,
            run="r1",
            task=settings,
            learners=3,
            samples=samples,
            names=names,
            rates=RATES,
        )

    def joined(self, who: Any) -> events.LearnersJoined:
        sizes = [self.rng.integers(1, 20, SHARDS + learner) for learner in who.tolist()]
        return events.LearnersJoined(
            at_s=self.later(),
            learners=who,
            names=tuple(f"device-{k}" for k in who.tolist()),
            discloses=("costs",) * who.size,
            local_data=RaggedArray.of(sizes) if self.federated else NO_ROWS,
        )

    def dispatch(self, cycle: int) -> commands.Dispatch:
        who = self.some()
        dealt = [self.rng.permutation(SHARDS)[: self.rng.integers(0, SHARDS)] for _ in who]
        return commands.Dispatch(
            reason="chance",
            learners=who,
            cycle=cycle,
            attempts=self.rng.integers(1, 4, who.size),
            shards=RaggedArray.of(dealt),
            passes=self.rng.integers(1, 4, who.size),
            seconds_left=DEADLINE_S,
            tail_s=1.0,
            predicted_s=np.where(self.rng.random(who.size) < 0.5, nan, 3.0),
        )

    def withdraw(self, cycle: int) -> commands.Withdraw:
        who = self.some()
        attempts = self.rng.integers(1, 4, who.size)
        return commands.Withdraw(reason="over", learners=who, cycle=cycle, attempts=attempts)

    def aggregate(self, cycle: int) -> commands.Aggregate:
        taken = [k for k, each in self.naive.work.items() if k[0] == cycle and each.counted_visits]
        return commands.Aggregate(
            reason="all are in",
            cycle=cycle,
            learners=np.array([key[1] for key in taken], np.int64),
            attempts=np.array([key[2] for key in taken], np.int64),
            weights=self.rng.random(len(taken)),
        )

    def updates(self, cycle: int) -> events.UpdatesReceived:
        who, began_s = self.some(), self.now_s
        came_s = began_s + np.sort(self.rng.random(who.size))
        self.now_s = float(came_s[-1])
        return events.UpdatesReceived(
            at_s=self.now_s,
            learners=who,
            cycle=cycle,
            attempts=self.rng.integers(1, 4, who.size),
            visits=self.rng.integers(0, 60, who.size),
            shipped=self.rng.integers(0, 5, who.size),
            loss=self.rng.random(who.size),
            phases=self.rng.random((who.size, len(events.PHASES))),
            arrivals_s=came_s,
            refused="not finite" if self.rng.random() < 0.2 else "",
        )


def one_by_one(trace: list[Step]) -> list[Step]:
    """The same, with an event for each learner instead of one for many."""
    alone = []
    for step in trace:
        parts = [Step(part, []) for part in split(step.event)]
        alone += [*parts[:-1], Step(parts[-1].event, step.commands)]
    return alone


def split(event: Any) -> list[Any]:
    if isinstance(event, events.TaskSubmitted) or not hasattr(event, "learners"):
        return [event]
    return [_alone(event, place) for place in range(event.learners.size)]


def _alone(event: Any, place: int) -> Any:
    said: dict[str, Any] = {}
    for name in set(event.__struct_fields__) - {"at_s", "cycle", "reason", "refused", "arrivals_s"}:
        values = getattr(event, name)
        rows = isinstance(values, RaggedArray)
        said[name] = values.take(np.array([place])[: len(values)]) if rows else values[place:][:1]
    if isinstance(event, events.UpdatesReceived):
        said |= {"at_s": float(event.arrivals_s[place]), "arrivals_s": events.NO_FLOATS}
    return msgspec.structs.replace(event, **said)

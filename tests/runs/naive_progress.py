"""A reference for `RunProgress` with one record per assignment, and random traces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from typing import Any

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.fleet.array_types import NO_FLOATS
from melisma.runs.assignments import Assignment, Status
from melisma.runs.trace import Step
from melisma.testing import make_task

LEARNERS, SHARDS = 7, 12
DEADLINE_S = 10.0
RATES = np.arange(3.0 * LEARNERS).reshape(3, LEARNERS)
Key = tuple[int, int, int]  # cycle, learner and first attempt
LOST = ("left", "dropped", "refused")


class NaiveProgress:
    """The assignments of a run, one record each."""

    def __init__(self) -> None:
        self.work: dict[Key, Assignment] = {}
        self.began_s: dict[int, float] = {}
        self.local_shard_samples: dict[int, Any] = {}
        self.samples: Any = None
        self.aggregated_keys: list[Key] = []
        self.shards: dict[Key, list[tuple[int, int, bool]]] = {}  # attempt, shard, by extension
        self.given: list[tuple[Key, tuple[int, int, bool]]] = []  # in the order of giving
        self.handed_on: dict[int, int] = {}
        self.rates: dict[int, float] = {}
        self.fixed_s: dict[int, float] = {}
        self.now_s = 0.0

    def apply(self, step: Step) -> None:
        self.now_s = max(self.now_s, step.event.at_s)
        for item in (step.event, *step.commands):
            if type(item) in HANDLERS:
                HANDLERS[type(item)](self, item)

    def on_task_submitted(self, event: events.TaskSubmitted) -> None:
        self.samples = event.shard_samples

    def on_learners_joined(self, event: events.LearnersJoined) -> None:
        if len(event.local_shard_samples):
            self.local_shard_samples |= dict(
                zip(event.learners.tolist(), event.local_shard_samples, strict=True)
            )

    def on_learners_left(self, event: events.LearnersLeft) -> None:
        for key in self.work:
            if key[1] in event.learners:
                self.end(key, "left", event.reason, self.now_s)

    def on_progress_reported(self, event: events.ProgressReported) -> None:
        for learner, visits in zip(event.learners.tolist(), event.visits.tolist(), strict=True):
            key = self.latest(event.cycle, learner)
            if key and self.work[key].status == "training":
                self.work[key] = replace(self.work[key], visits=visits)

    def latest(self, cycle: int, learner: int) -> Key | None:
        """Return the key of the learner's last assignment in a cycle."""
        return max((key for key in self.work if key[:2] == (cycle, learner)), default=None)

    def find(self, cycle: int, learner: int, attempt: int) -> Key | None:
        """Return the key of the assignment that covers an attempt."""
        for key, row in self.work.items():
            if key[:2] == (cycle, learner) and key[2] <= attempt <= row.attempt:
                return key
        return None

    def on_shards_released(self, event: events.ShardsReleased) -> None:
        for learner, shards in zip(event.learners.tolist(), event.shards, strict=True):
            key = self.latest(event.cycle, learner)
            if key and self.work[key].status == "training":
                self.remove(key, [pair for pair in self.shards[key] if pair[1] in shards])

    def remove(self, key: Key, pairs: list[tuple[int, int, bool]]) -> None:
        """Remove shards from the plan of an assignment."""
        row = self.work[key]
        self.shards[key] = [pair for pair in self.shards[key] if pair not in pairs]
        samples = sum(self.size(key[1], shard) for _, shard, _ in pairs)
        self.work[key] = replace(row, shards=row.shards - len(pairs), samples=row.samples - samples)

    def size(self, learner: int, shard: int) -> int:
        return int(self.local_shard_samples.get(learner, self.samples)[shard])

    def on_updates_received(self, event: events.UpdatesReceived) -> None:
        found = [self.find(event.cycle, *pair) for pair in pairs_of(event)]
        for index, key in enumerate(found):
            if key is None or self.work[key].arrived_s >= 0:
                continue
            attempt, learner = int(event.attempts[index]), key[1]
            self.remove(key, [pair for pair in self.shards[key] if pair[0] > attempt])
            visits, phases = int(event.visits[index]), event.phases[index].tolist()
            if visits > 0:
                self.rates[learner] = visits / phases[4]
            self.fixed_s[learner] = phases[1] + phases[5]
            arrived_s = float(event.arrivals_s[index]) if event.arrivals_s.size else self.now_s
            self.work[key] = replace(
                self.work[key],
                attempt=attempt,
                extensions=attempt - key[2],
                visits=visits,
                allowed_visits=self.allowed(key[0], learner, self.work[key].dispatched_s),
                shipped=int(event.shipped[index]),
                loss=float(event.loss[index]),
                phases=tuple(phases),
                arrived_s=float(event.arrival_times_s[index]),
            )
            self.end(key, "refused" if event.refused else "counted", event.refused, arrived_s)

    def allowed(self, cycle: int, learner: int, dispatched_s: float) -> float:
        """Return the visits that the learner's rate allows by the deadline."""
        left_s = self.began_s[cycle] + DEADLINE_S - dispatched_s
        return self.rates.get(learner, nan) * max(0.0, left_s - self.fixed_s.get(learner, 0.0))

    def on_aggregated(self, event: events.Aggregated) -> None:
        for key, loss in zip(self.aggregated_keys, event.loss.tolist(), strict=False):
            self.work[key] = replace(self.work[key], loss=loss)

    def on_dispatch(self, command: commands.Dispatch) -> None:
        self.began_s.setdefault(command.cycle, self.now_s)
        replaced = [self.find(command.cycle, *pair) for pair in pairs_of(command)]
        for old in replaced:
            if old:
                del self.work[old], self.shards[old]
                self.given = [each for each in self.given if each[0] != old]
        for index, (pair, shards) in enumerate(zip(pairs_of(command), command.shards, strict=True)):
            key = (command.cycle, *pair)
            self.work[key] = Assignment(
                cycle=key[0],
                learner=key[1],
                name=f"device-{key[1]}",
                attempt=key[2],
                shards=shards.size,
                passes=int(command.passes[index]),
                samples=sum(self.size(key[1], shard) for shard in shards.tolist()),
                dispatched_s=self.now_s,
                predicted_s=float(command.predicted_s[index]),
                allowed_visits=self.allowed(key[0], key[1], self.now_s),
            )
            self.shards[key] = []
            self.give(key, key[2], shards.tolist(), by_extension=False)

    def on_extend(self, command: commands.Extend) -> None:
        self.handed_on[command.cycle] = (
            self.handed_on.get(command.cycle, 0) + command.handed_on.size
        )
        for shard in command.handed_on.tolist():
            self.hand_on(command.cycle, shard)
        for (learner, attempt), shards in zip(pairs_of(command), command.shards, strict=True):
            key = self.latest(command.cycle, learner)
            if not key or self.work[key].status != "training" or attempt <= self.work[key].attempt:
                continue
            row, added = self.work[key], shards.tolist()
            self.give(key, attempt, added, by_extension=True)
            self.work[key] = replace(
                row,
                attempt=attempt,
                extensions=attempt - key[2],
                shards=row.shards + len(added),
                samples=row.samples + sum(self.size(learner, shard) for shard in added),
            )

    def give(self, key: Key, attempt: int, shards: list[int], *, by_extension: bool) -> None:
        """Remember the shards of an assignment."""
        pairs = [(attempt, shard, by_extension) for shard in shards]
        self.shards[key] += pairs
        self.given += [(key, pair) for pair in pairs]

    def hand_on(self, cycle: int, shard: int) -> None:
        """Remove a shard from the first plan of lost work that has it."""
        for key, pair in self.given:
            lost = key in self.work and self.work[key].status in LOST
            if key[0] == cycle and pair[1] == shard and lost and pair in self.shards[key]:
                self.remove(key, [pair])
                return

    def on_withdraw(self, command: commands.Withdraw) -> None:
        late = self.now_s >= self.began_s.get(command.cycle, nan) + DEADLINE_S
        for pair in pairs_of(command):
            key = self.find(command.cycle, *pair)
            if key:
                self.end(key, "late" if late else "dropped", command.reason, self.now_s)

    def on_aggregate(self, command: commands.Aggregate) -> None:
        found = [self.find(command.cycle, *pair) for pair in pairs_of(command)]
        self.aggregated_keys = [key for key in found if key]
        for key, weight in zip(self.aggregated_keys, command.weights.tolist(), strict=True):
            self.work[key] = replace(self.work[key], weight=weight)
        for key in self.work:
            if key[0] == command.cycle:
                self.end(key, "late", command.reason, self.now_s)
                self.shards[key] = [pair for pair in self.shards[key] if pair[2]]
        late = command.late
        for index, pair in enumerate(pairs_of(late)):
            late_key = self.find(int(late.cycles[index]), *pair)
            assert late_key is not None
            self.work[late_key] = replace(
                self.work[late_key],
                status="carried",
                weight=float(late.weights[index]),
                reason=f"joined the average of cycle {command.cycle}",
            )

    def end(self, key: Key, status: Status, reason: str, at_s: float) -> None:
        if key in self.work and self.work[key].status == "training":
            ended = replace(self.work[key], status=status, reason=reason, ended_s=at_s)
            self.work[key] = ended


HANDLERS: dict[type, Callable[[NaiveProgress, Any], None]] = {
    events.TaskSubmitted: NaiveProgress.on_task_submitted,
    events.LearnersJoined: NaiveProgress.on_learners_joined,
    events.LearnersLeft: NaiveProgress.on_learners_left,
    events.ProgressReported: NaiveProgress.on_progress_reported,
    events.ShardsReleased: NaiveProgress.on_shards_released,
    events.UpdatesReceived: NaiveProgress.on_updates_received,
    events.Aggregated: NaiveProgress.on_aggregated,
    commands.Dispatch: NaiveProgress.on_dispatch,
    commands.Extend: NaiveProgress.on_extend,
    commands.Withdraw: NaiveProgress.on_withdraw,
    commands.Aggregate: NaiveProgress.on_aggregate,
}


def pairs_of(message: Any) -> list[tuple[int, int]]:
    """Return the learner and the attempt of each assignment in a message."""
    return list(zip(message.learners.tolist(), message.attempts.tolist(), strict=True))


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
        kind = self.rng.integers(0, 11)
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
        if kind in (5, 6):
            return self.time(), [self.extend(cycle)]
        if kind == 7:
            return self.released(cycle), []
        return self.updates(int(self.rng.integers(1, cycle + 1))), []

    def random_learners(self) -> Any:
        return self.rng.permutation(LEARNERS)[: self.rng.integers(1, LEARNERS + 1)]

    def advance(self) -> float:
        self.now_s += float(self.rng.random() * 3)
        return self.now_s

    def time(self) -> events.TimeReached:
        return events.TimeReached(at_s=self.advance())

    def submitted(self) -> events.TaskSubmitted:
        settings = make_task(mode="federated" if self.federated else "parallelized", extension=True)
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
            local_shard_samples=RaggedArray.from_rows(sizes) if self.federated else NO_ROWS,
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

    def extend(self, cycle: int) -> commands.Extend:
        learners = np.sort(self.random_learners())
        dealt = [self.rng.permutation(SHARDS)[: self.rng.integers(1, 4)] for _ in learners]
        shards = RaggedArray.from_rows(dealt)
        return commands.Extend(
            reason="random",
            learners=learners,
            cycle=cycle,
            attempts=self.rng.integers(1, 6, learners.size),
            shards=shards,
            passes=np.ones(learners.size, np.int64),
            handed_on=np.unique(shards.values[: self.rng.integers(0, shards.values.size)]),
        )

    def released(self, cycle: int) -> events.ShardsReleased:
        learners = self.random_learners()
        shards = [self.rng.permutation(SHARDS)[: self.rng.integers(0, 5)] for _ in learners]
        at_s, released = self.advance(), RaggedArray.from_rows(shards)
        return events.ShardsReleased(at_s=at_s, learners=learners, cycle=cycle, shards=released)

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
        late = [
            (key, row)
            for key, row in self.naive.work.items()
            if key[0] < cycle and row.status == "late" and row.visits and row.arrived_s >= 0
        ]
        late = late[: self.rng.integers(0, len(late) + 1)]
        return commands.Aggregate(
            reason="all are in",
            cycle=cycle,
            learners=np.array([key[1] for key in counted], np.int64),
            attempts=np.array([self.naive.work[key].attempt for key in counted], np.int64),
            weights=self.rng.random(len(counted)),
            visits=np.ones(len(counted), np.int64),
            late=commands.LateUpdates(
                learners=np.array([key[1] for key, _ in late], np.int64),
                cycles=np.array([key[0] for key, _ in late], np.int64),
                attempts=np.array([row.attempt for _, row in late], np.int64),
                weights=self.rng.random(len(late)),
                visits=np.ones(len(late), np.int64),
            ),
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
            visits=np.maximum(self.rng.integers(-10, 60, learners.size), 0),
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
        values |= {"at_s": float(event.arrivals_s[index]), "arrivals_s": NO_FLOATS}
    return msgspec.structs.replace(event, **values)

"""A whole run of fake devices with known costs on a virtual clock."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from melisma.allocation import dab_shards
from melisma.cycle import commands, events
from melisma.cycle.learner import request_delay_s, shards_to_request
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.disclosure import Disclosure
from melisma.fleet.array_types import Floats
from melisma.fleet.task import PAPER_RULES, Task, TaskSizes
from melisma.runs.trace import Step

MAX_STEPS = 2000
AnyStruct = TypeVar("AnyStruct")


def make_task(**settings: Any) -> Task:
    """Return a small task: 20 shards of 10 samples, 3 cycles with a deadline of 10 s.

    It follows `PAPER_RULES`, unless settings say otherwise.
    """
    defaults: dict[str, Any] = {
        **PAPER_RULES,
        "name": "digits",
        "model": "twonn",
        "data": "mnist",
        "deadline_s": 10.0,
        "passes": 2,
        "cycles": 3,
        "shard_samples": 10,
        "sizes": TaskSizes(samples=200),
    }
    return Task(**(defaults | settings))


@dataclass
class FakeDevice:
    """A device that takes exactly the seconds of the cost model.

    `local_shards` are the shards on the device in federated learning.
    """

    train_s: float
    ship_s: float = 0.1
    fixed_s: float = 0.2
    discloses: Disclosure = "costs"
    local_shards: int = 0

    def costs(self) -> Floats:
        """Return costs by parts, measured ten times with hardly any spread."""
        means = (self.train_s, self.ship_s, self.fixed_s)
        return np.array([[mean, 1e-6 * mean, 10.0] for mean in means])


@dataclass
class VirtualRun:
    """Runs a task on fake devices; learner k is called `device-k`.

    If the task allows extension, a device trains until the deadline in any case, fetches the shards
    of extensions meanwhile, and requests shards once, before its planned work is done. It releases
    none. Shards to prefetch are there at once.

    `intercept` is given each event before it happens and returns the events that happen instead:
    none if it is lost, two if it is duplicated, others if something goes wrong.
    """

    task: Task
    devices: list[FakeDevice]
    intercept: Callable[[events.AnyEvent], list[events.AnyEvent]] = lambda event: [event]
    accuracy: float = 0.5  # before the first evaluation; each adds 0.1

    def __post_init__(self) -> None:
        """Start with an empty trace."""
        self.machine, self.trace = CycleMachine(), list[Step]()
        self._queue: list[tuple[float, int, events.AnyEvent]] = []
        self._scheduled = 0
        self._held: dict[int, set[int]] = {}
        self._updates: dict[tuple[int, int], events.UpdatesReceived] = {}  # by cycle and learner

    def run(self) -> list[Step]:
        """Run until no event is left, at most `MAX_STEPS`, and return the trace."""
        self._submit()
        while self._queue and len(self.trace) < MAX_STEPS:
            _, _, event = heapq.heappop(self._queue)
            result = self.machine.handle(event)
            self.trace.append(Step(event, result))
            for command in result:
                HANDLERS.get(type(command), _ignore)(self, event.at_s, command)
        return self.trace

    def schedule(self, event: events.AnyEvent) -> None:
        """Let an event happen at its instant, unless `intercept` replaces it."""
        for each in self.intercept(event):
            self._scheduled += 1
            heapq.heappush(self._queue, (each.at_s, self._scheduled, each))

    def _submit(self) -> None:
        shards = self.task.shards if self.task.mode == "parallelized" else 0
        samples = np.full(shards, self.task.shard_samples)
        count = len(self.devices)
        self.schedule(
            events.TaskSubmitted(
                at_s=0.0, run="r1", task=self.task, learner_count=count, shard_samples=samples
            )
        )
        for number, device in enumerate(self.devices):
            local = np.full(device.local_shards, self.task.shard_samples)
            self.schedule(
                events.LearnersJoined(
                    at_s=0.1,
                    learners=np.array([number]),
                    names=(f"device-{number}",),
                    discloses=(device.discloses,),
                    local_shard_samples=RaggedArray.from_rows([local]) if local.size else NO_ROWS,
                )
            )

    def _benchmark(self, now_s: float, command: commands.Benchmark) -> None:
        for learner in command.learners.tolist():
            device = self.devices[learner]
            self.schedule(
                events.CostsReported(
                    at_s=now_s + device.train_s,
                    learners=np.array([learner]),
                    costs=device.costs()[:, :, None],
                )
            )

    def _ask_bound(self, now_s: float, command: commands.AskBound) -> None:
        passes = self.task.passes or 1
        for learner, held in zip(command.learners.tolist(), command.held.tolist(), strict=True):
            device = self.devices[learner]
            costs = device.train_s, device.ship_s, device.fixed_s
            shards = dab_shards(command.deadline_s, *costs, passes, held)
            self.schedule(
                events.BoundsReported(
                    at_s=now_s + 0.01,
                    learners=np.array([learner]),
                    cycle=command.cycle,
                    deadline_s=command.deadline_s,
                    shards=np.array([shards]),
                )
            )

    def _dispatch(self, now_s: float, command: commands.Dispatch) -> None:
        for row, learner in enumerate(command.learners.tolist()):
            device, shards = self.devices[learner], command.shards[row].tolist()
            held = self._held.setdefault(learner, set())
            new = 0 if device.local_shards else len(set(shards) - held)
            held.update(shards)
            waits = min(new, int(new == len(shards))) if self.task.overlap else new
            ship_s = device.ship_s * waits
            shard_s = device.train_s * int(command.passes[row])
            planned_s = shard_s * len(shards)
            left_s = command.seconds_left - device.fixed_s - ship_s
            if self.task.extension:
                ready_s = now_s + device.fixed_s / 2 + ship_s
                fetch_s = device.ship_s * (new - waits)
                seconds = left_s, planned_s, fetch_s, shard_s
                self._request(learner, command.cycle, ready_s, seconds)
                planned_s = left_s
            train_s = max(0.0, min(planned_s, left_s))
            visits = int(train_s / device.train_s * self.task.shard_samples + 1e-9)
            half_s = device.fixed_s / 2
            update = events.UpdatesReceived(
                at_s=now_s + device.fixed_s + ship_s + train_s,
                learners=np.array([learner]),
                cycle=command.cycle,
                attempts=command.attempts[row : row + 1].copy(),
                visits=np.array([visits]),
                shipped=np.array([new]),
                loss=np.array([0.7]),
                phases=np.array([[0.0, half_s, ship_s, 0.0, train_s, half_s]]),
            )
            self._updates[command.cycle, learner] = update
            self.schedule(update)

    def _request(
        self,
        learner: int,
        cycle: int,
        ready_s: float,
        seconds: tuple[float, float, float, float],
    ) -> None:
        """Request shards for the time after the planned work, in time to fetch them.

        `seconds` are those left, of the planned work, of the shards to fetch, and of a shard.
        """
        (left_s, work_s, fetch_s, shard_s), ship_s = seconds, self.devices[learner].ship_s
        ask_s = float(request_delay_s(work_s, fetch_s, ship_s, self.task.deadline_s))
        work_s, fetch_s = max(work_s - ask_s, 0.0), max(fetch_s - ask_s, 0.0)
        wanted = shards_to_request(left_s - ask_s, work_s, fetch_s, shard_s, ship_s)
        if wanted > 0:
            self.schedule(
                events.ShardsRequested(
                    at_s=ready_s + ask_s,
                    learners=np.array([learner]),
                    cycle=cycle,
                    shards=np.array([int(wanted)]),
                )
            )

    def _extend(self, now_s: float, command: commands.Extend) -> None:
        """Let devices that still train go on with further shards."""
        for row, learner in enumerate(command.learners.tolist()):
            update, device = self._updates[command.cycle, learner], self.devices[learner]
            shards, held = set(command.shards[row].tolist()), self._held[learner]
            if now_s < update.at_s - device.fixed_s / 2:
                update.attempts[:] = command.attempts[row]
                update.shipped[:] += 0 if device.local_shards else len(shards - held)
                held.update(shards)

    def _prefetch(self, _: float, command: commands.Prefetch) -> None:
        for learner, shards in zip(command.learners.tolist(), command.shards, strict=True):
            self._held.setdefault(learner, set()).update(shards.tolist())

    def _wake(self, _: float, command: commands.Wake) -> None:
        self.schedule(events.TimeReached(at_s=command.at_s))

    def _aggregate(self, now_s: float, command: commands.Aggregate) -> None:
        self.schedule(events.Aggregated(at_s=now_s + 0.01, cycle=command.cycle, seconds=0.01))

    def _evaluate(self, now_s: float, command: commands.Evaluate) -> None:
        self.accuracy += 0.1
        self.schedule(
            events.Evaluated(
                at_s=now_s + 0.02,
                cycle=command.cycle,
                loss=1 / self.accuracy,
                accuracy=self.accuracy,
                seconds=0.02,
            )
        )


def _ignore(run: VirtualRun, now_s: float, command: commands.Command) -> None:
    """Withdrawn work goes on here: its update arrives and must not count. None is sent again."""


HANDLERS: dict[type[commands.Command], Callable[[VirtualRun, float, Any], None]] = {
    commands.Benchmark: VirtualRun._benchmark,
    commands.AskBound: VirtualRun._ask_bound,
    commands.Dispatch: VirtualRun._dispatch,
    commands.Extend: VirtualRun._extend,
    commands.Prefetch: VirtualRun._prefetch,
    commands.Wake: VirtualRun._wake,
    commands.Aggregate: VirtualRun._aggregate,
    commands.Evaluate: VirtualRun._evaluate,
}


def commands_in(trace: Iterable[Step], kind: type[AnyStruct]) -> list[AnyStruct]:
    """Return all commands of a kind, in order."""
    return [command for step in trace for command in step.commands if isinstance(command, kind)]


def events_in(trace: Iterable[Step], kind: type[AnyStruct]) -> list[AnyStruct]:
    """Return all events of a kind, in order."""
    return [step.event for step in trace if isinstance(step.event, kind)]

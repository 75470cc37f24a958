"""A run acted out in virtual time: learners with known costs do what the machine says."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from melisma.allocation import dab_shards
from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.fleet.fleet_file import Disclosure
from melisma.fleet.task import Sizes, Task
from melisma.runs.trace import Step

SHARD = 10


def task(**settings: Any) -> Task:
    defaults: dict[str, Any] = {
        "name": "digits",
        "model": "twonn",
        "data": "mnist",
        "deadline_s": 10.0,
        "passes": 2,
        "cycles": 3,
        "shard_samples": SHARD,
        "sizes": Sizes(samples=200),
    }
    return Task(**(defaults | settings))


@dataclass
class Device:
    """What things really take."""

    train_s: float
    ship_s: float = 0.1
    fixed_s: float = 0.2
    discloses: Disclosure = "costs"
    own: int = 0

    def costs(self) -> events.Floats:
        """As reported: measured ten times, nearly without a spread."""
        means = (self.train_s, self.ship_s, self.fixed_s)
        return np.array([[mean, 1e-6 * mean, 10.0] for mean in means])


@dataclass
class Play:
    """The machine, its devices, and what is to come."""

    task: Task
    devices: list[Device]
    change: Callable[[events.Event], list[events.Event]] = lambda event: [event]
    coming: list[tuple[float, int, events.Event]] = field(default_factory=list)
    trace: list[Step] = field(default_factory=list)
    held: dict[int, set[int]] = field(default_factory=dict)
    accuracy: float = 0.5
    machine: CycleMachine = field(default_factory=CycleMachine)
    said: int = 0

    def run(self) -> list[Step]:
        central = self.task.mode == "parallelized"
        samples = np.full(self.task.shards if central else 0, SHARD)
        count = len(self.devices)
        self.say(
            events.TaskSubmitted(
                at_s=0.0, run="r1", task=self.task, learners=count, samples=samples
            )
        )
        for number, device in enumerate(self.devices):
            local = RaggedArray.of([np.full(device.own, SHARD)]) if device.own else NO_ROWS
            self.say(
                events.LearnersJoined(
                    at_s=0.1,
                    learners=np.array([number]),
                    names=(f"device-{number}",),
                    discloses=(device.discloses,),
                    local_data=local,
                )
            )
        while self.coming and len(self.trace) < 2000:
            _, _, event = heapq.heappop(self.coming)
            said = self.machine.handle(event)
            self.trace.append(Step(event, said))  # type: ignore[arg-type]
            for command in said:
                self.act(event.at_s, command)
        return self.trace

    def say(self, event: events.Event) -> None:
        for each in self.change(event):
            self.said += 1
            heapq.heappush(self.coming, (each.at_s, self.said, each))

    def act(self, now_s: float, command: commands.Command) -> None:
        match command:
            case commands.Benchmark(learners=learners):
                for one in learners:
                    costs = self.devices[one].costs()[:, :, None]
                    self.say(
                        events.EstimatesReported(
                            at_s=now_s + self.devices[one].train_s,
                            learners=np.array([one]),
                            costs=costs,
                        )
                    )
            case commands.AskBound():
                self.bound(now_s, command)
            case commands.Dispatch():
                self.dispatch(now_s, command)
            case commands.Wake(at_s=at_s):
                self.say(events.TimeReached(at_s=at_s))
            case commands.Aggregate(cycle=cycle):
                self.say(events.Aggregated(at_s=now_s + 0.01, cycle=cycle, seconds=0.01))
            case commands.Evaluate(cycle=cycle):
                self.accuracy += 0.1
                self.say(
                    events.Evaluated(
                        at_s=now_s + 0.02,
                        cycle=cycle,
                        loss=1 / self.accuracy,
                        accuracy=self.accuracy,
                        seconds=0.02,
                    )
                )

    def bound(self, now_s: float, command: commands.AskBound) -> None:
        for one, held in zip(command.learners.tolist(), command.held.tolist(), strict=True):
            device = self.devices[one]
            passes = self.task.passes or 1
            asked = dab_shards(
                command.deadline_s, device.train_s, device.ship_s, device.fixed_s, passes, held
            )
            self.say(
                events.BoundsReported(
                    at_s=now_s + 0.01,
                    learners=np.array([one]),
                    cycle=command.cycle,
                    deadline_s=command.deadline_s,
                    shards=np.array([asked]),
                )
            )

    def dispatch(self, now_s: float, command: commands.Dispatch) -> None:
        for place, one in enumerate(command.learners.tolist()):
            device, shards = self.devices[one], command.shards[place].tolist()
            held = self.held.setdefault(one, set())
            new = 0 if device.own else len(set(shards) - held)
            held.update(shards)
            ship_s = device.ship_s * new
            wanted_s = device.train_s * len(shards) * command.passes[place]
            spare_s = command.seconds_left - device.fixed_s - ship_s
            train_s = max(0.0, min(wanted_s, spare_s))
            visits = int(train_s / device.train_s * SHARD + 1e-9)
            half_s = device.fixed_s / 2
            phases = np.array([[0.0, half_s, ship_s, 0.0, train_s, half_s]])
            self.say(
                events.UpdatesReceived(
                    at_s=now_s + device.fixed_s + ship_s + train_s,
                    learners=np.array([one]),
                    cycle=command.cycle,
                    attempts=command.attempts[place : place + 1],
                    visits=np.array([visits]),
                    shipped=np.array([new]),
                    loss=np.array([0.7]),
                    phases=phases,
                )
            )


def emitted(trace: list[Step], kind: type) -> list[Any]:
    """All commands of a kind, in order."""
    return [command for each in trace for command in each.commands if isinstance(command, kind)]

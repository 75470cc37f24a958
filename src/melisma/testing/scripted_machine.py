"""A cycle machine fed with events written by hand, with learners by name."""

from collections.abc import Mapping, Sequence

import numpy as np

from melisma.cycle import events
from melisma.cycle.commands import AnyCommand
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import RaggedArray
from melisma.disclosure import Disclosure
from melisma.fleet.array_types import Ints
from melisma.fleet.task import Task
from melisma.runs.trace import Step


class ScriptedMachine:
    """Feeds a `CycleMachine`; each method sends one event and returns the resulting commands.

    `names` are all learners that the run waits for, `absence_s` is how long it waits if all have
    left; a `shared` task shares them with other tasks. `trace` keeps every step.
    """

    def __init__(
        self, task: Task, names: Sequence[str], absence_s: float = 0.0, *, shared: bool = False
    ) -> None:
        self.task, self.names = task, tuple(names)
        self.machine, self.trace = CycleMachine(), list[Step]()
        shards = task.shards if task.mode == "parallelized" else 0
        samples = np.full(shards, task.shard_samples)
        self.send(
            events.TaskSubmitted(
                at_s=0.0,
                run="test",
                task=task,
                learner_count=len(names),
                shard_samples=samples,
                absence_s=absence_s,
                shared=shared,
            )
        )

    def send(self, event: events.AnyEvent) -> list[AnyCommand]:
        """Send any event."""
        commands = self.machine.handle(event)
        self.trace.append(Step(event, commands))
        return commands

    def join(self, at_s: float, *names: str, discloses: Disclosure = "costs") -> list[AnyCommand]:
        """Let learners join; without names, all of them."""
        names = names or self.names
        return self.send(
            events.LearnersJoined(
                at_s=at_s,
                learners=self._numbers(names),
                names=names,
                discloses=(discloses,) * len(names),
            )
        )

    def leave(self, at_s: float, *names: str, reason: str = "it left") -> list[AnyCommand]:
        """Let learners leave."""
        return self.send(
            events.LearnersLeft(at_s=at_s, learners=self._numbers(names), reason=reason)
        )

    def report_costs(
        self, at_s: float, name: str, train_s: float, ship_s: float = 0.0, fixed_s: float = 0.0
    ) -> list[AnyCommand]:
        """Report the costs of a learner, measured ten times with hardly any spread."""
        means = (train_s, ship_s, fixed_s)
        costs = np.array([[[mean], [1e-6 * mean], [10.0]] for mean in means])
        learners = self._numbers([name])
        return self.send(events.CostsReported(at_s=at_s, learners=learners, costs=costs))

    def report_bounds(self, at_s: float, shards: Mapping[str, int]) -> list[AnyCommand]:
        """Report how many shards each learner can train by the deadline of the task."""
        return self.send(
            events.BoundsReported(
                at_s=at_s,
                learners=self._numbers(list(shards)),
                cycle=self.machine.state.cycle,
                deadline_s=self.task.deadline_s,
                shards=np.array(list(shards.values())),
            )
        )

    def request(self, at_s: float, shards: Mapping[str, int]) -> list[AnyCommand]:
        """Request further shards for learners at work."""
        return self.send(
            events.ShardsRequested(
                at_s=at_s,
                learners=self._numbers(list(shards)),
                cycle=self.machine.state.cycle,
                shards=np.array(list(shards.values())),
            )
        )

    def release(self, at_s: float, shards: Mapping[str, Sequence[int]]) -> list[AnyCommand]:
        """Release shards that learners will not get to."""
        return self.send(
            events.ShardsReleased(
                at_s=at_s,
                learners=self._numbers(list(shards)),
                cycle=self.machine.state.cycle,
                shards=RaggedArray.from_rows([np.array(row, np.int64) for row in shards.values()]),
            )
        )

    def update(
        self,
        at_s: float,
        visits: Mapping[str, int],
        refused: str = "",
        *,
        cycle: int | None = None,
        attempt: int | None = None,
    ) -> list[AnyCommand]:
        """Receive the updates of learners, each after `visits` visits.

        They belong to the current cycle and the latest extensions, unless others are given.
        """
        learners, count = self._numbers(list(visits)), len(visits)
        attempts = self.machine.state.learners.attempts[learners]
        return self.send(
            events.UpdatesReceived(
                at_s=at_s,
                learners=learners,
                cycle=self.machine.state.cycle if cycle is None else cycle,
                attempts=attempts if attempt is None else np.full(count, attempt),
                visits=np.array(list(visits.values())),
                shipped=np.zeros(count, np.int64),
                loss=np.full(count, 0.5),
                phases=np.zeros((count, len(events.PHASES))),
                refused=refused,
            )
        )

    def reach(self, at_s: float) -> list[AnyCommand]:
        """Reach an instant, as after a `Wake`."""
        return self.send(events.TimeReached(at_s=at_s))

    def aggregate(self, at_s: float) -> list[AnyCommand]:
        """Report that the updates of the current cycle are aggregated."""
        cycle = self.machine.state.cycle
        return self.send(events.Aggregated(at_s=at_s, cycle=cycle, seconds=0.0))

    def evaluate(self, at_s: float, accuracy: float = 0.5, loss: float = 1.0) -> list[AnyCommand]:
        """Report the quality of the model after the current cycle."""
        cycle = self.machine.state.cycle
        return self.send(
            events.Evaluated(at_s=at_s, cycle=cycle, loss=loss, accuracy=accuracy, seconds=0.0)
        )

    def _numbers(self, names: Sequence[str]) -> Ints:
        return np.array([self.names.index(name) for name in names], np.int64)

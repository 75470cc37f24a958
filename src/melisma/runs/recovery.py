"""Recovery: the state of a run from its journal, by replay.

The machine is deterministic, so replaying the events of a run restores its state. A snapshot at the
end of each cycle saves the replay of those before. The commands of the replay are compared with
those that were journaled: a version of Melisma that decides differently cannot go on with the run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.snapshot import decode_state, encode_state
from melisma.cycle.state import CycleState
from melisma.errors import DataError
from melisma.runs.journal import Journal
from melisma.runs.model_versions import ModelVersions
from melisma.runs.trace import Step, encode_step

SNAPSHOT = "snapshot"
"""The record with the latest snapshot."""
Job = commands.Aggregate | commands.Evaluate


class Snapshot(msgspec.Struct, frozen=True):
    """The state after step `step`, which ended a cycle."""

    step: int
    state: bytes
    models: ModelVersions

    @classmethod
    def take(cls, step: int, state: CycleState, models: ModelVersions) -> bytes:
        """Return a snapshot as the content of a record."""
        return msgspec.msgpack.encode(cls(step, encode_state(state), models))


@dataclass
class RecoveredRun:
    """The machine of a run as its last step left it.

    `job` is the aggregation or evaluation that had begun and not ended, and `finish` the command
    that ended the run; `averaged` is the latest aggregation. `at_s` is the latest time of a step
    on the clock of the run.
    """

    machine: CycleMachine = field(default_factory=CycleMachine)
    models: ModelVersions = field(default_factory=ModelVersions)
    job: Job | None = None
    finish: commands.Finish | None = None
    averaged: commands.Aggregate | None = None
    at_s: float = 0.0

    @classmethod
    def from_journal(cls, journal: Journal) -> "RecoveredRun":
        """Replay a journal from its snapshot; raise `DataError` if it cannot be read."""
        content = journal.get(SNAPSHOT)
        if content is None:
            return cls._from_start(journal)
        try:
            snapshot = msgspec.msgpack.decode(content, type=Snapshot)
        except msgspec.MsgspecError as error:
            raise DataError(f"{journal.path}: the snapshot cannot be read: {error}") from None
        run, steps = cls(), journal.steps(after=snapshot.step - 1)
        last = next(steps, None)
        if last is None:
            raise DataError(
                f"{journal.path} is damaged: it has a snapshot of step {snapshot.step}, but only "
                f"{journal.last} steps"
            )
        # The step of the snapshot ended a cycle, so a job that is under way began in it or later.
        run._apply(last)
        run.machine, run.models = CycleMachine(decode_state(snapshot.state)), snapshot.models
        return run.replay(steps)

    @classmethod
    def _from_start(cls, journal: Journal) -> "RecoveredRun":
        steps = journal.steps()
        first = next(steps, None)
        if first is None:
            raise DataError(f"{journal.path} has no steps: the run had not begun; start it again")
        if not isinstance(first.event, events.TaskSubmitted):
            raise DataError(f"{journal.path} is damaged: it does not begin with TaskSubmitted")
        return cls().replay([first]).replay(steps)

    def replay(self, steps: Iterable[Step]) -> "RecoveredRun":
        """Let the machine handle the events of these steps again."""
        for step in steps:
            issued = self.machine.handle(step.event)
            if encode_step(Step(step.event, issued)) != encode_step(step):
                event = step.event
                raise DataError(
                    "this version of Melisma decides differently than the one that wrote the "
                    f"journal, after {type(event).__name__} at {event.at_s:.3f} s of the run; "
                    "resume the run with that version"
                )
            self._apply(step)
        return self

    def _apply(self, step: Step) -> None:
        self.models.apply(step)
        self.at_s = max(self.at_s, float(step.event.at_s))
        if isinstance(step.event, events.Aggregated | events.Evaluated | events.TaskContinued):
            self.job = self.finish = None
        for command in step.commands:
            if isinstance(command, Job):
                self.job = command
            if isinstance(command, commands.Aggregate):
                self.averaged = command
            elif isinstance(command, commands.Finish):
                self.job, self.finish = None, command

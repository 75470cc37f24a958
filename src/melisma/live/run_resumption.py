"""What a resumed run goes on from: the recovered machine, and a new goal if the run had ended."""

from dataclasses import dataclass
from math import inf

import msgspec

from melisma.cycle import events
from melisma.cycle.state import CycleState, Stage
from melisma.errors import SettingError
from melisma.fleet.task import StopSettings
from melisma.runs.recovery import RecoveredRun


@dataclass(frozen=True)
class NewGoal:
    """The goal of a run that is resumed; None keeps the goal with which it was started.

    `cycles` counts from the first cycle of the run, and `total_s` from now. A goal with `if_ended`
    is left out if the run has not ended yet.
    """

    cycles: int | None = None
    total_s: float | None = None
    if_ended: bool = False

    def event(
        self, state: CycleState, learner_count: int, model: int | None
    ) -> events.TaskContinued:
        """Return the event with which an ended run goes on; `SettingError` if it cannot."""
        task = state.task
        if self.total_s is not None and state.schedule is None:
            raise SettingError(
                f"total_s = {self.total_s:g} is for runs with a total time, and this one has "
                f"cycles of {task.deadline_s:g} s: use --cycles N"
            )
        if self.total_s is not None and not 0 < self.total_s < inf:
            raise SettingError(
                f"total_s = {self.total_s:g} is no time to go on for: use --total with more than 0 "
                "seconds"
            )
        if self.total_s is None and state.schedule is not None:
            raise SettingError("the total time of this run is over: use --total SECONDS")
        cycles = self.cycles or task.cycles
        if cycles is not None and cycles <= state.cycle:
            option = "cycles = N in the task" if self.if_ended else "--cycles N"
            raise SettingError(
                f"the run has ended after cycle {state.cycle}: use {option} with N > "
                f"{state.cycle} to continue it"
            )
        return events.TaskContinued(
            at_s=0.0,
            cycles=cycles,
            learner_count=learner_count,
            stop=task.stop,
            ends_s=self.total_s,
            model=model,
        )


@dataclass(frozen=True)
class RunResumption:
    """A run that goes on; if its clock `stands_still`, from the time of its last step.

    With a `goal` it had ended, or begins anew from the version `model` of the parameters.
    """

    run: RecoveredRun
    stands_still: bool = False
    goal: NewGoal | None = None
    model: int | None = None

    @property
    def cycles(self) -> int | None:
        """The last cycle of the run from now on."""
        known = self.run.machine.state.task.cycles
        return known if self.goal is None else self.goal.cycles or known

    def continued(self, learner_count: int) -> events.TaskContinued | None:
        """Return the event with which an ended run goes on, None if it had not ended."""
        if self.goal is None:
            return None
        event = self.goal.event(self.run.machine.state, learner_count, self.model)
        finish = self.run.finish
        if finish is not None and finish.outcome == "reached goal":
            # The goal that was reached would end the run again after one cycle.
            event = msgspec.structs.replace(event, stop=StopSettings())
        return event


def has_ended(run: RecoveredRun) -> bool:
    """Return whether a run had ended when its last step was written."""
    return run.machine.state.stage is Stage.FINISHED

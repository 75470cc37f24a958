"""A goal: a number of samples trained, or an accuracy, within a time."""

from dataclasses import dataclass
from math import ceil, inf, isfinite, isnan, nan

import msgspec

from melisma.errors import SettingError
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import StopSettings, Task
from melisma.runs.report import Report
from melisma.simulation.simulation import ComputeLevel


@dataclass(frozen=True)
class SizeGoal:
    """`visits` samples trained, repeated passes included, or `accuracy`, within `within_s`.

    The time runs from the start of the run, so that measuring the devices is part of it.
    """

    within_s: float
    visits: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` unless there is one goal within its range."""
        if not (self.within_s > 0 and isfinite(self.within_s)):
            raise SettingError(f"within_s is {self.within_s:g}; expected seconds, more than 0")
        if (self.visits is None) == (self.accuracy is None):
            raise SettingError("the goal is visits or accuracy; give one of them")
        if self.visits is not None and not 0 < self.visits < inf:
            raise SettingError(f"visits is {self.visits:g}; expected a number above 0")
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise SettingError(
                f"accuracy is {self.accuracy:g}; expected more than 0, and at most 1"
            )

    @property
    def text(self) -> str:
        """The goal in words."""
        if self.visits is not None:
            return f"{self.visits:,.0f} samples trained within {self.within_s:g} s"
        return f"accuracy {self.accuracy:.1%} within {self.within_s:g} s"

    def check_level(self, level: ComputeLevel) -> None:
        """Raise `SettingError` if the goal needs training and the runs do not train."""
        if self.accuracy is not None and level == "timing":
            raise SettingError(
                f"accuracy is {self.accuracy:g}, but work = timing trains nothing; use work = "
                "batched"
            )

    def fill_time(self, task: Task) -> Task:
        """Return the task with cycles for the whole time; it stops at the accuracy of the goal."""
        stop = StopSettings(accuracy=self.accuracy)
        if task.total_s is not None or task.finish_by is not None:
            return msgspec.structs.replace(RunTime(total_s=self.within_s).apply(task), stop=stop)
        cycles = ceil(self.within_s / task.deadline_s)
        return msgspec.structs.replace(task, cycles=cycles, stop=stop)

    def reached(self, report: Report) -> float:
        """Return the visits within the time, or the seconds to the accuracy, NaN if never."""
        if self.accuracy is not None:
            return report.seconds_to(self.accuracy)
        return float(sum(self._visits_by_cycle(report)))

    def cost(self, report: Report) -> float:
        """Return the cost of the cycles until the goal is reached, or of all within the time."""
        cost = visits = 0.0
        for cycle, counted in zip(report.cycles, self._visits_by_cycle(report), strict=True):
            cost, visits = cost + cycle.cost, visits + counted
            if self.visits is not None and visits >= self.visits:
                break
        return cost

    def holds(self, reached: float) -> bool:
        """Return whether a run that reached this meets the goal."""
        if self.visits is not None:
            return reached >= self.visits
        return reached <= self.within_s

    def worst(self, values: list[float]) -> float:
        """Return the worst of what runs reached."""
        if self.visits is not None:
            return min(values)
        return nan if any(map(isnan, values)) else max(values)

    def _visits_by_cycle(self, report: Report) -> list[int]:
        """Return the visits of each cycle, 0 if it closed too late."""
        ends_s = report.began_s + self.within_s
        return [cycle.visits_counted if cycle.closed_s <= ends_s else 0 for cycle in report.cycles]

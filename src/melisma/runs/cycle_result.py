"""The result of one cycle, given to the function that a user passes as `on_cycle`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.runs.assignments import COUNTED
from melisma.runs.cycle_figures import Cycle, seconds_between
from melisma.runs.notebook_view import find_notebook_view
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step


@dataclass(frozen=True)
class CycleResult:
    """A cycle that has ended; unknown figures are NaN.

    `seconds` is its time, against `deadline_s`; NaN if no update arrived. `updates` of `learners`
    that had work counted, and `capacity_used` is the fraction of their possible visits. `accuracy`
    and `loss` are those of the new model, and `elapsed_s` the seconds since the run began.
    """

    number: int
    accuracy: float
    loss: float
    seconds: float
    deadline_s: float
    met_deadline: bool
    updates: int
    learners: int
    capacity_used: float
    elapsed_s: float

    @classmethod
    def from_cycle(cls, cycle: Cycle, began_s: float) -> "CycleResult":
        """Return the result of a cycle that has been evaluated."""
        return cls(
            number=cycle.number,
            accuracy=cycle.accuracy,
            loss=cycle.loss,
            seconds=cycle.cycle_s,
            deadline_s=cycle.deadline_s,
            met_deadline=cycle.met_deadline,
            updates=sum(cycle.counts.get(status, 0) for status in COUNTED),
            learners=len(cycle.assignments),
            capacity_used=cycle.capacity_used,
            elapsed_s=seconds_between(began_s, cycle.evaluated_s),
        )


OnCycle = Callable[[CycleResult], object]
"""A function of the user that is called after each cycle."""


def check_callback(on_cycle: OnCycle | None) -> None:
    """Raise `SettingError` unless `on_cycle` is a function, or None."""
    if on_cycle is not None and not callable(on_cycle):
        raise SettingError(f"on_cycle is {describe(on_cycle)}; expected a function of one argument")


def follow_cycles(
    on_cycle: OnCycle | None,
    deliver: Callable[[Callable[[], object]], object],
    earlier: Iterable[Step] = (),
) -> Callable[[Step], None]:
    """Return a watcher of steps that does what a `CycleFollower` does, after `earlier` steps."""
    follower, progress = CycleFollower(on_cycle, deliver), RunProgress()
    if follower.is_needed:
        for step in earlier:
            progress.apply(step)
        follower.skip(progress)

    def watch(step: Step) -> None:
        progress.apply(step)
        follower.follow(progress)

    return watch if follower.is_needed else lambda _: None


class CycleFollower:
    """Calls a function after each cycle, and shows the run if this process is a notebook's.

    `deliver` receives each call as a function without arguments, to run it where it belongs.
    """

    def __init__(
        self, on_cycle: OnCycle | None, deliver: Callable[[Callable[[], object]], object]
    ) -> None:
        self._on_cycle, self._deliver, self._number = on_cycle, deliver, 0
        self._view = find_notebook_view()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to call."""
        return self._on_cycle is not None or self._view is not None

    def skip(self, progress: RunProgress) -> None:
        """Deliver no calls for the cycles of an earlier process."""
        self._number = progress.evaluated_number

    def follow(self, progress: RunProgress) -> None:
        """Deliver a call if another cycle was evaluated, or the run has ended."""
        is_new = progress.evaluated_number > self._number
        if not is_new and progress.outcome == "running":
            return
        view, on_cycle, cycle = self._view, self._on_cycle, progress.evaluated_cycle
        if view is not None:
            report = progress.report()
            self._deliver(lambda: view.show(report))
        if is_new and cycle is not None:
            self._number = cycle.number
            if on_cycle is not None:
                result = CycleResult.from_cycle(cycle, progress.submission.at_s)
                self._deliver(lambda: on_cycle(result))

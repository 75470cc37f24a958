"""`size`: find the least deadline, devices or budget, or the largest model, that meets a goal.

Each candidate is simulated on the same seeds; it holds if the goal is met on all of them. The
search doubles and bisects, which needs few runs if candidates are monotone; then the neighbours of
the answer are checked: the scarcer one fails, and the easier one should hold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from melisma.allocation.schemes import with_scheme
from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments, describe
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import SimulationSettings, Task
from melisma.learning.given_objects import NO_OBJECTS, GivenObjects
from melisma.learning.loaded_task import add_task_path, load_task
from melisma.runs.report import Report
from melisma.simulation.forecast import is_random
from melisma.simulation.simulation import ComputeLevel, prepare, run
from melisma.simulation.sizing.bisection_search import find_first
from melisma.simulation.sizing.candidates import Find, Question, ask
from melisma.simulation.sizing.size_goal import SizeGoal

if TYPE_CHECKING:
    from melisma.runs.svg import Picture

MAX_DEVICES = 1000
DEFAULT_SEEDS = 3
ARGUMENT_TYPES = {
    "find": str,
    "within_s": float,
    "visits": float | None,
    "accuracy": float | None,
    "kind": str | None,
    "scheme": str | None,
    "work": ComputeLevel | None,
    "seeds": int,
    "most": int,
}


@dataclass(frozen=True)
class Candidate:
    """A candidate and what its runs reached: the least visits, or the most seconds, of any seed.

    `cost` is the largest of any seed, and `problem` why a run failed, if one did.
    """

    value: float
    holds: bool
    reached: float
    cost: float
    problem: str = ""


@dataclass(frozen=True)
class Sizing:
    """The answer, and all candidates that were tried, in the order of their values.

    `answer` is the least or largest value that holds, in `unit`; for a budget it is the cost. None
    if no candidate holds. `monotone` is False if the neighbour that should be easier fails.
    """

    find: Find
    goal: SizeGoal
    unit: str
    answer: float | None
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    monotone: bool
    seeds: tuple[int, ...]
    level: ComputeLevel

    @property
    def at_limit(self) -> bool:
        """Whether the answer is the shortest deadline or the largest model that can be tried.

        One beyond it may reach the goal, too.
        """
        # The search begins with the scarcest candidate.
        first = {"deadline": 0, "model": -1}.get(self.find)
        return first is not None and self.chosen == self.candidates[first]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON; unknown numbers are None."""
        return {
            "find": self.find,
            "goal": vars(self.goal),
            "unit": self.unit,
            "answer": self.answer,
            "chosen": None if self.chosen is None else _encode(self.chosen),
            "candidates": [_encode(candidate) for candidate in self.candidates],
            "monotone": self.monotone,
            "at_limit": self.at_limit,
            "seeds": list(self.seeds),
            "work": self.level,
        }

    def plot(self) -> "Picture":
        """Draw what each candidate reached, and the goal."""
        from melisma.simulation.sizing.sizing_picture import draw_sizing

        return draw_sizing(self)


def _encode(candidate: Candidate) -> dict[str, Any]:
    unknown = {k: None for k in ("reached", "cost") if not isfinite(getattr(candidate, k))}
    return {**vars(candidate), **unknown}


def size(  # noqa: PLR0913 - each is a setting of its own
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    find: Find,
    *,
    model: Any = None,
    data: Any = None,
    within_s: float,
    visits: float | None = None,
    accuracy: float | None = None,
    kind: str | None = None,
    scheme: str | None = None,
    work: ComputeLevel | None = None,
    seeds: int = DEFAULT_SEEDS,
    most: int = MAX_DEVICES,
    watch: Callable[[Candidate], object] = lambda _: None,
) -> Sizing:
    """Find what a goal needs: `visits` samples trained, or an `accuracy`, within `within_s`.

    `find` is "deadline" (the least `deadline_s` of a cycle), "devices" (the fewest of a `kind`, up
    to `most`), "budget" (the smallest cost, with the cheapest devices) or "model" (the largest
    factor). Runs train nothing unless the goal is an accuracy or `work` says so. `model` and
    `data` are objects instead of those that the task names, as in `melisma.train`. `watch` is
    called with each candidate that was tried.
    """
    check_arguments("size", ARGUMENT_TYPES, locals())
    if not callable(watch):
        raise SettingError(f"watch is {describe(watch)}; expected a function of one argument")
    goal = SizeGoal(within_s, visits, accuracy)
    file = task if isinstance(task, str | Path) else None
    with naming_task_file(file):
        read, objects = resolve_task(task), GivenObjects(model, data)
        level = work or ("timing" if accuracy is None else read.simulation.work)
        if accuracy is not None and work is None and level == "timing":
            level = "batched"
        goal.check_level(level)
        read = _with_absolute_start(read, file)
        add_task_path(read, file)
    read = with_scheme(read, scheme, file)
    read = msgspec.structs.replace(read, simulation=SimulationSettings(work=level))
    with naming_task_file(file):
        if objects:
            read = load_task(read, file, objects).task
        read.check_names()
    question = ask(find, read, fleet, goal, kind, most)
    with naming_task_file(file):
        trials = _Trials(question, goal, read, watch)
        # Timing needs only the sizes, which are those of the candidate.
        trials.objects = objects if level != "timing" else NO_OBJECTS
        trials.choose_seeds(seeds)
        result = find_first(len(question.values), trials.holds)
    index = result.index
    chosen = None if index is None else trials.tried[index]
    return Sizing(
        find,
        goal,
        question.unit,
        _answer(find, chosen),
        chosen,
        tuple(sorted(trials.tried.values(), key=lambda candidate: candidate.value)),
        result.confirmed,
        trials.seeds,
        level,
    )


def _with_absolute_start(task: Task, file: str | Path | None) -> Task:
    """Return the task with a `start` that is read without knowing the folder of its file."""
    if file is None or task.start is None:
        return task
    return msgspec.structs.replace(task, start=str((Path(file).parent / task.start).resolve()))


def _answer(find: Find, chosen: Candidate | None) -> float | None:
    if chosen is None:
        return None
    return chosen.cost if find == "budget" else chosen.value


class _Trials:
    """Runs candidates on the seeds, each once."""

    def __init__(
        self,
        question: Question,
        goal: SizeGoal,
        task: Task,
        watch: Callable[[Candidate], object],
    ) -> None:
        self._question, self._goal, self._task = question, goal, task
        self._watch = watch
        self.seeds: tuple[int, ...] = (task.seed,)
        self.objects = NO_OBJECTS
        self.tried: dict[int, Candidate] = {}

    def choose_seeds(self, count: int) -> None:
        """Use seeds from that of the task on; one is enough if they change nothing."""
        if count < 1:
            raise SettingError(f"seeds is {count}; expected at least 1")
        seeds = tuple(range(self._task.seed, self._task.seed + count))
        fleet, *others = (self._question.fleet_for(self._question.values[-1], n) for n in seeds)
        draws_learners = self._task.sample is not None
        trains = self._task.simulation.work != "timing"
        draws_devices = not all(fleet.has_same_devices(other) for other in others)
        if trains or draws_learners or draws_devices or is_random(self._task, fleet):
            self.seeds = seeds

    def holds(self, index: int) -> bool:
        """Run a candidate, and return whether the goal is met on all seeds."""
        value = self._question.values[index]
        reached, costs, problem = list[float](), list[float](), ""
        for seed in self.seeds:
            try:
                report = self._simulate(value, seed)
            except SettingError as error:
                if self._is_easiest(index):
                    raise
                problem = str(error)
                break
            problem = report.reason if report.outcome == "failed" else problem
            reached.append(self._goal.reached(report))
            costs.append(self._goal.cost(report))
            # One seed on which the goal is missed is enough.
            if not self._goal.holds(reached[-1]):
                break
        worst = self._goal.worst(reached) if reached else nan
        holds = len(reached) == len(self.seeds) and self._goal.holds(worst)
        candidate = Candidate(value, holds, worst, max(costs, default=nan), problem)
        self.tried[index] = candidate
        self._watch(candidate)
        return holds

    def _is_easiest(self, index: int) -> bool:
        return index == len(self._question.values) - 1

    def _simulate(self, value: float, seed: int) -> Report:
        task = self._goal.fill_time(self._question.task_for(self._task, value))
        task = msgspec.structs.replace(task, seed=seed)
        prepared = prepare(task, self._question.fleet_for(value, seed), objects=self.objects)
        report = run(prepared)
        if report.outcome == "cancelled":
            raise KeyboardInterrupt
        return report

"""Several tasks on one fleet, in virtual time: the study of MED, and a fleet while tasks wait."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import table
from benchmarks.harness.parts import Benchmark, Part, cell
from benchmarks.harness.targets import Target
from benchmarks.service import med_study, waiting_tasks
from benchmarks.service.med_study import BY_LEARNERS, BY_TASKS, QUEUES, SCHEMES

MIN_CAPACITY = 85


def relations_table(results: dict[str, Any]) -> str:
    """Return how MED compares with the other schemes at each point, beside the thesis."""
    rows = results["relations"]
    columns = list(next(iter(rows.values())))
    return table.render(columns, rows)


def _learners(quick: bool, *, like_thesis: bool) -> dict[str, Any]:
    points = med_study.by_learners()
    return med_study.measure(points, SCHEMES, BY_LEARNERS, like_thesis=like_thesis, quick=quick)


def _tasks(quick: bool, *, like_thesis: bool) -> dict[str, Any]:
    points = med_study.by_tasks()
    return med_study.measure(points, SCHEMES, BY_TASKS, like_thesis=like_thesis, quick=quick)


def _queues(quick: bool) -> dict[str, Any]:
    return med_study.measure(med_study.by_learners()[-1:], QUEUES, quick=quick)


def _study(title: str, measure: Callable[[bool], dict[str, Any]]) -> Part:
    return Part(title, measure, med_study.COLUMNS, timed=False)


WAITING = Part(
    "The time of all learners while tasks wait",
    waiting_tasks.measure,
    waiting_tasks.COLUMNS,
    tuple(
        Target(f"capacity used, {name}", cell(name, "capacity %"), least=MIN_CAPACITY, unit="%")
        for name, setting in waiting_tasks.SETTINGS.items()
        if setting.extension
    ),
    timed=False,
)
BENCHMARK = Benchmark(
    "service",
    {
        "learners": _study("4 to 10 learners", partial(_learners, like_thesis=False)),
        "tasks": _study("1 to 4 tasks", partial(_tasks, like_thesis=False)),
        "queues": _study("MED beside queues", _queues),
        "thesis_learners": _study(
            "4 to 10 slower learners that halt late", partial(_learners, like_thesis=True)
        ),
        "thesis_tasks": _study(
            "1 to 4 tasks, slower learners that halt late", partial(_tasks, like_thesis=True)
        ),
        "waiting": WAITING,
    },
    ["melisma", "numpy"],
)


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    return BENCHMARK.run(quick, only)

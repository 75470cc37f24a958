"""Certified gaps of MED on problems that no constant was chosen on, after a number of steps.

A search is limited to 10⁷ steps for each second of its limit, as the service limits it in virtual
time. So gaps do not depend on the load of the machine; the CPU time says whether the steps fit into
the limit. Live searches are limited by time: the rows `live` have a clock that shows CPU time. The
gap is (sum - bound) / sum of the returned plan. The tight budget is 0.9 times the mean price of all
shards.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

from benchmarks.allocation.med_instances import instance, with_budget
from benchmarks.harness.parts import Benchmark, Part, cell
from benchmarks.harness.targets import Target
from melisma.allocation.med import med
from melisma.allocation.med.branch_and_bound import SearchTree
from melisma.allocation.shared_problem import SharedProblem
from melisma.fleet.array_types import Ints
from melisma.service.round_planning import SEARCH_PART, WORK_PER_S
from melisma.service.service_machine import PLANNING_FRACTION

SEEDS = range(47_011, 47_021)
TIGHT = 0.9
# The time for planning at the shortest deadline of the study.
DEADLINE_S = 40.0
SERVICE_S = PLANNING_FRACTION * DEADLINE_S
IN_SERVICE_STEPS = f"5 % of {DEADLINE_S:g} s"
IN_SERVICE_LIVE = f"{IN_SERVICE_STEPS}, live"
# Learners, tasks, and seconds.
SIZES = {
    "10 x 3": (10, 3, 5.0),
    "20 x 5": (20, 5, 5.0),
    "100 x 5": (100, 5, 30.0),
    "1000 x 10": (1000, 10, 60.0),
}
IN_SERVICE = ("10 x 3", "20 x 5", "100 x 5")
CLOCK = "melisma.allocation.med.solver.time.monotonic"
COLUMNS = ["limit s", "gap %", "largest gap %", "CPU s", "longest CPU s", "plan found after CPU s"]
LARGEST_GAPS = {
    "100 x 5, mean budget": 1,
    "100 x 5, tight budget": 2,
    "1000 x 10, mean budget": 2,
    "1000 x 10, tight budget": 4,
}


def measure(quick: bool) -> dict[str, Any]:
    """Solve all problems of each size, with both budgets."""
    seeds = SEEDS[:1] if quick else SEEDS
    sizes = dict(list(SIZES.items())[:2]) if quick else SIZES
    rows = {
        f"{name}, {budget} budget": measure_row(learners, tasks, budget, limit_s, seeds)
        for name, (learners, tasks, limit_s) in sizes.items()
        for budget in ("mean", "tight")
    }
    for name, budget, live in product(IN_SERVICE, ("mean", "tight"), (False, True)):
        learners, tasks, _ = SIZES[name]
        row = f"{name}, {budget} budget, {IN_SERVICE_LIVE if live else IN_SERVICE_STEPS}"
        rows[row] = measure_row(learners, tasks, budget, SERVICE_S, seeds, live=live)
    return {"rows": rows, "seeds": [seeds[0], seeds[-1]], "own_s": 0.0}


def measure_row(
    learners: int, tasks: int, budget: str, limit_s: float, seeds: range, *, live: bool = False
) -> dict[str, float]:
    """Return medians over the seeds, and the largest values."""
    found = []
    for seed in seeds:
        found.append(_solve(_problem(learners, tasks, seed, budget), limit_s, live=live))
        print(
            f"  {learners} x {tasks}, {budget}, {limit_s:g} s, {seed}: {found[-1]}", file=sys.stderr
        )
    gaps, taken_s, found_s = zip(*found, strict=True)
    return {
        "limit s": int(limit_s),
        "gap %": round(statistics.median(gaps), 3),
        "largest gap %": round(max(gaps), 3),
        "CPU s": round(statistics.median(taken_s), 2),
        "longest CPU s": round(max(taken_s), 2),
        "plan found after CPU s": round(statistics.median(found_s), 2),
    }


def _problem(learners: int, tasks: int, seed: int, budget: str) -> SharedProblem:
    problem = instance(learners, tasks, seed)
    return problem if budget == "mean" else with_budget(problem, TIGHT * problem.budget)


def _solve(problem: SharedProblem, limit_s: float, *, live: bool) -> tuple[float, float, float]:
    """Return the gap in percent, the CPU seconds, and those until the plan was found."""
    began_s = time.process_time()
    with _watch_plans() as found_at_s, patch(CLOCK, time.process_time):
        if live:
            plan = med(problem, time_limit_s=SEARCH_PART * limit_s)
        else:
            plan = med(problem, max_work=WORK_PER_S * limit_s)
    taken_s = time.process_time() - began_s
    gap = max(0.0, 100 * (1 - plan.bound_s / plan.total_s))
    return round(gap, 4), round(taken_s, 2), round(found_at_s[-1] - began_s, 2)


@contextmanager
def _watch_plans() -> Iterator[list[float]]:
    """Yield the CPU seconds at which a search found a plan better than the ones before."""
    found_at_s: list[float] = []
    offer = SearchTree.offer

    def watched(tree: SearchTree, assignment: Ints) -> bool:
        before_s = tree.best_s
        feasible = offer(tree, assignment)
        if tree.best_s < before_s:
            found_at_s.append(time.process_time())
        return feasible

    with patch.object(SearchTree, "offer", watched):
        yield found_at_s


PART = Part(
    "Certified gaps on ten fresh problems of each size, by steps",
    measure,
    COLUMNS,
    (
        *(
            Target(f"{row}, median gap", cell(row, "gap %"), most, unit="%")
            for row, most in LARGEST_GAPS.items()
        ),
        *(
            Target(
                f"{name}, {budget} budget, longest time to plan live",
                cell(f"{name}, {budget} budget, {IN_SERVICE_LIVE}", "longest CPU s"),
                SERVICE_S,
                unit="s",
            )
            for name, budget in product(("10 x 3", "100 x 5"), ("mean", "tight"))
        ),
    ),
    timed=False,
)
BENCHMARK = Benchmark("med_gaps", {"med_gaps": PART}, ["melisma", "numpy"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the part, print it and return the results for the JSON file."""
    return BENCHMARK.run(quick, only)

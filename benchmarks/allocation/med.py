"""Time of MED to a proven optimum, or its gap where a proof takes too long.

Every size is a set of random problems (`med_instances.py`), each with the mean budget and with the
tight one. Gurobi, CP-SAT and HiGHS solve the textbook program of the first few problems in the same
run, one after the other, each in its own process with one thread.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.allocation.med_instances import instance, with_budget
from benchmarks.allocation.med_solvers import SOLVERS
from benchmarks.harness import environments, machine, processes, table
from melisma.allocation.med import cheapest, med
from melisma.allocation.shared_problem import SharedProblem

REQUIREMENTS = "solvers.txt"
PROVEN = {"10 x 3": (10, 3), "20 x 3": (20, 3), "20 x 5": (20, 5), "30 x 3": (30, 3)}
CERTIFIED = {"100 x 5": (100, 5, 3, 30.0), "1000 x 10": (1000, 10, 1, 60.0)}
COMPARED = {"10 x 3": (5, 60.0), "20 x 3": (3, 12.0)}
COLUMNS = ["problems", "limit s", "median ms", "longest ms", "gap %", "largest gap %"]
LIMIT_S = 5.0


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure Melisma and the solvers, print tables and return the results for the JSON file."""
    described = machine.describe(["melisma", "numpy"])
    print(machine.summary(described))
    solvers = [name for name in SOLVERS if not only or name in only]
    rows: dict[str, dict[str, float | None]] = {}
    for name, (learners, tasks) in PROVEN.items():
        for budget in ("mean", "tight"):
            count = {"mean": 3 if quick else 30, "tight": 1 if quick else 5}[budget]
            rows[f"{name}, {budget} budget"] = _measure_melisma(
                learners, tasks, count, budget, LIMIT_S
            )
    for name, (learners, tasks, count, limit_s) in ({} if quick else CERTIFIED).items():
        for budget in ("mean", "tight"):
            rows[f"{name}, {budget} budget"] = _measure_melisma(
                learners, tasks, count, budget, limit_s
            )
    print("\nmelisma")
    print(table.render(COLUMNS, rows))
    competitors = {name: _compare(name, solvers, quick) for name in COMPARED}
    for name, figures in competitors.items():
        print(f"\n{name}, mean budget, {figures['melisma']['problems']:g} problems, same run")
        print(table.render(COLUMNS, figures))
    return {
        "machine": described,
        "pinned": environments.pinned_packages(REQUIREMENTS),
        "melisma": rows,
        "competitors": competitors,
    }


def _measure_melisma(
    learners: int, tasks: int, count: int, budget: str, limit_s: float
) -> dict[str, float | None]:
    answers = []
    for seed in range(count):
        print(f"  {learners} x {tasks}, {budget} budget, seed {seed}", file=sys.stderr)
        answers.append(_solve_melisma(_problem(learners, tasks, seed, budget), limit_s))
    return _figures(answers, limit_s)


def _problem(learners: int, tasks: int, seed: int, budget: str) -> SharedProblem:
    problem = instance(learners, tasks, seed)
    if budget == "mean":
        return problem
    return with_budget(problem, 1.05 * cheapest(problem, max_nodes=1)[0])


def _compare(name: str, solvers: list[str], quick: bool) -> dict[str, dict[str, float | None]]:
    count, limit_s = COMPARED[name]
    learners, tasks = PROVEN[name]
    problems = [instance(learners, tasks, seed) for seed in range(1 if quick else count)]
    limit_s = 5.0 if quick else limit_s
    answers = [_solve_melisma(problem, limit_s) for problem in problems]
    figures = {"melisma": _figures(answers, limit_s)}
    for solver in solvers:
        print(f"  {name}, {solver}", file=sys.stderr)
        answers = [_solve_general(solver, problem, limit_s) for problem in problems]
        figures[solver] = _figures(answers, limit_s)
    return figures


def _solve_melisma(problem: SharedProblem, limit_s: float) -> dict[str, float]:
    start_s = time.perf_counter()
    plan = med(problem, time_limit_s=limit_s)
    taken_s = time.perf_counter() - start_s
    return {"taken_s": taken_s, "total_s": plan.total_s, "bound_s": plan.bound_s}


def _solve_general(solver: str, problem: SharedProblem, limit_s: float) -> dict[str, float]:
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    job: dict[str, Any] = {
        "limit_s": limit_s,
        "problem": {name: np.asarray(value).tolist() for name, value in fields.items()},
    }
    command = [environments.python(REQUIREMENTS), "-m", "benchmarks.allocation.med_solvers", solver]
    done = subprocess.run(
        command,
        input=json.dumps(job),
        cwd=processes.ROOT,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _figures(answers: list[dict[str, float]], limit_s: float) -> dict[str, float | None]:
    taken_ms = [each["taken_s"] * 1e3 for each in answers]
    gaps = [
        max(0.0, 100 * (1 - each["bound_s"] / each["total_s"])) if each["total_s"] > 0 else 100.0
        for each in answers
    ]
    return {
        "problems": len(answers),
        "limit s": int(limit_s),
        "median ms": round(statistics.median(taken_ms), 1),
        "longest ms": round(max(taken_ms), 1),
        "gap %": round(statistics.median(gaps), 3),
        "largest gap %": round(max(gaps), 3),
    }

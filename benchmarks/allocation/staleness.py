"""Cost of finding the least staleness: exactly, and with the two methods of the paper.

Fleets are random: costs log-normal around the paper's own, spread by a factor of about three, on
average 50 shards for each learner; with and without bounds and shards held by learners. The
relaxation is solved by SciPy's SLSQP with analytic gradients, from shares in proportion to speed,
in two forms: `numerical` of Melisma, with the updates eliminated and one window for all, and as
problem (8) of the paper states it, with shares, updates and every pair of learners.
All run in this process in one thread; figures are medians of processor time.
"""

import os
import resource
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise
from typing import Any

# NumPy reads these on import; idle threads of a solver would count as processor time.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from scipy.optimize import minimize

from benchmarks.harness import machine, table
from benchmarks.harness.call_cost import peak_mb, time_call
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.shares import split_by_weight
from melisma.allocation.staleness import staleness
from melisma.allocation.staleness.relaxation import real_updates

PACKAGES = ["melisma", "numpy", "scipy"]
SIZES = (20, 100, 1_000, 10_000, 100_000, 1_000_000)
# Larger instances would take minutes each.
UP_TO = {"numerical": 100, "as stated": 100, "sai": 10_000}
QUICK_UP_TO = {"numerical": 20, "as stated": 20, "sai": 1_000}
# Methods that take minutes run once.
SLOW = {"as stated": 100}
COLUMNS = [
    "exact ms",
    "peak MB",
    "numerical ms",
    "as stated ms",
    "sai ms",
    "numerical / exact",
    "as stated / exact",
    "sai / exact",
    "staleness",
    "of numerical",
    "of sai",
]
KINDS = ("free", "bounds and held shards")


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure every size and kind, print the tables and return the results for the JSON file."""
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    result: dict[str, Any] = {"machine": described, "kinds": {}, "growth": {}}
    for kind in KINDS:
        rows = {}
        for size in SIZES:
            if not only or str(size) in only:
                print(f"  {size} learners, {kind}", file=sys.stderr)
                rows[f"{size:,}"] = _row(size, kind, quick)
        result["kinds"][kind] = rows
        result["growth"][kind] = _growth(rows)
    result["process_peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1)
    report(result)
    return result


def report(result: dict[str, Any]) -> None:
    """Print the figures of each kind and their growth."""
    for kind, rows in result["kinds"].items():
        print(f"\n{kind}: processor time to plan one cycle; memory without the problem itself")
        print(table.render(COLUMNS, rows))
        for step, factor in result["growth"][kind].items():
            print(f"{step}: {factor} x the time")
    print(f"\npeak memory of the whole process: {result['process_peak_mb']} MB")


def fleet(learners: int, kind: str, seed: int) -> CycleProblem:
    """Return learners of very different speed for which a plan exists."""
    rng = np.random.default_rng([learners, seed])
    shards = 50 * learners
    bounds: dict[str, Any] = {}
    if kind != "free":
        bounds["min_shards"] = rng.integers(1, 11, learners)
        bounds["max_shards"] = rng.integers(50, 201, learners)
        bounds["held"] = rng.integers(0, 101, learners)
    train_s = 0.01 * np.exp(rng.normal(0.0, 1.0, learners))
    return CycleProblem(
        # A slower learner could not train its smallest share once.
        train_s=np.minimum(train_s, 0.5),
        ship_s=0.002 * np.exp(rng.normal(0.0, 1.0, learners)),
        fixed_s=rng.uniform(0.1, 1.0, learners),
        deadline_s=10.0,
        shards=shards,
        **bounds,
    )


def _row(size: int, kind: str, quick: bool) -> dict[str, float]:
    limits = QUICK_UP_TO if quick else UP_TO
    trials: list[dict[str, float]] = []
    for seed in range(2 if quick else 5):
        problem = fleet(size, kind, seed)
        plan, exact_s = time_call(partial(staleness, problem), 5 if size <= 10_000 else 1)
        figures = {
            "exact ms": exact_s * 1e3,
            "peak MB": peak_mb(partial(staleness, problem)),
            "staleness": plan.max_staleness,
        }
        for method, limit in limits.items():
            if size > limit or (size >= SLOW.get(method, size + 1) and seed):
                continue
            result, taken_s = time_call(partial(METHODS[method], problem), 1)
            figures[f"{method} ms"] = taken_s * 1e3
            if isinstance(result, CyclePlan):
                figures[f"of {method}"] = result.max_staleness
        trials.append(figures)
    row = {
        name: round(statistics.median(trial[name] for trial in trials if name in trial), 3)
        for name in trials[0]
    }
    for method in limits:
        if f"{method} ms" in row:
            row[f"{method} / exact"] = round(row[f"{method} ms"] / row["exact ms"], 1)
    row["worst exact ms"] = round(max(trial["exact ms"] for trial in trials), 3)
    return row


def _growth(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many times longer a plan takes from each size to the next."""
    return {
        f"{small} to {large} learners": round(rows[large]["exact ms"] / rows[small]["exact ms"], 1)
        for small, large in pairwise(rows)
    }


def _as_stated(problem: CycleProblem) -> object:
    """Solve problem (8): shares, updates and z as variables; z bounds every pair of updates."""
    k, unit = problem.learners, problem.shards / problem.learners
    pairs = np.array(list(combinations(range(k), 2)))
    rows = np.arange(len(pairs))
    first = split_by_weight(problem, 1 / (problem.ship_s + problem.train_s)).astype(float)
    scale = float(real_updates(problem, first).mean())
    differences = np.zeros((2 * len(pairs), 2 * k + 1))
    for sign, part in ((1, rows), (-1, len(pairs) + rows)):
        differences[part, k + pairs[:, 0]], differences[part, k + pairs[:, 1]] = -sign, sign
    differences[:, -1] = 1.0

    def times(x: Any) -> Any:
        shares, updates = x[:k] * unit, x[k:-1] * scale
        shipped = np.maximum(shares - problem.held, 0)
        busy = problem.fixed_s + problem.ship_s * shipped + problem.train_s * updates * shares
        return np.append(busy / problem.deadline_s - 1, x[:k].sum() / k - 1)

    def times_slope(x: Any) -> Any:
        shares, updates = x[:k] * unit, x[k:-1] * scale
        slope = np.zeros((k + 1, 2 * k + 1))
        shipping = np.where(shares >= problem.held, problem.ship_s, 0.0)
        learner = np.arange(k)
        slope[learner, learner] = (shipping + problem.train_s * updates) * unit / problem.deadline_s
        slope[learner, k + learner] = problem.train_s * shares * scale / problem.deadline_s
        slope[-1, :k] = 1 / k
        return slope

    start = np.concatenate([first / unit, real_updates(problem, first) / scale, [0.0]])
    start[-1] = np.ptp(start[k:-1])
    bounds = [*zip(problem.min_shards / unit, problem.max_shards / unit, strict=True)]
    return minimize(
        lambda x: x[-1],
        start,
        jac=lambda _: np.append(np.zeros(2 * k), 1.0),
        bounds=bounds + [(0.0, None)] * (k + 1),
        constraints=[
            {"type": "eq", "fun": times, "jac": times_slope},
            {"type": "ineq", "fun": lambda x: differences @ x, "jac": lambda _: differences},
        ],
        method="SLSQP",
        options={"maxiter": 200, "ftol": 1e-9},
    )


METHODS: dict[str, Callable[[CycleProblem], object]] = {
    "numerical": lambda problem: staleness(problem, method="numerical"),
    "as stated": _as_stated,
    "sai": lambda problem: staleness(problem, method="sai"),
}

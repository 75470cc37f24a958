"""Cost of choosing batches and slots together, compared with a general solver.

`feel` finds the exact optimum and whole batches; SciPy's SLSQP and trust-constr find the exact
optimum of the same problems with analytic gradients, in the form that suits them best: slots and
the downlink are eliminated beforehand, so that batches and one time are left, with one convex
constraint and exact bounds. SLSQP also solves the problem as the paper states it (batches, both
slots of each learner, both maxima). All run in this process in one thread; figures are processor
seconds, medians over instances whose optimum is not simply the full batch.
"""

import math
import os
import resource
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

# NumPy reads these on import; idle threads of a solver would count as processor time.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from scipy.optimize import BFGS, Bounds, NonlinearConstraint, minimize

from benchmarks.harness import machine, table
from benchmarks.harness.call_cost import peak_mb, time_call
from melisma.allocation.feel import feel
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.slots import common_end_s, downlink_end_s, slots
from melisma.fleet.array_types import Floats
from melisma.fleet.channel import Channel, random_distances_m

PACKAGES = ["melisma", "numpy", "scipy"]
SIZES = (10, 100, 1_000, 10_000, 100_000)
COLUMNS = [
    "exact ms",
    "whole ms",
    "peak MB",
    "SLSQP ms",
    "trust-constr ms",
    "SLSQP, as stated ms",
    "fastest solver / exact",
    "fastest solver / whole",
]
# Larger instances would take minutes each.
SOLVER_UP_TO = {"SLSQP": 1_000, "trust-constr": 100, "SLSQP, as stated": 100}
SLOW = {"SLSQP": 1_000, "trust-constr": 1_000, "SLSQP, as stated": 100}
QUICK_UP_TO = {"SLSQP": 100, "trust-constr": 10, "SLSQP, as stated": 10}


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure every size, print the tables and return the results for the JSON file."""
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    sizes = [size for size in SIZES if not only or str(size) in only]
    trials: dict[str, list[dict[str, float]]] = {}
    for size in sizes:
        print(f"  {size} devices", file=sys.stderr)
        trials[f"{size:,}"] = _trials(size, quick)
    rows = {name: _medians(figures) for name, figures in trials.items()}
    result: dict[str, Any] = {
        "machine": described,
        "sizes": rows,
        "growth": _growth(rows),
        "worst": {name: _worst(figures) for name, figures in trials.items()},
        "trials": trials,
        "process_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    }
    report(result)
    return result


def report(result: dict[str, Any]) -> None:
    """Print the figures, their growth, and the efficiency lost by solvers and whole batches."""
    print("\nProcessor time to plan one round; peak memory of planning whole batches")
    print(table.render(COLUMNS, result["sizes"]))
    for name, factor in result["growth"].items():
        print(f"{name}: {factor} x the time")
    print("\nWorst instance, and the largest fraction of the exact efficiency lost")
    for name, worst in result["worst"].items():
        print(f"{name:>8} devices: {', '.join(f'{key} {value}' for key, value in worst.items())}")


def cell(devices: int, seed: int) -> RadioProblem:
    """Return devices of three speeds in the paper's cell, every third with a GPU.

    The paper does not state cycles and bits: here a sample takes 1e8 cycles, and the devices of a
    round send 3e8 bits in total, so that neither radio nor computing dominates at any size.
    """
    rng = np.random.default_rng([devices, seed])
    rate_bps = Channel(bandwidth_hz=10e6, power_dbm=28).mean_rate_bps(
        random_distances_m(devices, 200.0, rng)
    )
    clock_hz = rng.choice([0.7e9, 1.4e9, 2.1e9], devices)
    gpu = np.arange(devices) % 3 == 0
    return RadioProblem(
        slope_s=1e8 / clock_hz * np.where(gpu, 0.5, 1.0),
        uplink_bps=rate_bps,
        downlink_bps=rate_bps,
        gradient_bits=3e8 / devices,
        frame_s=0.01,
        apply_s=1e7 / clock_hz,
        base_s=np.where(gpu, 8e8 / clock_hz, 0.0),
        threshold=np.where(gpu, rng.integers(8, 33, devices), 0),
    )


def _trials(devices: int, quick: bool) -> list[dict[str, float]]:
    limits = QUICK_UP_TO if quick else SOLVER_UP_TO
    trials = []
    for seed in range(2 if quick else 5):
        p = cell(devices, seed)
        exact, exact_s = time_call(partial(feel, p, integral=False), 3)
        plan, whole_s = time_call(partial(feel, p), 3)
        figures = {
            "exact ms": exact_s * 1e3,
            "whole ms": whole_s * 1e3,
            "peak MB": peak_mb(partial(feel, p)),
            "whole batches lose": 1 - plan.efficiency / exact.efficiency,
        }
        for name, solve in SOLVERS.items():
            # Solvers that take half a minute run once.
            if devices <= limits[name] and (devices < SLOW[name] or seed == 0):
                solution, taken_s = time_call(partial(solve, p), 1)
                figures[f"{name} ms"] = taken_s * 1e3
                figures[f"{name} loses"] = 1 - solution.efficiency / exact.efficiency
        trials.append(figures)
    return trials


def _medians(trials: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for figures in trials for name in figures if name in COLUMNS)
    row = {n: round(statistics.median(f[n] for f in trials if n in f), 3) for n in names}
    solvers = [row[f"{name} ms"] for name in SOLVERS if f"{name} ms" in row]
    for kind in ("exact", "whole") if solvers else ():
        row[f"fastest solver / {kind}"] = round(min(solvers) / row[f"{kind} ms"], 1)
    return row


def _growth(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many times longer a plan takes from each size to the next."""
    names = list(rows)
    return {
        f"{small} to {large} devices, {kind}": round(
            rows[large][f"{kind} ms"] / rows[small][f"{kind} ms"], 1
        )
        for small, large in pairwise(names)
        for kind in ("exact", "whole")
    }


def _worst(trials: list[dict[str, float]]) -> dict[str, str]:
    names = dict.fromkeys(name for figures in trials for name in figures if "lose" in name)
    worst = {f"{k} ms": f"{max(f[f'{k} ms'] for f in trials):.3g}" for k in ("exact", "whole")}
    return worst | {n: f"{max(f[n] for f in trials if n in f):.1e}" for n in names}


class _Reduced:
    """The problem in batches and X: minimise log(X + Y) - log(B) / 2 within the frame."""

    def __init__(self, p: RadioProblem) -> None:
        self.p, self.rest_s = p, downlink_end_s(p, broadcast=False)
        self.least, self.most = p.least_batch.astype(float), p.max_batch.astype(float)
        half = (self.least + self.most) / 2
        self.unit_s = common_end_s(p.uplink_s, p.gradient_s(half))
        self.start = np.append(half / self.most, 1.0)
        self.bounds = Bounds(np.append(self.least / self.most, 1e-9), np.append(half * 0 + 1, 1e9))

    def objective(self, v: Floats) -> tuple[float, Floats]:
        total, round_s = float(v[:-1] @ self.most), v[-1] * self.unit_s + self.rest_s
        slope = np.append(-0.5 * self.most / total, self.unit_s / round_s)
        return math.log(round_s) - 0.5 * math.log(total), slope

    def _sending_s(self, v: Floats) -> Floats:
        sending_s: Floats = v[-1] * self.unit_s - self.p.gradient_s(v[:-1] * self.most)
        return sending_s

    def slack(self, v: Floats) -> float:
        # No device sends for less than air_s; below it, the tangent avoids the pole.
        y, air_s = self._sending_s(v), self.p.uplink_s
        return 1.0 - float(np.where(y < air_s, 2.0 - y / air_s, air_s / np.maximum(y, air_s)).sum())

    def slack_slope(self, v: Floats) -> Floats:
        y, air_s = self._sending_s(v), self.p.uplink_s
        steep = air_s / np.maximum(y, air_s) ** 2
        return np.append(-steep * self.p.slope_s * self.most, float(steep.sum()) * self.unit_s)

    def plan(self, v: Floats) -> RadioPlan:
        return slots(self.p, np.clip(v[:-1] * self.most, self.least, self.most))


def _slsqp(p: RadioProblem) -> RadioPlan:
    r = _Reduced(p)
    solution = minimize(
        r.objective,
        r.start,
        jac=True,
        method="SLSQP",
        bounds=r.bounds,
        constraints={"type": "ineq", "fun": r.slack, "jac": r.slack_slope},
        options={"maxiter": 500, "ftol": 1e-10},
    )
    return r.plan(solution.x)


def _trust_constr(p: RadioProblem) -> RadioPlan:
    r = _Reduced(p)
    frame = NonlinearConstraint(
        r.slack, 0.0, np.inf, jac=lambda v: r.slack_slope(v)[None], hess=BFGS()
    )
    solution = minimize(
        r.objective,
        r.start,
        jac=True,
        hess=BFGS(),
        method="trust-constr",
        bounds=r.bounds,
        constraints=frame,
        options={"maxiter": 500, "gtol": 1e-7, "xtol": 1e-9},
    )
    return r.plan(solution.x)


def _slsqp_as_stated(p: RadioProblem) -> RadioPlan:
    """Solve problem P1 of the paper: batches, shares of both frames, X and Y as variables."""
    k, most = p.learners, p.max_batch.astype(float)
    least, rows = p.least_batch.astype(float), np.arange(p.learners)
    half, shares = (least + most) / 2, np.full(2 * k, 1.0 / k)
    x0 = float((p.gradient_s(half) + p.uplink_s * k).max())
    y0 = float((p.downlink_s * k + p.apply_s).max())
    unit_s = x0 + y0

    def objective(v: Floats) -> tuple[float, Floats]:
        total, slope = float(v[:k] @ most), np.zeros(3 * k + 2)
        slope[:k], slope[-2:] = -0.5 * most / total, 1.0 / (v[-2] + v[-1])
        return math.log(v[-2] + v[-1]) - 0.5 * math.log(total), slope

    def slack(v: Floats) -> Floats:
        up = v[-2] - (p.gradient_s(v[:k] * most) + p.uplink_s / v[k : 2 * k]) / unit_s
        down = v[-1] - (p.downlink_s / v[2 * k : -2] + p.apply_s) / unit_s
        return np.concatenate([up, down, [1 - v[k : 2 * k].sum(), 1 - v[2 * k : -2].sum()]])

    def slack_slope(v: Floats) -> Floats:
        jacobian = np.zeros((2 * k + 2, 3 * k + 2))
        jacobian[rows, rows] = -p.slope_s * most / unit_s
        jacobian[rows, k + rows] = p.uplink_s / v[k : 2 * k] ** 2 / unit_s
        jacobian[k + rows, 2 * k + rows] = p.downlink_s / v[2 * k : -2] ** 2 / unit_s
        jacobian[rows, -2] = jacobian[k + rows, -1] = 1.0
        jacobian[-2, k : 2 * k] = jacobian[-1, 2 * k : -2] = -1.0
        return jacobian

    low = np.concatenate([least / most, np.full(2 * k, 1e-7), [1e-9, 1e-9]])
    solution = minimize(
        objective,
        np.concatenate([half / most, shares, [x0 / unit_s, y0 / unit_s]]),
        jac=True,
        method="SLSQP",
        bounds=Bounds(low, np.append(np.ones(3 * k), [np.inf, np.inf])),
        constraints={"type": "ineq", "fun": slack, "jac": slack_slope},
        options={"maxiter": 500, "ftol": 1e-10},
    )
    return slots(p, np.clip(solution.x[:k] * most, least, most))


SOLVERS: dict[str, Callable[[RadioProblem], RadioPlan]] = {
    "SLSQP": _slsqp,
    "trust-constr": _trust_constr,
    "SLSQP, as stated": _slsqp_as_stated,
}

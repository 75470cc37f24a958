"""Random radio problems, and a general solver for them."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from melisma.allocation.radio_problem import RadioProblem
from melisma.fleet.channel import Channel, random_distances_m

DEVICE_TYPES = ("cpu", "gpu", "mixed")
FIELDS = (
    "slope_s",
    "uplink_bps",
    "downlink_bps",
    "gradient_bits",
    "frame_s",
    "apply_s",
    "base_s",
    "threshold",
    "min_batch",
    "max_batch",
)


def change_radio(p: RadioProblem, **fields: Any) -> RadioProblem:
    return RadioProblem(**{name: getattr(p, name) for name in FIELDS} | fields)


def reorder_radio(p: RadioProblem, order: NDArray[np.int64]) -> RadioProblem:
    fields = {name: getattr(p, name) for name in FIELDS}
    return change_radio(
        p, **{name: v[order] for name, v in fields.items() if isinstance(v, np.ndarray)}
    )


def random_radio(
    rng: np.random.Generator, learners: int, kind: str, max_batch: int = 128
) -> RadioProblem:
    """Return a problem with rates over two orders of magnitude and any kind of optimum."""
    gpu = {"cpu": np.zeros(learners, bool), "gpu": np.ones(learners, bool)}.get(
        kind, rng.random(learners) < 0.5
    )
    slope_s = 10 ** rng.uniform(-3, -1) * rng.uniform(0.3, 3.0, learners)
    rate_bps = 10 ** rng.uniform(6, 8, learners)
    return RadioProblem(
        slope_s=slope_s,
        uplink_bps=rate_bps,
        downlink_bps=2 * rate_bps,
        gradient_bits=10 ** rng.uniform(4, 8) / learners,
        frame_s=0.01,
        apply_s=rng.uniform(0, 0.1, learners),
        base_s=np.where(gpu, rng.uniform(2, 10) * slope_s, 0.0),
        threshold=np.where(gpu, rng.integers(1, max(2, max_batch // 3), learners), 0),
        max_batch=max_batch,
    )


def paper_radio(rng: np.random.Generator, cycles: float, bits: float) -> RadioProblem:
    """Return K = 12 of Ren, Yu and Ding in 200 m; it does not print cycles per sample and bits."""
    rate_bps = Channel(bandwidth_hz=10e6, power_dbm=28).mean_rate_bps(
        random_distances_m(12, 200.0, rng)
    )
    clock_hz = np.repeat([0.7e9, 1.4e9, 2.1e9], 4)
    return RadioProblem(
        slope_s=cycles / clock_hz,
        uplink_bps=rate_bps,
        downlink_bps=rate_bps,
        gradient_bits=bits,
        frame_s=0.01,
        apply_s=1e7 / clock_hz,
    )


def general_optimum(p: RadioProblem) -> float:
    """Return the largest efficiency that SLSQP finds, with batches, slots and both maxima free.

    Minimizes log(X + Y) - log(sum of batches) / 2 in the paper's own variables, shares of the
    frame instead of seconds, with analytic gradients and a feasible start.
    """
    k, least = p.learners, p.least_batch.astype(float)
    scale = p.max_batch.astype(float)
    start = np.full(k, 1.0 / k)
    half = (least + scale) / 2
    x0 = float((p.gradient_s(half) + p.uplink_s * k).max())
    y0 = float((p.downlink_s * k + p.apply_s).max())
    unit_s = x0 + y0

    def objective(v: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        total, round_s = float(v[:k] @ scale), v[-2] + v[-1]
        slope = np.zeros_like(v)
        slope[:k], slope[-2:] = -0.5 * scale / total, 1.0 / round_s
        return math.log(round_s) - 0.5 * math.log(total), slope

    def constraints(v: NDArray[np.float64]) -> NDArray[np.float64]:
        up = v[-2] - (p.gradient_s(v[:k] * scale) + p.uplink_s / v[k : 2 * k]) / unit_s
        down = v[-1] - (p.downlink_s / v[2 * k : 3 * k] + p.apply_s) / unit_s
        frames = [1.0 - v[k : 2 * k].sum(), 1.0 - v[2 * k : 3 * k].sum()]
        return np.concatenate([up, down, frames])

    def jacobian_of(v: NDArray[np.float64]) -> NDArray[np.float64]:
        jacobian = np.zeros((2 * k + 2, 3 * k + 2))
        rows = np.arange(k)
        jacobian[rows, rows] = -p.slope_s * scale / unit_s
        jacobian[rows, k + rows] = p.uplink_s / v[k : 2 * k] ** 2 / unit_s
        jacobian[rows, -2] = 1.0
        jacobian[k + rows, 2 * k + rows] = p.downlink_s / v[2 * k : 3 * k] ** 2 / unit_s
        jacobian[k + rows, -1] = 1.0
        jacobian[-2, k : 2 * k] = jacobian[-1, 2 * k : 3 * k] = -1.0
        return jacobian

    result = minimize(
        objective,
        np.concatenate([half / scale, start, start, [x0 / unit_s, y0 / unit_s]]),
        jac=True,
        method="SLSQP",
        bounds=Bounds(
            np.concatenate([least / scale, np.full(2 * k, 1e-6), [1e-9, 1e-9]]),
            np.concatenate([np.ones(3 * k), [np.inf, np.inf]]),
        ),
        constraints={"type": "ineq", "fun": constraints, "jac": jacobian_of},
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    return _repaired_efficiency(
        p, result.x[:k] * scale, result.x[k : 2 * k], result.x[2 * k : 3 * k]
    )


def _repaired_efficiency(p: RadioProblem, *variables: NDArray[np.float64]) -> float:
    """Return the efficiency of the solver's point, with its slots scaled into the frame."""
    batch = np.clip(variables[0], p.least_batch, p.max_batch)
    slots_s = [p.frame_s * share / max(1.0, share.sum()) for share in variables[1:]]
    return math.sqrt(batch.sum()) / p.round_s(batch, *slots_s)

"""Batch sizes and radio slots together: FEEL, by Ren, Yu and Ding.

The objective is sqrt(B) / (X + Y) (Eq. 17 and 30): B is the sum of all batches, X the time until
the last gradient is sent, Y the rest of the round, which does not depend on batches (Theorem 2).

For a given X the largest B is reached when learner k has y_k = clip(m * sqrt(air_s * slope_s))
seconds to send its gradient, clipped so that its batch stays within bounds, with one m that fills
the frame (Theorem 1: m is the square root of the multiplier). Let nu = m * m. B is concave in X
with B'(X) = nu * sum(air_s / y ** 2), so B' * (X + Y) - 2 * B falls, and its only zero is the
optimum. One search for X with one for m inside it replaces the paper's three; both are Newton's
method between two bounds. Values of the objective are never compared: near its peak they agree in
more digits than floats have.
"""

import math

import numpy as np

from melisma.allocation.feel.integer_batches import integer_batches
from melisma.allocation.feel.uplink import Uplink
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.slots import downlink_end_s, send_seconds, slots
from melisma.fleet.array_types import Floats

# Relative; the rounding of B' and B is a tenth of it in the largest fleets.
END_PRECISION = 1e-13


def feel(problem: RadioProblem, integral: bool = True, broadcast: bool = False) -> RadioPlan:
    """Return the plan of largest efficiency: whole batches, or the exact optimum in real ones.

    Whole batches are optimal in small fleets and near the optimum in large ones. The plan does not
    depend on the order of learners. `broadcast` is that of `slots`.
    """
    up, order = Uplink.from_problem(problem)
    rest_s = downlink_end_s(problem, broadcast)
    exact = _optimal_batches(up, rest_s)
    batch = np.empty(problem.learners, dtype=np.int64 if integral else np.float64)
    batch[order] = integer_batches(up, exact, rest_s) if integral else exact
    return slots(problem, batch, broadcast)


def _optimal_batches(up: Uplink, rest_s: float) -> Floats:
    """Return the real batches of largest sqrt(B) / (X + Y)."""
    last_s, is_best = _check_corner(up, up.most, rest_s)
    if is_best:
        return up.most
    first_s, is_best = _check_corner(up, up.least, rest_s)
    if is_best:
        return up.least
    return _solve_between(up, rest_s, first_s, last_s)


def _check_corner(up: Uplink, batch: Floats, rest_s: float) -> tuple[float, bool]:
    """Return the X of batches that are all at a bound, and whether they are optimal.

    There m may be any value at which no learner leaves its bound, and one such m must give
    B' * (X + Y) = 2 * B.
    """
    busy_s = up.seconds(batch)
    send_s = send_seconds(up.air_s, busy_s)
    end_s = float(busy_s.max()) + float(send_s.min())
    m, steepness = send_s / up.root_s, float((up.air_s / send_s**2).sum())
    lowest = float(m[batch < up.most].max(initial=0.0))
    highest = float(m[batch > up.least].min(initial=math.inf))
    wanted = math.sqrt(2 * float(batch.sum()) / (steepness * (end_s + rest_s)))
    return end_s, lowest <= wanted <= highest


def _solve_between(up: Uplink, rest_s: float, first_s: float, last_s: float) -> Floats:
    """Return the batches at the zero of B' * (X + Y) - 2 * B between `first_s` and `last_s`."""
    level = 1.0 / float(up.weight.sum())
    end_s = _end_s_without_bounds(up, rest_s, level)
    while True:
        if not first_s < end_s < last_s:
            end_s = (first_s + last_s) / 2
        point = up.best(end_s, level)
        gain = point.slope * (end_s + rest_s) - 2 * point.total
        first_s, last_s = (end_s, last_s) if gain > 0 else (first_s, end_s)
        step_s = gain / (point.slope - point.curve * (end_s + rest_s))
        if min(abs(step_s), last_s - first_s) <= END_PRECISION * end_s:
            return point.batch
        level = point.level + point.level_slope * step_s
        end_s += step_s
        if not first_s < end_s < last_s:
            # B' may jump where all batches are at a bound, and a jump has no tangent.
            corner = np.where(2 * point.batch > up.least + up.most, up.most, up.least)
            if _check_corner(up, corner, rest_s)[1]:
                return corner


def _end_s_without_bounds(up: Uplink, rest_s: float, level: float) -> float:
    """Return the best X without bounds on batches (case B of Appendix B): there B is linear."""
    lost = (up.least_s + up.root_s / level) / up.slope_s - up.least
    return rest_s + 2.0 * float(lost.sum()) / float((1.0 / up.slope_s).sum())

"""Batch sizes and radio slots together: FEEL, by Ren, Yu and Ding.

What is maximised is sqrt(B) / (X + Y) (Eq. 17 and 30): B is the sum of all batches, X the time
until the last gradient is up, Y the rest of the round, which no batch changes (Theorem 2).

For a given X the largest B is reached when learner k has y_k = clip(m * sqrt(air_s * slope_s))
seconds to send its gradient, cut so that its batch stays within bounds, with one m that fills the
frame (Theorem 1: m is the square root of the multiplier). Let nu = m * m. B is concave in X with
B'(X) = nu * sum(air_s / y ** 2), so B' * (X + Y) - 2 * B falls, and its only zero is the optimum.
One search for X with one for m inside it replaces the paper's three; both are Newton's method
between two bounds. Values of the objective are never compared: near its peak they agree in more
digits than they have.
"""

import math

import numpy as np

from melisma.allocation.checks import Floats
from melisma.allocation.feel.uplink import Uplink
from melisma.allocation.feel.whole import whole
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.slots import downlink_end_s, send_seconds, slots

# Relative; what rounding leaves of B' and B is a tenth of it in the largest fleets.
CLOSE = 1e-13


def feel(problem: RadioProblem, integral: bool = True, broadcast: bool = False) -> RadioPlan:
    """The plan of largest efficiency: whole batches, or with `integral=False` the exact optimum.

    Whole batches are the best of all in small fleets and close to it in large ones. The same
    learners in another order get the same plan. `broadcast` is that of `slots`.
    """
    up, order = Uplink.of(problem)
    rest_s = downlink_end_s(problem, broadcast)
    exact = _exact(up, rest_s)
    batch = np.empty(problem.learners, dtype=np.int64 if integral else np.float64)
    batch[order] = whole(up, exact, rest_s) if integral else exact
    return slots(problem, batch, broadcast)


def _exact(up: Uplink, rest_s: float) -> Floats:
    """The batches, real numbers, of largest sqrt(B) / (X + Y)."""
    last_s, is_best = _corner(up, up.most, rest_s)
    if is_best:
        return up.most
    first_s, is_best = _corner(up, up.least, rest_s)
    if is_best:
        return up.least
    return _between(up, rest_s, first_s, last_s)


def _corner(up: Uplink, batch: Floats, rest_s: float) -> tuple[float, bool]:
    """X of batches that are all at a bound, and whether they are the optimum.

    There m may be anything that gives nobody a reason to leave its bound, and one such m must
    make B' * (X + Y) = 2 * B.
    """
    busy_s = up.seconds(batch)
    send_s = send_seconds(up.air_s, busy_s)
    end_s = float(busy_s.max()) + float(send_s.min())
    m, steep = send_s / up.root_s, float((up.air_s / send_s**2).sum())
    lowest = float(m[batch < up.most].max(initial=0.0))
    highest = float(m[batch > up.least].min(initial=math.inf))
    wanted = math.sqrt(2 * float(batch.sum()) / (steep * (end_s + rest_s)))
    return end_s, lowest <= wanted <= highest


def _between(up: Uplink, rest_s: float, first_s: float, last_s: float) -> Floats:
    """The batches at the zero of B' * (X + Y) - 2 * B, which falls from `first_s` to `last_s`."""
    level = 1.0 / float(up.weight.sum())
    now_s = _unbounded_end_s(up, rest_s, level)
    while True:
        if not first_s < now_s < last_s:
            now_s = (first_s + last_s) / 2
        here = up.best(now_s, level)
        gain = here.slope * (now_s + rest_s) - 2 * here.total
        first_s, last_s = (now_s, last_s) if gain > 0 else (first_s, now_s)
        step_s = gain / (here.slope - here.curve * (now_s + rest_s))
        if min(abs(step_s), last_s - first_s) <= CLOSE * now_s:
            return here.batch
        level = here.level + here.level_slope * step_s
        now_s += step_s
        if not first_s < now_s < last_s:
            # B' may jump where all are at a bound, and a jump has no tangent to follow.
            corner = np.where(2 * here.batch > up.least + up.most, up.most, up.least)
            if _corner(up, corner, rest_s)[1]:
                return corner


def _unbounded_end_s(up: Uplink, rest_s: float, level: float) -> float:
    """The best X if batches had no bounds (case B of Appendix B): there B is a straight line."""
    lost = (up.least_s + up.root_s / level) / up.slope_s - up.least
    return rest_s + 2.0 * float(lost.sum()) / float((1.0 / up.slope_s).sum())

"""Whole batches of largest efficiency, from the exact optimum of FEEL.

For a given sum of batches the earliest X is found by moving units: from learners whose last unit
takes most of the frame to learners whose next unit takes least. Shares of the frame are convex in
each batch, so if no move helps at X, no other plan of that sum is ready by X.

The sums to try are known beforehand. In the exact problem X is convex in B, and its tangent at the
optimum B* bounds the efficiency of any other sum B by 2 * sqrt(r) / (1 + r) of the optimum, with
r = B / B*. Where few sums are left, all are tried and the result is optimal. Where many are left,
some are tried, at equal strides and then closer to the best of them. The search starts from the
best of several plans: in a fleet of identical learners one additional unit makes all others wait,
so there the same batch for all is good.
"""

import math
from typing import NamedTuple

import numpy as np

from melisma.allocation.feel.uplink import Uplink
from melisma.allocation.slots import common_end_s
from melisma.fleet.array_types import Bools, Floats, Ints

# Up to this number all sums are tried; otherwise in strides of this fraction of the optimal sum.
MAX_SUMS, STRIDE = 64, 1 / 256
# Shorter strides tried on either side of the best one.
REFINED_STRIDES = 4
# Strides times learners; large fleets get fewer strides.
MAX_VISITS = 100_000
# Improvements below the first fraction are not searched for; in strides, below the second.
MIN_GAIN, MIN_STRIDE_GAIN = 1e-6, 1e-4


class _Plan(NamedTuple):
    batch: Floats
    end_s: float
    efficiency: float


def integer_batches(up: Uplink, exact: Floats, rest_s: float) -> Ints:
    """Return the best whole batches within the bounds; in a large fleet, nearly the best."""
    ideal = _evaluate(up, exact, rest_s)
    best = _balance(up, _round(up, ideal), rest_s)
    for batch in (np.floor(exact), np.ceil(exact), up.least, up.most):
        best = _better(best, _evaluate(up, batch, rest_s))
    return _search_sums(up, ideal, best, rest_s).batch.astype(np.int64)


def _evaluate(up: Uplink, batch: Floats, rest_s: float) -> _Plan:
    end_s = common_end_s(up.air_s, up.seconds(batch))
    return _Plan(batch, end_s, math.sqrt(float(batch.sum())) / (end_s + rest_s))


def _better(plan: _Plan, other: _Plan) -> _Plan:
    return other if other.efficiency > plan.efficiency else plan


def _round(up: Uplink, ideal: _Plan) -> Floats:
    """Round to about the same sum, up where that takes least of the frame."""
    batch = np.floor(ideal.batch)
    cheapest = _sort_by_cost(_next_share(up, batch, ideal.end_s), ideal.batch > batch)
    batch[cheapest[: round(float((ideal.batch - batch).sum()))]] += 1
    return batch


def _balance(up: Uplink, batch: Floats, rest_s: float) -> _Plan:
    """Return the plan of the same sum that is ready first."""
    best = _evaluate(up, batch, rest_s)
    while True:
        more = _share_of_next(up, best.batch, best.end_s)
        less = _share_of_last(up, best.batch, best.end_s)
        to = _sort_by_cost(more, more < less.max())
        of = _sort_by_cost(-less, less > more.min())
        pairs = min(to.size, of.size)
        # A learner's next unit costs more than its last, so no learner is in two useful pairs.
        useful = int(np.count_nonzero(more[to[:pairs]] < less[of[:pairs]]))
        batch = best.batch.copy()
        batch[to[:useful]] += 1
        batch[of[:useful]] -= 1
        moved = _evaluate(up, batch, rest_s)
        if moved.end_s >= best.end_s:
            return best
        best = moved


def _search_sums(up: Uplink, ideal: _Plan, best: _Plan, rest_s: float) -> _Plan:
    """Return the best plan of all promising sums if they are few, otherwise of some of them."""
    low, high = _promising_sums(ideal, best)
    if high - low <= MAX_SUMS:
        return _walk(up, ideal, best, rest_s, 1, MAX_SUMS)
    if best.efficiency > (1 - MIN_STRIDE_GAIN) * ideal.efficiency:
        return best
    learners = best.batch.size
    stride = min(math.ceil(STRIDE * float(ideal.batch.sum())), learners)
    best = _walk(up, ideal, best, rest_s, stride, MAX_VISITS // learners)
    while stride > 1 and learners <= MAX_VISITS // MAX_SUMS:
        stride = math.ceil(stride / REFINED_STRIDES)
        best = _walk(up, ideal, best, rest_s, stride, REFINED_STRIDES)
    return best


def _promising_sums(ideal: _Plan, plan: _Plan) -> tuple[float, float]:
    """Return the sums between which 2 * sqrt(r) / (1 + r) allows a better plan."""
    part = min(1.0, plan.efficiency * (1.0 + MIN_GAIN) / ideal.efficiency)
    root = (1.0 + math.sqrt(1.0 - part**2)) / part
    optimal = float(ideal.batch.sum())
    return optimal / root**2, optimal * root**2


def _walk(up: Uplink, ideal: _Plan, start: _Plan, rest_s: float, stride: int, steps: int) -> _Plan:
    """Return the best plan whose sum is at most `steps` strides from that of `start`."""
    best = start
    for units in (stride, -stride):
        plan = start
        for _ in range(steps):
            low, high = _promising_sums(ideal, best)
            movable = plan.batch < up.most if units > 0 else plan.batch > up.least
            total = float(plan.batch.sum())
            if (total >= high if units > 0 else total <= low) or not movable.any():
                break
            plan = _balance(up, _change_sum(up, plan, units), rest_s)
            best = _better(best, plan)
    return best


def _change_sum(up: Uplink, plan: _Plan, units: int) -> Floats:
    """Add units where each costs least, or remove units where each costs most."""
    batch: Floats = plan.batch.copy()
    if units > 0:
        movable = batch < up.most
        # Later by the smallest step: otherwise a unit might fit nowhere and have no finite cost.
        later_s = plan.end_s + float(up.slope_s[movable].min())
        chosen = _sort_by_cost(_share_of_next(up, batch, later_s), movable)[:units]
        batch[chosen] += 1
    else:
        last = _share_of_last(up, batch, plan.end_s)
        chosen = _sort_by_cost(-last, batch > up.least)[:-units]
        batch[chosen] -= 1
    return batch


def _sort_by_cost(cost: Floats, allowed: Bools) -> Ints:
    chosen = np.flatnonzero(allowed)
    return chosen[np.argsort(cost[chosen], kind="stable")]


def _share_of_next(up: Uplink, batch: Floats, end_s: float) -> Floats:
    """Return the share of the frame that each learner's next unit takes."""
    return np.where(batch < up.most, _next_share(up, batch, end_s), math.inf)


def _share_of_last(up: Uplink, batch: Floats, end_s: float) -> Floats:
    """Return the share of the frame that each learner's last unit takes."""
    return np.where(batch > up.least, _next_share(up, batch - 1, end_s), -math.inf)


def _next_share(up: Uplink, batch: Floats, end_s: float) -> Floats:
    """Return the share for one unit more if all still end at `end_s`; infinite if impossible."""
    send_s = end_s - up.seconds(batch)
    left_s = send_s - up.slope_s
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = up.air_s / send_s * (up.slope_s / left_s)
    return np.where(left_s > 0, share, math.inf)

"""Whole batches of largest efficiency, from the exact optimum of FEEL.

For a given sum of batches the earliest X is found by moving units: from learners whose last one
takes most of the frame to learners whose next one takes least. Shares of the frame are convex in
each batch, so where no move pays at X no other plan of that sum is ready by X.

Which sums come into question is known beforehand. In the exact problem X is convex in B, and its
tangent at the optimum B* says of any other sum B that its efficiency is at most
2 * sqrt(r) / (1 + r) of the optimum, with r = B / B*. Where few sums are left, all are tried and
the best plan is the best of all. Where many are left, plans for a few X around the exact one are
compared first: for a given X the best whole batches are those whose units take least of the frame.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.feel_uplink import Uplink
from melisma.allocation.slots import end_s

# So many sums on either side of B* are tried one by one; if that is not all, only a few.
MOST_SUMS, FEW_SUMS = 32, 4
# One unit more or less is not worth looking for among more than these.
FEW_UNITS = 100_000
# Nor is a plan that is better by less than this part.
LEAST_GAIN = 1e-6


class _Plan(NamedTuple):
    batch: Floats
    end_s: float
    efficiency: float


def whole(up: Uplink, exact: Floats, rest_s: float) -> Ints:
    """The best whole batches within the bounds; in a large fleet, close to the best."""
    ideal = _plan(up, exact, rest_s)
    best = _settled(up, _rounded(up, ideal), rest_s)
    if _reach(ideal, best) > MOST_SUMS:
        best = max(best, _climbed(up, ideal, rest_s), key=lambda plan: plan.efficiency)
    if float(exact.sum()) <= FEW_UNITS:
        best = _scanned(up, ideal, best, rest_s)
    return best.batch.astype(np.int64)


def _loss(ideal: _Plan, plan: _Plan) -> float:
    return max(0.0, 1.0 - plan.efficiency / ideal.efficiency)


def _reach(ideal: _Plan, plan: _Plan) -> float:
    """How far from B* a better sum can be: the bound is about 1 - (r - 1) ** 2 / 8."""
    return math.sqrt(8 * _loss(ideal, plan)) * float(ideal.batch.sum())


def _plan(up: Uplink, batch: Floats, rest_s: float) -> _Plan:
    now_s = end_s(up.air_s, up.seconds(batch))
    return _Plan(batch, now_s, math.sqrt(float(batch.sum())) / (now_s + rest_s))


def _rounded(up: Uplink, ideal: _Plan) -> Floats:
    """Whole batches of about the same sum, rounded up where that takes least of the frame."""
    batch = np.floor(ideal.batch)
    cheapest = _sorted(_next_share(up, batch, ideal.end_s), ideal.batch > batch)
    batch[cheapest[: round(float((ideal.batch - batch).sum()))]] += 1
    return batch


def _settled(up: Uplink, batch: Floats, rest_s: float) -> _Plan:
    """The plan of the same sum that is ready first."""
    found = _plan(up, batch, rest_s)
    while True:
        more, less = _more(up, found.batch, found.end_s), _less(up, found.batch, found.end_s)
        to = _sorted(more, more < less.max())
        of = _sorted(-less, less > more.min())
        pairs = min(to.size, of.size)
        # A learner's next unit costs more than its last, so nobody is in two pairs that pay.
        paying = int(np.count_nonzero(more[to[:pairs]] < less[of[:pairs]]))
        batch = found.batch.copy()
        batch[to[:paying]] += 1
        batch[of[:paying]] -= 1
        moved = _plan(up, batch, rest_s)
        if moved.end_s >= found.end_s:
            return found
        found = moved


def _scanned(up: Uplink, ideal: _Plan, start: _Plan, rest_s: float) -> _Plan:
    """Sum after sum from that of `start` outwards, until the bound excludes the others."""
    best, wanted = start, float(ideal.batch.sum())
    sums = MOST_SUMS if _reach(ideal, start) <= MOST_SUMS else FEW_SUMS
    for unit in (1, -1):
        here = start
        for _ in range(sums):
            ratio = max(0.0, float(here.batch.sum()) + unit) / wanted
            bound = ideal.efficiency * 2.0 * math.sqrt(ratio) / (1.0 + ratio)
            movable = here.batch < up.most if unit > 0 else here.batch > up.least
            if bound <= best.efficiency * (1.0 + LEAST_GAIN) or not movable.any():
                break
            here = _settled(up, _stepped(up, here, unit), rest_s)
            best = here if here.efficiency > best.efficiency else best
    return best


def _stepped(up: Uplink, plan: _Plan, unit: int) -> Floats:
    """One unit more where it costs least, or one less where it costs most."""
    batch = plan.batch.copy()
    if unit > 0:
        movable = np.flatnonzero(batch < up.most)
        # Later by the smallest step, or the unit might fit nowhere and no cost were known.
        later_s = plan.end_s + float(up.slope_s[movable].min())
        chosen = movable[_more(up, batch, later_s)[movable].argmin()]
    else:
        chosen = _less(up, batch, plan.end_s).argmax()
    batch[chosen] += unit
    return batch


def _climbed(up: Uplink, ideal: _Plan, rest_s: float) -> _Plan:
    """The best of the plans by several X around the exact one, ever closer to the best of them."""
    bounds_s = end_s(up.air_s, up.least_s), end_s(up.air_s, up.most_s)
    best, best_s = _fitted(up, ideal.end_s, rest_s), ideal.end_s
    stride = math.sqrt(2 * _loss(ideal, best)) / 2
    while stride**2 / 2 > LEAST_GAIN:
        for sign in (-1, 1):
            tried_s = min(max(best_s + sign * stride * (best_s + rest_s), bounds_s[0]), bounds_s[1])
            tried = _fitted(up, tried_s, rest_s)
            if tried.efficiency > best.efficiency:
                best, best_s = tried, tried_s
                break
        stride /= 3
    return _settled(up, best.batch, rest_s)


def _fitted(up: Uplink, by_s: float, rest_s: float) -> _Plan:
    """Whole batches, about the largest that are all up at `by_s`."""
    exact = up.best(by_s, 1.0 / float(up.weight.sum())).batch
    batch = np.floor(exact)
    cheapest = _sorted(cost := _next_share(up, batch, by_s), exact > batch)
    shares = up.air_s / np.maximum(by_s - up.seconds(batch), up.air_s)
    used = float(shares.sum()) + np.cumsum(cost[cheapest])
    batch[cheapest[: np.searchsorted(used, 1.0, side="right")]] += 1
    return _plan(up, batch, rest_s)


def _sorted(cost: Floats, among: NDArray[np.bool_]) -> Ints:
    chosen = np.flatnonzero(among)
    return chosen[np.argsort(cost[chosen], kind="stable")]


def _more(up: Uplink, batch: Floats, now_s: float) -> Floats:
    """The share of the frame that each learner's next unit takes."""
    return np.where(batch < up.most, _next_share(up, batch, now_s), math.inf)


def _less(up: Uplink, batch: Floats, now_s: float) -> Floats:
    """The share of the frame that each learner's last unit takes."""
    return np.where(batch > up.least, _next_share(up, batch - 1, now_s), -math.inf)


def _next_share(up: Uplink, batch: Floats, now_s: float) -> Floats:
    """What one unit more takes if all still end at `now_s`; infinite if that cannot be."""
    send_s = now_s - up.seconds(batch)
    left_s = send_s - up.slope_s
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = up.air_s / send_s * (up.slope_s / left_s)
    return np.where(left_s > 0, share, math.inf)

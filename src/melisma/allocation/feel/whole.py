"""Whole batches of largest efficiency, from the exact optimum of FEEL.

For a given sum of batches the earliest X is found by moving units: from learners whose last one
takes most of the frame to learners whose next one takes least. Shares of the frame are convex in
each batch, so where no move pays at X no other plan of that sum is ready by X.

Which sums come into question is known beforehand. In the exact problem X is convex in B, and its
tangent at the optimum B* says of any other sum B that its efficiency is at most
2 * sqrt(r) / (1 + r) of the optimum, with r = B / B*. Where few sums are left, all are tried and
the best plan is the best of all. Where many are left, some are, at equal strides and then ever
closer to the best of them. The search starts from the best of several plans: in a fleet of like
learners one with a unit more keeps all others waiting, so there the same batch for all is good.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.feel.uplink import Uplink
from melisma.allocation.slots import common_end_s

# So many sums or fewer are tried one by one; more in strides of this part of them all.
MOST_SUMS, STRIDE = 64, 1 / 256
# Around the best of a stride so many shorter ones are tried on either side.
FEW_SUMS = 4
# In large fleets fewer strides: their number times learners.
MOST_VISITS = 100_000
# A plan that is better by less than this part is not looked for; nor, in strides, by the other.
LEAST_GAIN, LEAST_LOSS = 1e-6, 1e-4


class _Plan(NamedTuple):
    batch: Floats
    end_s: float
    efficiency: float


def whole(up: Uplink, exact: Floats, rest_s: float) -> Ints:
    """The best whole batches within the bounds; in a large fleet, close to the best."""
    ideal = _plan(up, exact, rest_s)
    best = _settled(up, _rounded(up, ideal), rest_s)
    for alike in (np.floor(exact), np.ceil(exact), up.least, up.most):
        best = _better(best, _plan(up, alike, rest_s))
    return _scanned(up, ideal, best, rest_s).batch.astype(np.int64)


def _better(plan: _Plan, other: _Plan) -> _Plan:
    return other if other.efficiency > plan.efficiency else plan


def _reach(ideal: _Plan, plan: _Plan) -> tuple[float, float]:
    """Between which sums a better plan can be: where 2 * sqrt(r) / (1 + r) is large enough."""
    part = min(1.0, plan.efficiency * (1.0 + LEAST_GAIN) / ideal.efficiency)
    root = (1.0 + math.sqrt(1.0 - part**2)) / part
    wanted = float(ideal.batch.sum())
    return wanted / root**2, wanted * root**2


def _plan(up: Uplink, batch: Floats, rest_s: float) -> _Plan:
    now_s = common_end_s(up.air_s, up.seconds(batch))
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


def _scanned(up: Uplink, ideal: _Plan, best: _Plan, rest_s: float) -> _Plan:
    """The best plan of all sums within reach if they are few, else of some, ever closer."""
    low, high = _reach(ideal, best)
    if high - low <= MOST_SUMS:
        return _walked(up, ideal, best, rest_s, 1, MOST_SUMS)
    if best.efficiency > (1 - LEAST_LOSS) * ideal.efficiency:
        return best
    learners = best.batch.size
    stride = min(math.ceil(STRIDE * float(ideal.batch.sum())), learners)
    best = _walked(up, ideal, best, rest_s, stride, MOST_VISITS // learners)
    while stride > 1 and learners <= MOST_VISITS // MOST_SUMS:
        stride = math.ceil(stride / FEW_SUMS)
        best = _walked(up, ideal, best, rest_s, stride, FEW_SUMS)
    return best


def _walked(
    up: Uplink, ideal: _Plan, start: _Plan, rest_s: float, stride: int, steps: int
) -> _Plan:
    """The best plan of those whose sums are so many strides or fewer from that of `start`."""
    best = start
    for units in (stride, -stride):
        here = start
        for _ in range(steps):
            low, high = _reach(ideal, best)
            movable = here.batch < up.most if units > 0 else here.batch > up.least
            total = float(here.batch.sum())
            if (total >= high if units > 0 else total <= low) or not movable.any():
                break
            here = _settled(up, _stepped(up, here, units), rest_s)
            best = _better(best, here)
    return best


def _stepped(up: Uplink, plan: _Plan, units: int) -> Floats:
    """So many units more, where each costs least, or less, where each costs most."""
    batch = plan.batch.copy()
    if units > 0:
        movable = batch < up.most
        # Later by the smallest step, or a unit might fit nowhere and no cost were known.
        later_s = plan.end_s + float(up.slope_s[movable].min())
        chosen = _sorted(_more(up, batch, later_s), movable)[:units]
        batch[chosen] += 1
    else:
        chosen = _sorted(-_less(up, batch, plan.end_s), batch > up.least)[:-units]
        batch[chosen] -= 1
    return batch


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

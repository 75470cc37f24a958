"""The best slots for given batches: Theorem 2 of Ren, Yu and Ding, for both links.

A learner that needs `air_s` seconds to send with every frame to itself, and starts after `busy_s`
seconds, ends at X if its share of each frame is air_s / (X - busy_s). At the least X at which the
shares of all fit into one frame, all learners end together; it is the root of one equation.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import as_counts, as_floats, broadcast_to
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints

EPS = float(np.finfo(np.float64).eps)


def slots(problem: RadioProblem, batch: ArrayLike, broadcast: bool = False) -> RadioPlan:
    """Return the plan of least `round_s` with these batches, one for all learners or one for each.

    With `broadcast` the downlink is one transmission to all at the rate of the slowest, and each
    `downlink_slot_s` is the whole frame. Batches outside the learners' bounds are an error. Integer
    batches stay integers, and floats stay floats.
    """
    batches = _check_batches(problem, batch)
    up_s = problem.frame_s * _frame_shares(problem.uplink_s, problem.gradient_s(batches))
    if broadcast:
        down_s = np.full(problem.learners, problem.frame_s)
    else:
        down_s = problem.frame_s * _frame_shares(problem.downlink_s, problem.apply_s)
    for array in (up_s, down_s):
        array.setflags(write=False)
    round_s = problem.round_s(batches, up_s, down_s, broadcast)
    return RadioPlan(batches, up_s, down_s, round_s, math.sqrt(math.fsum(batches)) / round_s)


def online_batch(problem: RadioProblem) -> Ints:
    """Return the smallest batches: one sample each if `min_batch` is 1."""
    smallest: Ints = problem.min_batch.copy()
    return smallest


def full_batch(problem: RadioProblem) -> Ints:
    """Return the largest batches."""
    largest: Ints = problem.max_batch.copy()
    return largest


def random_batch(problem: RadioProblem, rng: np.random.Generator) -> Ints:
    """Return batches drawn uniformly within the bounds of each learner."""
    return rng.integers(problem.min_batch, problem.max_batch, endpoint=True)


def send_seconds(air_s: Floats, busy_s: Floats) -> Floats:
    """Return how long each learner sends if all end together as early as possible."""
    idle_s = float(busy_s.max()) - busy_s
    return idle_s + _solve_last_send_s(air_s, idle_s)


def common_end_s(air_s: Floats, busy_s: Floats) -> float:
    """Return the earliest time by which all have sent: the X with sum(air_s / (X - busy_s)) = 1."""
    latest_s = float(busy_s.max())
    return latest_s + _solve_last_send_s(air_s, latest_s - busy_s)


def downlink_end_s(problem: RadioProblem, broadcast: bool) -> float:
    """Return when all have received and applied the global gradient; independent of batches."""
    if broadcast:
        return float(problem.downlink_s.max() + problem.apply_s.max())
    order = np.lexsort((problem.apply_s, problem.downlink_s))
    return common_end_s(problem.downlink_s[order], problem.apply_s[order])


def _frame_shares(air_s: Floats, busy_s: Floats) -> Floats:
    """Return each learner's share of a frame such that all end together."""
    # Sorted by value, so that sums do not depend on the order of learners.
    order = np.lexsort((busy_s, air_s))
    in_order = air_s[order] / send_seconds(air_s[order], busy_s[order])
    # Slots fit into the frame in whatever order they are summed.
    total = 1.0 - (in_order.size + 4) * EPS
    shares = np.empty_like(in_order)
    shares[order] = in_order * (total / in_order.sum())
    return shares


def _solve_last_send_s(air_s: Floats, idle_s: Floats) -> float:
    """Return the root d of sum(air_s / (d + idle_s)) = 1, where the smallest `idle_s` is 0.

    1 / sum(...) is a harmonic mean of linear functions, so it is concave: Newton's steps on it
    approach the root from below.
    """
    # At least the time of each learner alone in the frame, and of the mean of all learners.
    total_s = float(air_s.sum())
    mean_s = float((air_s * idle_s).sum()) / total_s
    root_s = max(float((air_s - idle_s).max()), total_s - mean_s)
    while True:
        send_s = root_s + idle_s
        shares = air_s / send_s
        used = float(shares.sum())
        step_s = used * (used - 1.0) / float((shares / send_s).sum())
        if step_s <= 2 * EPS * root_s:
            return root_s
        root_s += step_s


def _check_batches(problem: RadioProblem, batch: ArrayLike) -> Ints | Floats:
    floats = as_floats("batch", batch)
    fields = {
        "batch": as_counts("batch", batch) if np.asarray(batch).dtype.kind in "iu" else floats
    }
    batches: Ints | Floats = broadcast_to((problem.learners,), fields)["batch"]
    outside = np.flatnonzero((batches < problem.min_batch) | (batches > problem.max_batch))
    if outside.size:
        k = int(outside[0])
        low, high = int(problem.min_batch[k]), int(problem.max_batch[k])
        raise SettingError(f"batch[{k}] is {batches[k]}; expected {low} to {high}, its bounds")
    return batches

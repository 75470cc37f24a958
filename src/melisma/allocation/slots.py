"""The best slots for batches that are given: Theorem 2 of Ren, Yu and Ding, for both links.

Whoever sends for `air_s` seconds with every frame to itself, after `busy_s` seconds, ends at X if
its share of each frame is air_s / (X - busy_s). The least X at which the shares of all fit into
one frame lets everybody end together, and is one root.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import Floats, Ints, as_counts, as_floats, broadcast_to
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.errors import SettingError

EPS = float(np.finfo(np.float64).eps)


def slots(problem: RadioProblem, batch: ArrayLike, broadcast: bool = False) -> RadioPlan:
    """The plan of least `round_s` with these batches, one for all learners or one for each.

    In a broadcast the downlink is one transmission to all, at the rate of the slowest, and each
    `downlink_slot_s` is the whole frame. Batches outside the learners' bounds are refused. Those of
    the plan are of the kind given: whole numbers stay so, and floats do.
    """
    taken = _batches(problem, batch)
    up_s = problem.frame_s * _shares(problem.uplink_s, problem.gradient_s(taken))
    if broadcast:
        down_s = np.full(problem.learners, problem.frame_s)
    else:
        down_s = problem.frame_s * _shares(problem.downlink_s, problem.apply_s)
    for array in (up_s, down_s):
        array.setflags(write=False)
    round_s = problem.round_s(taken, up_s, down_s, broadcast)
    return RadioPlan(taken, up_s, down_s, round_s, math.sqrt(math.fsum(taken)) / round_s)


def online_batch(problem: RadioProblem) -> Ints:
    """Smallest batches: one sample each, as long as `min_batch` is 1."""
    return problem.min_batch.copy()


def full_batch(problem: RadioProblem) -> Ints:
    """Largest batches."""
    return problem.max_batch.copy()


def random_batch(problem: RadioProblem, rng: np.random.Generator) -> Ints:
    """Batches drawn uniformly within the bounds of each learner."""
    return rng.integers(problem.min_batch, problem.max_batch, endpoint=True)


def send_seconds(air_s: Floats, busy_s: Floats) -> Floats:
    """How long each sends if all end together and as soon as a frame for all allows."""
    idle_s = float(busy_s.max()) - busy_s
    return idle_s + _beyond(air_s, idle_s)


def common_end_s(air_s: Floats, busy_s: Floats) -> float:
    """When all have sent, at the earliest: the X with sum(air_s / (X - busy_s)) = 1."""
    latest_s = float(busy_s.max())
    return latest_s + _beyond(air_s, latest_s - busy_s)


def downlink_end_s(problem: RadioProblem, broadcast: bool) -> float:
    """When all have the global gradient and have applied it; no batch changes that."""
    if broadcast:
        return float(problem.downlink_s.max() + problem.apply_s.max())
    order = np.lexsort((problem.apply_s, problem.downlink_s))
    return common_end_s(problem.downlink_s[order], problem.apply_s[order])


def _shares(air_s: Floats, busy_s: Floats) -> Floats:
    """Each learner's share of a frame, so that all end together."""
    # In an order that the learners' own figures decide, so that sums are the same in any other.
    order = np.lexsort((busy_s, air_s))
    in_order = air_s[order] / send_seconds(air_s[order], busy_s[order])
    # Slots fit into the frame in whatever order and way they are added up.
    room = 1.0 - (in_order.size + 4) * EPS
    shares = np.empty_like(in_order)
    shares[order] = in_order * (room / in_order.sum())
    return shares


def _beyond(air_s: Floats, idle_s: Floats) -> float:
    """The root d of sum(air_s / (d + idle_s)) = 1, where the smallest `idle_s` is 0.

    1 / sum(...) is a harmonic mean of straight lines, so concave: Newton's steps on it come from
    below and never pass the root.
    """
    # No less than with each alone in the frame, nor than with the mean of all for everybody's.
    at_once_s = float(air_s.sum())
    mean_s = float((air_s * idle_s).sum()) / at_once_s
    beyond_s = max(float((air_s - idle_s).max()), at_once_s - mean_s)
    while True:
        sent_s = beyond_s + idle_s
        shares = air_s / sent_s
        used = float(shares.sum())
        step_s = used * (used - 1.0) / float((shares / sent_s).sum())
        if step_s <= 2 * EPS * beyond_s:
            return beyond_s
        beyond_s += step_s


def _batches(problem: RadioProblem, batch: ArrayLike) -> Ints | Floats:
    given = as_floats("batch", batch)
    fields = {"batch": as_counts("batch", batch) if np.asarray(batch).dtype.kind in "iu" else given}
    taken: Ints | Floats = broadcast_to((problem.learners,), fields)["batch"]
    outside = np.flatnonzero((taken < problem.min_batch) | (taken > problem.max_batch))
    if outside.size:
        k = int(outside[0])
        low, high = int(problem.min_batch[k]), int(problem.max_batch[k])
        raise SettingError(f"batch[{k}] is {taken[k]}; expected {low} to {high}, its bounds")
    return taken

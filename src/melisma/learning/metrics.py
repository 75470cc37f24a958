"""The metrics of the papers, computed from what a run did.

Cycles and learners are arrays. NaN means unknown or undefined: a cycle without an update has no
time. A metric over no values is NaN, not 0 or 1.
"""

import numpy as np
from numpy.typing import ArrayLike

from melisma.fleet.array_types import Floats


def truancy(cycle_s: ArrayLike, deadline_s: ArrayLike) -> Floats:
    """Time of each cycle past its deadline, divided by the deadline; NaN without a time."""
    cycle, deadline = _floats(cycle_s), _floats(deadline_s)
    return np.maximum(0.0, cycle - deadline) / deadline


def mean_truancy(cycle_s: ArrayLike, deadline_s: ArrayLike) -> float:
    """Mean truancy of the cycles that have a time."""
    return mean_known(truancy(cycle_s, deadline_s))


def satisfaction(ended_s: ArrayLike, deadline_s: ArrayLike) -> float:
    """Share of cycles that ended by the deadline; a cycle without a time did not."""
    ended, deadline = np.broadcast_arrays(_floats(ended_s), _floats(deadline_s))
    return float(np.mean(ended <= deadline)) if ended.size else np.nan


def training_s(cycle_s: ArrayLike) -> float:
    """Total seconds of the cycles that have a time."""
    known = _without_nan(cycle_s)
    return float(known.sum()) if known.size else np.nan


def fulfilment(done: ArrayLike, planned: ArrayLike) -> float:
    """Share of the planned visits that were done, over all learners given.

    Visits of one learner beyond its plan do not make up for another; NaN if none were planned.
    """
    planned_visits, done_visits = _floats(planned), _floats(done)
    total = float(planned_visits.sum())
    return float(np.minimum(done_visits, planned_visits).sum()) / total if total > 0 else np.nan


def drop_rate(done: ArrayLike, planned: ArrayLike) -> float:
    """Share of the planned visits that were not done."""
    return 1.0 - fulfilment(done, planned)


def occupancy(busy_s: ArrayLike, cycle_s: ArrayLike) -> Floats:
    """Time of each learner in phases other than wait, divided by the cycle time.

    NaN if either is unknown or the cycle took no time; above 1 if a learner measured more time
    than the orchestrator.
    """
    busy, cycle = np.broadcast_arrays(_floats(busy_s), _floats(cycle_s))
    share = np.full(busy.shape, np.nan)
    np.divide(busy, cycle, out=share, where=cycle > 0)
    return share


def max_staleness(updates: ArrayLike) -> float:
    """Largest difference in updates between two learners; 0 for fewer than two learners.

    `updates` has a number for every learner with shards: 0 if it made no update, NaN if unknown.
    """
    known = _without_nan(updates)
    return float(known.max() - known.min()) if known.size else 0.0


def average_staleness(updates: ArrayLike) -> float:
    """Mean difference over all pairs of learners (Eq. 13 of Mohammad and Sorour).

    `updates` as for `max_staleness`.
    """
    known = np.sort(_without_nan(updates))
    if known.size < 2:
        return 0.0
    # In sorted order, value i is at least i others and at most the remaining ones.
    larger_than = np.arange(known.size) * 2 - (known.size - 1)
    return float(larger_than @ known) / (known.size * (known.size - 1) / 2)


def mean_known(values: ArrayLike) -> float:
    """Mean of the values that are not NaN; NaN without such values."""
    known = _without_nan(values)
    return float(known.mean()) if known.size else np.nan


def _without_nan(values: ArrayLike) -> Floats:
    floats = _floats(values)
    return floats[~np.isnan(floats)]


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64)

"""Capacity used: visits that count, divided by the visits that learners had time for.

Allowed visits = rate * (time from dispatch to deadline - fixed phases). The rate of a learner is
its visits divided by its train phase in this cycle; if it trained nothing, its latest known rate.
Fixed phases are fetching the model and uploading the update.

The time of a learner from its dispatch to the closing of the cycle is divided into `TIME_USES`::

    training, fixed       train phase; fetching the model and uploading
    fetching              stalled on shards
    waiting for work      load phase, and time in no other phase
    halted early          from the arrival of its update to the deadline, if it could have gone on
    waiting for others    from then on, or from the arrival if it had done all that it was given
    gone                  all of it, if no update was received

Phases that take longer than the time until the cycle closed are scaled down to it.
"""

import numpy as np

from melisma.cycle.events import PHASES
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.assignments import Assignments

TIME_USES = (
    *("training", "fixed", "fetching", "waiting for work"),
    *("halted early", "waiting for others", "gone"),
)
LOST_USES = TIME_USES[2:]
FETCH_MODEL, FETCH_SHARDS, LOAD, TRAIN, UPLOAD = (
    PHASES.index(name) for name in ("fetch model", "fetch shards", "load", "train", "upload")
)


class MeasuredRates:
    """The latest known rate of each learner, in visits per second, and its fixed phases."""

    def __init__(self) -> None:
        self._rate, self._fixed_s = np.empty(0), np.empty(0)

    def make_room(self, count: int) -> None:
        """Grow to at least `count` learners."""
        missing = count - self._rate.size
        if missing > 0:
            self._rate = np.concatenate([self._rate, np.full(missing, np.nan)])
            self._fixed_s = np.concatenate([self._fixed_s, np.zeros(missing)])

    def measure(self, learners: Ints, visits: Ints, phases: Floats) -> None:
        """Store rates and fixed phases of updates; without visits the rate stays."""
        train_s = phases[:, TRAIN]
        trained = np.flatnonzero((visits > 0) & (train_s > 0))
        self._rate[learners[trained]] = visits[trained] / train_s[trained]
        self._fixed_s[learners] = np.nan_to_num(phases[:, FETCH_MODEL] + phases[:, UPLOAD])

    def allowed_visits(self, learners: Ints, left_s: Floats | float) -> Floats:
        """Return the visits that learners can make in the seconds left; NaN if unknown."""
        train_s = np.maximum(left_s - self._fixed_s[learners], 0.0)
        allowed: Floats = self._rate[learners] * train_s
        return allowed


def visits_of_capacity(work: Assignments) -> Floats:
    """Return used and allowed visits of each assignment; both are 0 where nothing is known.

    Visits beyond the allowed ones do not make up for those of another learner.
    """
    allowed = np.nan_to_num(work.allowed_visits)
    return np.stack([np.minimum(work.counted_visits, allowed), allowed])


def capacity_used(used: Floats, allowed: Floats) -> Floats:
    """Return the capacity used; NaN where no visits were allowed."""
    share = np.full(np.shape(allowed), np.nan)
    np.divide(used, allowed, out=share, where=np.asarray(allowed) > 0)
    return share


def time_use_s(
    work: Assignments, deadline_at_s: float, closed_s: float, *, extension: bool
) -> Floats:
    """Return the seconds of each assignment by `TIME_USES`, from dispatch to `closed_s`.

    With `extension`, learners could go on until the deadline whatever they were given.
    """
    total_s = np.maximum(closed_s - work.dispatched_s, 0.0)
    answered = ~np.isnan(work.arrived_s)
    end_s = np.where(answered, np.minimum(work.arrived_s, closed_s), closed_s)
    span_s = np.clip(end_s - work.dispatched_s, 0.0, total_s)
    phases = np.nan_to_num(work.phases)
    busy_s = phases[:, 1:].sum(axis=1)
    scale = np.minimum(1.0, np.divide(span_s, busy_s, out=np.zeros(len(work)), where=busy_s > 0))
    halted = answered & (extension | (work.visits < work.planned_visits))
    left_s = np.clip(min(deadline_at_s, closed_s) - end_s, 0.0, total_s - span_s)
    halted_s = np.where(halted, left_s, 0.0)
    seconds = np.stack(
        [
            phases[:, TRAIN] * scale,
            (phases[:, FETCH_MODEL] + phases[:, UPLOAD]) * scale,
            phases[:, FETCH_SHARDS] * scale,
            phases[:, LOAD] * scale + np.maximum(span_s - busy_s * scale, 0.0),
            halted_s,
            total_s - span_s - halted_s,
            np.zeros(len(work)),
        ],
        axis=1,
    )
    seconds[~answered] = 0.0
    seconds[~answered, -1] = total_s[~answered]
    return seconds

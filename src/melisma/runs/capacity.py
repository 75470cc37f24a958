"""Capacity used and lost: the visits that learners had time for, and why some were not made.

Allowed visits = rate * (time from dispatch to deadline - fixed phases). The rate of a learner is
its visits divided by its train phase in this cycle; if it trained nothing, its latest known rate.
Fixed phases are fetching the model and uploading the update. Capacity used is the fraction of the
allowed visits that count.

The time of a learner from its dispatch to the deadline is divided into `TIME_USES`::

    training, fixed       train phase; fetching the model and uploading
    fetching              stalled on shards
    waiting for work      load phase, and time in no other phase
    halted early          from the arrival of its update on, if it could have gone on
    waiting for others    until the cycle closed, if it had done all that it was given
    closed early          from then on
    late                  all of it, if the cycle closed without its update, and no later one has it
    refused, dropped      all of it, if its update was refused, or its work was withdrawn
    gone                  all of it, if it left

All but the first two are `LOSSES`. Visits that were allowed but do not count are divided among the
losses in proportion to their time, so that the capacity used and the losses sum to 1. Phases that
take longer than the time until the deadline are scaled down to it.
"""

import numpy as np

from melisma.cycle.events import PHASES
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.assignments import Assignments, Status

# The loss of work whose update does not count.
LOSS_OF_STATUS: dict[Status, str] = {
    "late": "late",
    "refused": "refused",
    "dropped": "dropped",
    "left": "gone",
}
LOSSES = (
    *("fetching", "waiting for work", "halted early", "waiting for others", "closed early"),
    *LOSS_OF_STATUS.values(),
)
TIME_USES = ("training", "fixed", *LOSSES)
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


def fraction(part: Floats, whole: Floats | float) -> Floats:
    """Return parts as fractions of the whole; NaN where that is 0."""
    share = np.full(np.broadcast_shapes(np.shape(part), np.shape(whole)), np.nan)
    np.divide(part, whole, out=share, where=np.asarray(whole) > 0)
    return share


def shares_by_loss(lost: Floats, allowed: float) -> dict[str, float]:
    """Return lost visits as fractions of the allowed ones, by `LOSSES`; NaN if none were."""
    return dict(zip(LOSSES, fraction(lost, allowed).tolist(), strict=True))


def shares_by_use(seconds: Floats) -> dict[str, float]:
    """Return seconds as fractions of their sum, by `TIME_USES`; NaN if it is 0."""
    return dict(zip(TIME_USES, fraction(seconds, seconds.sum()).tolist(), strict=True))


def lost_visits(work: Assignments, use_s: Floats) -> Floats:
    """Return the allowed visits of each assignment that do not count, by `LOSSES`.

    `use_s` are the seconds of each assignment by `TIME_USES`.
    """
    used, allowed = visits_of_capacity(work)
    lost_s = use_s[:, len(TIME_USES) - len(LOSSES) :].copy()
    # The phases that a learner reports may leave no time to lose.
    lost_s[~lost_s.any(axis=1), LOSSES.index("waiting for work")] = 1.0
    lost: Floats = lost_s * ((allowed - used) / lost_s.sum(axis=1))[:, None]
    return lost


def time_use_s(
    work: Assignments, deadline_at_s: float, closed_s: float, *, extension: bool
) -> Floats:
    """Return the seconds of each assignment by `TIME_USES`, from its dispatch to the deadline.

    With `extension`, learners could go on until the deadline whatever they were given.
    """
    total_s = np.maximum(deadline_at_s - work.dispatched_s, 0.0)
    arrived_s = np.where(np.isnan(work.arrived_s), deadline_at_s, work.arrived_s)
    span_s = np.clip(arrived_s - work.dispatched_s, 0.0, total_s)
    seconds = np.concatenate(
        [_phases_s(work, span_s), _after_arrival_s(work, total_s - span_s, extension)], axis=1
    )
    closed_early_s = np.minimum(seconds[:, -1], max(deadline_at_s - closed_s, 0.0))
    seconds[:, -1] -= closed_early_s
    uncounted_s = np.zeros((len(work), len(LOSS_OF_STATUS)))
    for index, status in enumerate(LOSS_OF_STATUS):
        rows = work.with_status(status)
        uncounted_s[rows, index] = total_s[rows]
        seconds[rows], closed_early_s[rows] = 0.0, 0.0
    return np.concatenate([seconds, closed_early_s[:, None], uncounted_s], axis=1)


def _phases_s(work: Assignments, span_s: Floats) -> Floats:
    """Divide the seconds until the arrival: training, fixed, fetching, waiting for work."""
    phases = np.nan_to_num(work.phases)
    busy_s = phases[:, 1:].sum(axis=1)
    scale = np.minimum(1.0, np.divide(span_s, busy_s, out=np.zeros(len(work)), where=busy_s > 0))
    return np.stack(
        [
            phases[:, TRAIN] * scale,
            (phases[:, FETCH_MODEL] + phases[:, UPLOAD]) * scale,
            phases[:, FETCH_SHARDS] * scale,
            phases[:, LOAD] * scale + np.maximum(span_s - busy_s * scale, 0.0),
        ],
        axis=1,
    )


def _after_arrival_s(work: Assignments, left_s: Floats, extension: bool) -> Floats:
    """Divide the seconds after the arrival: halted early, or done with all that was given."""
    halted = extension | (work.visits < work.planned_visits)
    return np.stack([np.where(halted, left_s, 0.0), np.where(halted, 0.0, left_s)], axis=1)

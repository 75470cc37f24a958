"""Amounts when it is fixed who works for which task: exact, task by task.

With level h each learner of the task takes `least` shards, and the rest goes to the cheapest with
room: no other way costs less.
"""

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.learner_classes import Flags, LearnerClasses


def filled(kinds: LearnerClasses, need: Ints, counts: Ints, cap: Ints) -> Ints:
    """Rows x kinds: the cheapest shards for so many learners of each kind and their caps."""
    given = counts * kinds.least
    room = counts * cap - given
    ends = np.cumsum(room, axis=1)  # kinds are in the order of price
    rest = need - given.sum(axis=1)
    amounts: Ints = given + np.clip(rest[:, None] - (ends - room), 0, room)
    return amounts


def fill_cost(kinds: LearnerClasses, need: Ints, counts: Ints, cap: Ints) -> Floats:
    """What `filled` costs; infinite where the shards do not go into the caps."""
    given = counts * kinds.least
    full = counts * cap
    least, most = given.sum(axis=1), full.sum(axis=1)
    wrong = (least > need) | (most < need) | np.any(full < given, axis=1)
    return np.where(wrong, np.inf, filled(kinds, need, counts, cap) @ kinds.price)


def lowest_levels(kinds: LearnerClasses, counts: Ints) -> Floats:
    """For each task the first level at which its learners can do it; infinite if not in time."""
    every = np.arange(kinds.shape[0])
    low_s, high_s = np.zeros(every.size), kinds.deadline_s.copy()
    possible = _enough(kinds, counts, kinds.caps(every, high_s))
    # Until no number lies between the two: a deadline may be far beyond any level.
    while np.any((low_s < (middle_s := (low_s + high_s) / 2)) & (middle_s < high_s)):
        enough = _enough(kinds, counts, kinds.caps(every, middle_s))
        low_s, high_s = np.where(enough, low_s, middle_s), np.where(enough, middle_s, high_s)
    cap = kinds.caps(every, high_s)
    ends_s = np.where(counts * cap > 0, kinds.fixed_s + kinds.shard_s * cap, 0.0)
    return np.where(possible, ends_s.max(axis=1), np.inf)


def _enough(kinds: LearnerClasses, counts: Ints, cap: Ints) -> Flags:
    full, given = counts * cap, counts * kinds.least
    fits = np.all(full >= given, axis=1) & (given.sum(axis=1) <= kinds.need)
    enough: Flags = fits & (full.sum(axis=1) >= kinds.need)
    return enough

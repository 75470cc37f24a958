"""Devices that sleep: their clocks stand still, and what they are at takes longer by that."""

import numpy as np

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints
from melisma.fleet.availability import SLEEP, WAKE, Changes


class SleepSpans:
    """Spans of sleep of each learner, one learner's behind the other's, in their order."""

    def __init__(self, changes: Changes, learners: int) -> None:
        falls, wakes = (_of(changes, what) for what in (SLEEP, WAKE))
        self._counts = np.bincount(falls.learners, minlength=learners)
        self._starts = np.cumsum(self._counts) - self._counts
        self._from_s = falls.at_s
        # Who does not wake any more sleeps for ever.
        self._to_s = np.full(falls.at_s.size, np.inf)
        woken = np.bincount(wakes.learners, minlength=learners)
        nth = np.arange(wakes.at_s.size) - np.repeat(np.cumsum(woken) - woken, woken)
        self._to_s[np.repeat(self._starts, woken) + nth] = wakes.at_s

    def end_s(self, learners: Ints, begin_s: Floats, awake_s: Floats) -> Floats:
        """When so many seconds awake have passed for each of them, from that instant on.

        With none at all it is when each is awake next.
        """
        now_s, left_s = begin_s.copy(), awake_s.copy()
        span = self._starts[learners]
        last = span + self._counts[learners]
        at = np.flatnonzero(span < last)
        while at.size:
            from_s, to_s = self._from_s[span[at]], self._to_s[span[at]]
            # A span that is over does not count, one that it is in counts from here.
            before_s = np.maximum(from_s - now_s[at], 0.0)
            sleeps = (to_s > now_s[at]) & ((left_s[at] > before_s) | (from_s <= now_s[at]))
            now_s[at[sleeps]] = to_s[sleeps]
            left_s[at[sleeps]] -= before_s[sleeps]
            span[at] += 1
            at = at[(sleeps | (to_s <= now_s[at])) & (span[at] < last[at])]
        ends: Floats = now_s + left_s
        return ends


def _of(changes: Changes, what: int) -> Changes:
    """Changes of one kind, by learner, then by time."""
    some = changes.where(changes.what == what)
    order = np.lexsort((some.at_s, some.learners))
    return Changes(some.at_s[order], some.learners[order], some.what[order])

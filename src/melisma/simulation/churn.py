"""Churn: learners that join and leave, crash, restart and sleep, by hours and batteries too.

The orchestrator notices a missing learner at its next heartbeat; a learner that joins announces
itself. Learners that join or leave between two heartbeats do so as one group. While a device
sleeps its clock stands still, so its work ends later by the time it slept.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from melisma.cycle.restarts import restart_limit_s
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.availability import JOIN, LEAVE, SLEEP, WAKE, Changes
from melisma.fleet.fleet import Fleet
from melisma.simulation.faults import Fault
from melisma.simulation.kernel import EventQueue
from melisma.simulation.scenario import Scenario

HEARTBEATS_PER_DEADLINE = 20
# Why a learner that has not left for good cannot be up.
HOURS, BATTERY, CRASH = range(3)


class ChurnListener(Protocol):
    """The receiver of changes in presence."""

    def restart(self, learners: Ints) -> None:
        """Start these learners without any state."""

    def interrupt(self, learners: Ints) -> None:
        """Stop these learners from sending anything until they restart."""

    def resume(self, learners: Ints) -> None:
        """Let learners that restarted in time go on with their work."""

    def silence(self, learners: Ints) -> None:
        """Stop these learners from sending anything more; this is noticed in time."""

    def report_left(self, learners: Ints, reason: str) -> None:
        """Report that the orchestrator noticed these learners missing."""


class Churn:
    """Scheduled joins, departures and crashes; `present` marks the learners that are up now."""

    def __init__(
        self, scenario: Scenario, changes: Changes, queue: EventQueue, listener: ChurnListener
    ) -> None:
        self.present = scenario.fleet.present_at_start.copy()
        # Counts joins, departures and crashes: an action scheduled before the last one is void.
        self._epoch = np.zeros(scenario.fleet.learners, np.int64)
        self._queue, self._listener = queue, listener
        self._heartbeat_s = scenario.task.deadline_s / HEARTBEATS_PER_DEADLINE
        self._restart_limit_s = restart_limit_s(scenario.task.deadline_s)
        hours = scenario.fleet.availability.hours
        self._blocked = np.zeros((3, scenario.fleet.learners), np.bool_)
        self._blocked[HOURS] = ~hours.open_at_start
        for kind, action in ((LEAVE, self._leave), (JOIN, self._join)):
            selected = changes.select(changes.kinds == kind)
            self.schedule_at_heartbeats(selected.at_s, selected.learners, action)
        close = partial(self.block, HOURS, "hours ended")
        self.schedule_at_heartbeats(*hours.changes(scenario.horizon_s, begin=False), close)
        self.schedule_at_heartbeats(
            *hours.changes(scenario.horizon_s, begin=True), partial(self.unblock, HOURS)
        )
        for fault in scenario.faults:
            if fault.kind in ("crash", "vanish"):
                queue.schedule(fault.at_s, partial(self._crash, fault))

    def schedule_at_heartbeats(
        self, at_s: Floats, learners: Ints, action: Callable[[Ints], object]
    ) -> None:
        """Schedule an action for learners, in order of time, at the heartbeats that follow."""
        beats = np.ceil(at_s / self._heartbeat_s)
        starts = np.flatnonzero(np.diff(beats, prepend=-1.0))
        for group in np.split(np.arange(beats.size), starts[1:]) if beats.size else ():
            now_s = float(beats[group[0]]) * self._heartbeat_s
            self._queue.schedule(now_s, partial(action, learners[group]))

    def block(self, cause: int, reason: str, learners: Ints) -> None:
        """Stop learners until the cause is unblocked."""
        self._blocked[cause, learners] = True
        stopping = learners[self.present[learners]]
        if not stopping.size:
            return
        self.present[stopping] = False
        self._epoch[stopping] += 1
        self._listener.silence(stopping)
        self._listener.report_left(stopping, reason)

    def unblock(self, cause: int, learners: Ints) -> None:
        """Start learners unless another cause keeps them from it."""
        self._blocked[cause, learners] = False
        ready = ~self.present[learners] & ~self._blocked[:, learners].any(axis=0)
        if ready.any():
            self._start(learners[ready])

    def _join(self, learners: Ints) -> None:
        new = learners[~self.present[learners]]
        if new.size:
            self._start(new)

    def _leave(self, learners: Ints) -> None:
        leaving = learners[self.present[learners]]
        # A learner that leaves for good does not restart after a crash either.
        self._epoch[learners] += 1
        self.present[learners] = False
        self._blocked[CRASH, learners] = True
        if leaving.size:
            self._listener.report_left(leaving, "left")

    def _crash(self, fault: Fault) -> None:
        learners = np.array(fault.learners)[self.present[list(fault.learners)]]
        if not learners.size:
            return
        now_s = self._queue.now_s
        self.present[learners] = False
        self._blocked[CRASH, learners] = True
        self._epoch[learners] += 1
        epoch = self._epoch[learners]
        if fault.kind == "crash" and (fault.for_s or np.inf) <= self._restart_limit_s:
            self._listener.interrupt(learners)
            self._queue.schedule(
                now_s + (fault.for_s or 0.0), partial(self._resume, learners, epoch)
            )
            return
        self._listener.silence(learners)
        if fault.kind == "crash":
            noticed_s = np.ceil(now_s / self._heartbeat_s) * self._heartbeat_s
            self._queue.schedule(float(noticed_s), partial(self._notice, learners, epoch))
        if fault.for_s is not None:
            self._queue.schedule(now_s + fault.for_s, partial(self._restart, learners, epoch))

    def _notice(self, learners: Ints, epoch: Ints) -> None:
        unchanged = learners[self._epoch[learners] == epoch]
        if unchanged.size:
            self._listener.report_left(unchanged, "crashed")

    def _resume(self, learners: Ints, epoch: Ints) -> None:
        learners = learners[self._epoch[learners] == epoch]
        self._blocked[CRASH, learners] = False
        ready = learners[~self._blocked[:, learners].any(axis=0)]
        if ready.size:
            self.present[ready] = True
            self._epoch[ready] += 1
            self._listener.resume(ready)

    def _restart(self, learners: Ints, epoch: Ints) -> None:
        unchanged = learners[self._epoch[learners] == epoch]
        self.unblock(CRASH, unchanged)

    def _start(self, learners: Ints) -> None:
        self.present[learners] = True
        self._epoch[learners] += 1
        self._listener.restart(learners)


class SleepSpans:
    """Spans of sleep, flat: one learner's spans after another's, each in order of time."""

    def __init__(self, changes: Changes, learners: int) -> None:
        sleeps, wakes = (_order_by_learner(changes, kind) for kind in (SLEEP, WAKE))
        self._counts = np.bincount(sleeps.learners, minlength=learners)
        self._starts = np.cumsum(self._counts) - self._counts
        self._from_s = sleeps.at_s
        # A learner without a later wake-up sleeps for ever.
        self._to_s = np.full(sleeps.at_s.size, np.inf)
        wake_counts = np.bincount(wakes.learners, minlength=learners)
        nth = np.arange(wakes.at_s.size) - np.repeat(
            np.cumsum(wake_counts) - wake_counts, wake_counts
        )
        self._to_s[np.repeat(self._starts, wake_counts) + nth] = wakes.at_s

    def end_s(self, learners: Ints, begin_s: Floats, awake_s: Floats) -> Floats:
        """Return when each learner has been awake for `awake_s` seconds since `begin_s`.

        With `awake_s` = 0 that is the first time at which it is awake.
        """
        now_s, left_s = begin_s.copy(), awake_s.copy()
        span = self._starts[learners]
        last = span + self._counts[learners]
        active = np.flatnonzero(span < last)
        while active.size:
            from_s, to_s = self._from_s[span[active]], self._to_s[span[active]]
            # A past span does not count; a span that has begun counts from now on.
            before_s = np.maximum(from_s - now_s[active], 0.0)
            sleeps = (to_s > now_s[active]) & (
                (left_s[active] > before_s) | (from_s <= now_s[active])
            )
            now_s[active[sleeps]] = to_s[sleeps]
            left_s[active[sleeps]] -= before_s[sleeps]
            span[active] += 1
            active = active[(sleeps | (to_s <= now_s[active])) & (span[active] < last[active])]
        ends: Floats = now_s + left_s
        return ends


def changes_of_run(fleet: Fleet, until_s: float) -> Changes:
    """Return the changes of a run; a learner that is asleep when it starts joins when it wakes."""
    changes = fleet.changes(until_s)
    _, first = np.unique(changes.learners, return_index=True)
    kinds = changes.kinds.copy()
    kinds[first[kinds[first] == WAKE]] = JOIN
    return Changes(changes.at_s, changes.learners, kinds)


def departure_times_s(changes: Changes, learners: int) -> Floats:
    """Return when each learner leaves for good; infinity for learners that stay."""
    at_s = np.full(learners, np.inf)
    leaving = changes.kinds == LEAVE
    at_s[changes.learners[leaving]] = changes.at_s[leaving]
    return at_s


def _order_by_learner(changes: Changes, kind: int) -> Changes:
    """Return the changes of one kind, ordered by learner, then by time."""
    selected = changes.select(changes.kinds == kind)
    order = np.lexsort((selected.at_s, selected.learners))
    return Changes(selected.at_s[order], selected.learners[order], selected.kinds[order])

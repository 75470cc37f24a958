"""Who is there: learners that join and leave, crash, and come back.

A learner that is gone is missed at the next beat of the orchestrator; one that comes says so. Many
that come or go between two beats do so together.
"""

from functools import partial
from typing import Protocol

import numpy as np

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints
from melisma.fleet.availability import JOIN, LEAVE, Changes
from melisma.simulation.faults import Fault
from melisma.simulation.kernel import EventQueue
from melisma.simulation.scenario import Scenario

# So many times in a deadline the orchestrator looks who is there.
BEATS = 20


class ChurnListener(Protocol):
    """Whoever is told."""

    def restart(self, who: Ints) -> None:
        """These are there, and know nothing yet."""

    def silence(self, who: Ints) -> None:
        """These send nothing any more."""

    def report_left(self, who: Ints, reason: str) -> None:
        """These are missed."""


class Churn:
    """`there` is who is there now."""

    def __init__(
        self, scene: Scenario, changes: Changes, agenda: EventQueue, tells: ChurnListener
    ) -> None:
        self.present = scene.fleet.present_at_start.copy()
        self._lives = np.zeros(scene.fleet.learners, np.int64)
        self._agenda, self._tells = agenda, tells
        self._beat_s = scene.task.deadline_s / BEATS
        for what, act in ((LEAVE, self._leave), (JOIN, self._join)):
            some = changes.where(changes.what == what)
            beats = np.ceil(some.at_s / self._beat_s)
            starts = np.flatnonzero(np.diff(beats, prepend=-1.0))
            for part in np.split(np.arange(beats.size), starts[1:]) if beats.size else ():
                at_s = float(beats[part[0]]) * self._beat_s
                agenda.schedule(at_s, partial(act, some.learners[part], some.at_s[part]))
        for fault in scene.faults:
            if fault.kind in ("crash", "vanish"):
                agenda.schedule(fault.at_s, partial(self._crash, fault))

    def _leave(self, who: Ints, _: Floats) -> None:
        here = who[self.present[who]]
        # Who leaves for good does not come back from a crash either.
        self._lives[who] += 1
        self.present[who] = False
        if here.size:
            self._tells.report_left(here, "left")

    def _join(self, who: Ints, _: Floats) -> None:
        new = who[~self.present[who]]
        if new.size:
            self._come(new)

    def _crash(self, fault: Fault) -> None:
        who = np.array(fault.learners)[self.present[list(fault.learners)]]
        if not who.size:
            return
        now_s = self._agenda.now_s
        self.present[who] = False
        self._lives[who] += 1
        self._tells.silence(who)
        lives = self._lives[who]
        if fault.kind == "crash":
            beat_s = np.ceil(now_s / self._beat_s) * self._beat_s
            self._agenda.schedule(float(beat_s), partial(self._miss, who, lives))
        if fault.for_s is not None:
            self._agenda.schedule(now_s + fault.for_s, partial(self._restart, who, lives))

    def _miss(self, who: Ints, lives: Ints) -> None:
        gone = who[self._lives[who] == lives]
        if gone.size:
            self._tells.report_left(gone, "crashed")

    def _restart(self, who: Ints, lives: Ints) -> None:
        gone = who[self._lives[who] == lives]
        if gone.size:
            self._come(gone)

    def _come(self, who: Ints) -> None:
        self.present[who] = True
        self._lives[who] += 1
        self._tells.restart(who)


def departure_times_s(changes: Changes, learners: int) -> Floats:
    """When each learner leaves for good; infinity for those who stay."""
    at_s = np.full(learners, np.inf)
    gone = changes.what == LEAVE
    at_s[changes.learners[gone]] = changes.at_s[gone]
    return at_s

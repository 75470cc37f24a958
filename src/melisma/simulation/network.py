"""Messages on their way: between learners and orchestrator, with what may happen to them.

Reports of many learners that were sent together fly together, and those that arrive before anything
else happens arrive as one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints
from melisma.simulation.faults import Fault, MessageKind
from melisma.simulation.kernel import EventQueue

# Hears from the learners at these places of what was sent, and when each of them arrived.
Deliver = Callable[[Ints, Floats], object]


@dataclass(eq=False)
class InFlight:
    """Reports by their arrival; `places` are those in what was sent."""

    learners: Ints
    indices: Ints
    sent_s: Floats
    arrive_s: Floats
    deliver: Deliver
    lost: NDArray[np.bool_] = field(init=False)
    next: int = 0

    def __post_init__(self) -> None:
        self.lost = np.zeros(self.learners.size, np.bool_)

    @property
    def is_done(self) -> bool:
        """Whether nothing is on its way any more."""
        return self.next >= self.learners.size

    def lose(self, who: Ints) -> None:
        """What these sent does not arrive."""
        self.lost |= np.isin(self.learners, who)


class SimulatedNetwork:
    """Carries reports to the orchestrator and orders from it; who has left sends nothing."""

    def __init__(self, agenda: EventQueue, faults: Sequence[Fault], leaves_s: Floats) -> None:
        self._agenda, self._leaves_s = agenda, leaves_s
        self._single = [fault for fault in faults if fault.kind in ("lose", "duplicate", "delay")]
        self._parted = [fault for fault in faults if fault.kind == "partition"]
        self._sent: dict[tuple[MessageKind, int], int] = {}
        self._flights: list[InFlight] = []

    def send_order(self, who: Ints, act: Callable[[Ints], object]) -> None:
        """Let learners follow an order, each when it gets it."""
        now_s = np.full(who.size, self._agenda.now_s)
        for places, arrive_s in self._ways("order", who, now_s):
            for at_s in np.unique(arrive_s).tolist():
                chosen = places[arrive_s == at_s]
                if at_s <= self._agenda.now_s:
                    act(chosen)
                else:
                    self._agenda.schedule(at_s, partial(act, chosen))

    def send_reports(self, who: Ints, sent_s: Floats, deliver: Deliver) -> list[InFlight]:
        """Let the orchestrator hear what learners send at these instants."""
        flights = []
        for places, arrive_s in self._ways("report", who, sent_s):
            order = np.argsort(arrive_s, kind="stable")
            # Who sleeps for ever sends nothing more.
            sent = np.isfinite(arrive_s) & (sent_s[places] <= self._leaves_s[who[places]])
            order = order[sent[order]]
            chosen = places[order]
            flight = InFlight(who[chosen], chosen, sent_s[chosen], arrive_s[order], deliver)
            if chosen.size:
                flights.append(flight)
                self._agenda.schedule(float(flight.arrive_s[0]), partial(self._land, flight))
        self._flights += flights
        return flights

    def drop_unsent(self, who: Ints) -> None:
        """What these have not sent by now is never sent."""
        for flight in self._flights:
            flight.lost |= np.isin(flight.learners, who) & (flight.sent_s > self._agenda.now_s)

    def _land(self, flight: InFlight) -> None:
        """Deliver what arrives before anything else happens."""
        until_s = max(self._agenda.next_s, self._agenda.now_s)
        first, last = flight.next, int(np.searchsorted(flight.arrive_s, until_s, side="right"))
        flight.next = last
        if last < flight.learners.size:
            self._agenda.schedule(float(flight.arrive_s[last]), partial(self._land, flight))
        else:
            self._flights.remove(flight)
        arrived = np.flatnonzero(~flight.lost[first:last]) + first
        if arrived.size:
            self._agenda.advance(float(flight.arrive_s[arrived[-1]]))
            flight.deliver(flight.indices[arrived], flight.arrive_s[arrived])

    def _ways(self, kind: MessageKind, who: Ints, sent_s: Floats) -> Iterator[tuple[Ints, Floats]]:
        """Which messages arrive, and when; copies come by themselves."""
        places, arrive_s = np.arange(who.size), sent_s.copy()
        if self._single or self._parted:
            kept = np.ones(who.size, np.bool_)
            for place, fault in self._struck(kind, who):
                if fault.kind == "lose":
                    kept[place] = False
                elif fault.kind == "delay":
                    arrive_s[place] += fault.by
                else:
                    again_s = self._after_partition(who[[place]], sent_s[[place]] + fault.by)
                    yield np.array([place]), again_s
            arrive_s = self._after_partition(who, arrive_s)
            places, arrive_s = places[kept], arrive_s[kept]
        yield places, arrive_s

    def _struck(self, kind: MessageKind, who: Ints) -> Iterator[tuple[int, Fault]]:
        """Messages that something happens to."""
        for place, learner in enumerate(who.tolist()):
            nth = self._sent[kind, learner] = self._sent.get((kind, learner), 0) + 1
            for fault in self._single:
                if fault.message == kind and fault.nth == nth and learner in fault.learners:
                    yield place, fault

    def _after_partition(self, who: Ints, at_s: Floats) -> Floats:
        at_s = at_s.copy()
        for fault in sorted(self._parted, key=lambda each: each.at_s):
            end_s = fault.at_s + (fault.for_s or 0.0)
            held = np.isin(who, fault.learners) & (at_s >= fault.at_s) & (at_s < end_s)
            at_s[held] = end_s
        return at_s

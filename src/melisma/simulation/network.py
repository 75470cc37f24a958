"""Messages between the orchestrator and learners, and the faults that affect them.

Reports that many learners send together travel as one `InFlight`. Those of them that arrive before
the next action of the event queue are delivered in one call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.restarts import reconnect_s
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.rng import uniform
from melisma.simulation.faults import Fault, MessageKind
from melisma.simulation.kernel import EventQueue

# Called with indices into the reports that were sent, and the time at which each arrived.
Deliver = Callable[[Ints, Floats], object]


class OrchestratorDownError(Exception):
    """The orchestrator is down, or stopped while it handled a message."""


@dataclass(frozen=True)
class Downtime:
    """From when to when the orchestrator is down; `number` counts its stops."""

    number: int
    from_s: float
    to_s: float


@dataclass(eq=False)
class InFlight:
    """Reports on their way, ordered by arrival; `indices` point into the reports that were sent."""

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
        """Whether every report has arrived or was lost."""
        return self.next >= self.learners.size

    def lose(self, learners: Ints) -> None:
        """Lose the reports of these learners."""
        self.lost |= np.isin(self.learners, learners)


class SimulatedNetwork:
    """Carries instructions to learners and reports back; a learner that left sends nothing."""

    def __init__(self, queue: EventQueue, faults: Sequence[Fault], leaves_s: Floats) -> None:
        self._queue, self._leaves_s = queue, leaves_s
        self._message_faults = [
            fault for fault in faults if fault.kind in ("lose", "duplicate", "delay")
        ]
        self._partitions = [fault for fault in faults if fault.kind == "partition"]
        self._counts: dict[tuple[MessageKind, int], int] = {}
        self._in_flight: list[InFlight] = []
        self.downtime: Downtime | None = None
        self.reached: np.random.Generator | None = None  # draws who gets the last instructions

    def send_instruction(self, learners: Ints, follow: Callable[[Ints], object]) -> None:
        """Call `follow` with indices into `learners` when the instruction reaches some of them."""
        if self.reached is not None:
            chosen = np.flatnonzero(self.reached.random(learners.size) < 0.5)
            learners, follow = learners[chosen], partial(_follow_rows, chosen, follow)
        if not self._message_faults and not self._partitions:
            if learners.size:
                follow(np.arange(learners.size))
            return
        now_s = np.full(learners.size, self._queue.now_s)
        for indices, arrive_s in self._route("instruction", learners, now_s):
            for at_s in np.unique(arrive_s).tolist():
                arrived = indices[arrive_s == at_s]
                if at_s <= self._queue.now_s:
                    follow(arrived)
                else:
                    self._queue.schedule(at_s, partial(follow, arrived))

    def send_reports(self, learners: Ints, sent_s: Floats, deliver: Deliver) -> list[InFlight]:
        """Send one report of each learner at `sent_s`; `deliver` is called as they arrive."""
        batches = []
        for indices, arrive_s in self._route("report", learners, sent_s):
            order = np.argsort(arrive_s, kind="stable")
            # A learner that sleeps for ever never sends, so its time of arrival is infinite.
            present = sent_s[indices] <= self._leaves_s[learners[indices]]
            order = order[(np.isfinite(arrive_s) & present)[order]]
            kept = indices[order]
            reports = InFlight(learners[kept], kept, sent_s[kept], arrive_s[order], deliver)
            if kept.size:
                batches.append(reports)
                self._schedule(reports)
        self._in_flight += batches
        return batches

    def drop_unsent(self, learners: Ints) -> None:
        """Drop the reports of these learners that are not sent yet."""
        for reports in self._in_flight:
            unsent = reports.sent_s > self._queue.now_s
            reports.lost |= np.isin(reports.learners, learners) & unsent

    def _schedule(self, reports: InFlight) -> None:
        self._queue.schedule(float(reports.arrive_s[reports.next]), partial(self._arrive, reports))

    def _arrive(self, reports: InFlight) -> None:
        """Deliver the reports that arrive before the next action of the queue."""
        until_s = max(self._queue.next_s, self._queue.now_s)
        first = reports.next
        last = reports.next = int(np.searchsorted(reports.arrive_s, until_s, side="right"))
        if reports.is_done:
            self._in_flight.remove(reports)
        else:
            self._schedule(reports)
        arrived = np.flatnonzero(~reports.lost[first:last]) + first
        if arrived.size:
            self._queue.advance(float(reports.arrive_s[arrived[-1]]))
            self._deliver(reports, arrived)

    def _deliver(self, reports: InFlight, arrived: Ints) -> None:
        """Deliver reports; if the orchestrator is down, or stops, they are sent again."""
        if self.downtime is None:
            # A message that the orchestrator has not answered when it stops is sent again, too.
            with suppress(OrchestratorDownError):
                reports.deliver(reports.indices[arrived], reports.arrive_s[arrived])
        if self.downtime is not None:
            self._send_again(reports, arrived, self.downtime)

    def _send_again(self, reports: InFlight, rows: Ints, downtime: Downtime) -> None:
        """Let learners send reports again, each after a pause, until the orchestrator is back."""
        learners = reports.learners[rows]
        longest_s = np.minimum(
            downtime.to_s - reports.arrive_s[rows], reconnect_s(downtime.to_s - downtime.from_s)
        )
        pauses_s = uniform(downtime.number, "reconnect", 0, learners) * np.maximum(longest_s, 0.0)
        again_s = self._after_partitions(learners, downtime.to_s + pauses_s)
        order = np.argsort(again_s, kind="stable")
        order = order[(again_s <= self._leaves_s[learners])[order]]
        again = InFlight(
            learners[order],
            reports.indices[rows][order],
            again_s[order],
            again_s[order],
            reports.deliver,
        )
        if order.size:
            self._in_flight.append(again)
            self._schedule(again)

    def _route(
        self, kind: MessageKind, learners: Ints, sent_s: Floats
    ) -> Iterator[tuple[Ints, Floats]]:
        """Yield the indices of messages that arrive, and when; each duplicate by itself."""
        indices, arrive_s = np.arange(learners.size), sent_s.copy()
        if self._message_faults or self._partitions:
            kept = np.ones(learners.size, np.bool_)
            for index, fault in self._match_faults(kind, learners):
                if fault.kind == "lose":
                    kept[index] = False
                elif fault.kind == "delay":
                    arrive_s[index] += fault.by
                else:
                    again_s = sent_s[[index]] + fault.by
                    yield np.array([index]), self._after_partitions(learners[[index]], again_s)
            arrive_s = self._after_partitions(learners, arrive_s)
            indices, arrive_s = indices[kept], arrive_s[kept]
        yield indices, arrive_s

    def _match_faults(self, kind: MessageKind, learners: Ints) -> Iterator[tuple[int, Fault]]:
        """Count the messages, and yield the index of each that a fault affects."""
        for index, learner in enumerate(learners.tolist()):
            nth = self._counts[kind, learner] = self._counts.get((kind, learner), 0) + 1
            for fault in self._message_faults:
                if fault.message == kind and fault.nth == nth and learner in fault.learners:
                    yield index, fault

    def _after_partitions(self, learners: Ints, at_s: Floats) -> Floats:
        """Delay messages that would arrive during a partition to its end."""
        at_s = at_s.copy()
        for fault in sorted(self._partitions, key=lambda fault: fault.at_s):
            at_s[np.isin(learners, fault.learners) & fault.is_active(at_s)] = fault.end_s
        return at_s


def _follow_rows(rows: Ints, follow: Callable[[Ints], object], indices: Ints) -> None:
    """Follow an instruction that was sent to a part of its learners."""
    follow(rows[indices])

"""The faults of the orchestrator's disk, by the time of the run and the number of the write."""

from collections.abc import Callable, Sequence

from melisma.simulation.faults import Fault, FaultKind


class DiskFaults:
    """The disk faults of one run."""

    def __init__(self, faults: Sequence[Fault], clock: Callable[[], float]) -> None:
        self._faults, self._clock = faults, clock
        self._misdirected = {fault.nth for fault in faults if fault.kind == "misdirect write"}
        self._rotten_updates = {
            (learner, fault.nth)
            for fault in faults
            if fault.kind == "rot update"
            for learner in fault.learners
        }
        self._rots = [fault.at_s for fault in faults if fault.kind == "rot journal"]
        self._journal_writes = 0

    def is_full(self) -> bool:
        """Return whether the disk is full now."""
        return self._is_active("fill disk")

    def fails_to_sync(self) -> bool:
        """Return whether the disk reports an error now when it is told to sync."""
        return self._is_active("fail sync")

    def _is_active(self, kind: FaultKind) -> bool:
        now_s = self._clock()
        return any(fault.kind == kind and fault.is_active(now_s) for fault in self._faults)

    def healthy_from_s(self, at_s: float) -> float:
        """Return when the disk works again, or `at_s` if it does."""
        failing = [f for f in self._faults if f.kind in ("fill disk", "fail sync")]
        for fault in sorted(failing, key=lambda fault: fault.at_s):
            if fault.is_active(at_s):
                at_s = fault.end_s
        return at_s

    def misdirects(self, name: str) -> bool:
        """Count a write; return whether it goes to another place."""
        if not name.startswith("journal"):
            return False
        self._journal_writes += 1
        return self._journal_writes in self._misdirected

    def take_rots(self) -> int:
        """Return how many bits of the journal have to flip since the last call."""
        due = [at_s for at_s in self._rots if at_s <= self._clock()]
        self._rots = self._rots[len(due) :] if due else self._rots
        return len(due)

    def rots_update(self, learner: int, nth: int) -> bool:
        """Return whether an update of a learner, counted from 1, is damaged on the disk."""
        return (learner, nth) in self._rotten_updates

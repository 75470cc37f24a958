"""The process of a simulated orchestrator: the cycle machine, and the journal that it goes on from.

As live: a step is written to the journal before its commands are carried out, and nothing that
depends on it leaves the orchestrator before it is on disk. An update is on disk, and in the
journal, before it is acknowledged, and is deleted only after its average is on disk.

A process stops by a fault, or because its disk fails. Those that watch a run see a step once it can
no longer be lost.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from zlib import crc32

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.commands import Commands
from melisma.cycle.machine import CycleMachine
from melisma.errors import DataError
from melisma.fleet.array_types import Bools, Ints
from melisma.fleet.rng import generator
from melisma.runs.journal import Journal
from melisma.runs.model_versions import ModelVersions
from melisma.runs.recovery import SNAPSHOT, RecoveredRun, Snapshot
from melisma.runs.trace import Step
from melisma.simulation.faults import Fault
from melisma.simulation.invariants.violations import expect
from melisma.simulation.journaling.storage import Storage
from melisma.simulation.kernel import EventQueue
from melisma.simulation.network import Downtime, OrchestratorDownError, SimulatedNetwork

ACKNOWLEDGED = (
    events.TaskSubmitted,
    events.LearnersJoined,
    events.UpdatesReceived,
    events.Aggregated,
)
"""Events whose sender relies on their being on disk; other reports may be lost, and asked again."""
RESTART_S = 1.0
"""From the end of a fault of the disk to the restart of a process that it has stopped."""


class OrchestratorProcess:
    """The machine of a run, its journal, and the faults that stop it.

    Where several tasks share one process, `wrote` is called after each step that was written; it
    stops all of them by `end`.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        storage: Storage,
        queue: EventQueue,
        network: SimulatedNetwork,
        watch: Callable[[Step], object],
        wrote: Callable[[], object] = lambda: None,
    ) -> None:
        self._wrote = wrote
        self.machine, self.models = CycleMachine(), ModelVersions()
        self.stops = 0
        self.downtime_s, self._down_since_s = 0.0, np.inf
        self._faults = [
            fault for fault in faults if fault.kind in ("crash orchestrator", "cut power")
        ]
        self._storage, self._queue, self._network, self._watch = storage, queue, network, watch
        self._journal: Journal | None = None
        self._has_ended = False  # and the journal has to be opened again
        self._unwatched: list[Step] = []
        self._synced = 0, 0  # steps, and the checksum over them
        self._averaged: list[str] = []  # updates of the average that is computed
        self._at_step: dict[int, list[Fault]] = defaultdict(list)
        for fault in self._faults:
            if fault.nth:
                self._at_step[fault.nth].append(fault)

    def schedule_stops(self, restart: Callable[[], object]) -> None:
        """Schedule the stops at given times; `restart` is called after each stop."""
        self._restart = restart
        for fault in self._faults:
            if not fault.nth:
                self._queue.schedule(fault.at_s, partial(self._stop_by, fault))

    def close(self) -> None:
        """Release the storage."""
        self._storage.close()

    @property
    def is_down(self) -> bool:
        """Whether no process runs."""
        return self._network.downtime is not None

    def handle(self, event: events.AnyEvent) -> Commands:
        """Let the machine handle an event, and write the step.

        Raises `OrchestratorDownError` if the process is down, or stops before the commands are
        carried out. After this call it may be dying: `finish_step` ends it.
        """
        if self.is_down:
            raise OrchestratorDownError
        try:
            return self._handle(event)
        except OSError:
            self.stop(self._storage.healthy_from_s(self._queue.now_s) + RESTART_S, power=False)
            raise OrchestratorDownError from None

    def _handle(self, event: events.AnyEvent) -> Commands:
        if self._journal is None:
            self._journal = self._storage.create()
        if isinstance(event, events.UpdatesReceived):
            self._write_updates(self._journal, event)
        if isinstance(event, events.Aggregated):
            for name in self._averaged:
                self._journal.put(name, None)
        issued = self.machine.handle(event)
        step = Step(event, issued)
        self.models.apply(step)
        if isinstance(event, events.Evaluated):
            content = Snapshot.take(self._journal.last + 1, self.machine.state, self.models)
            self._journal.put(SNAPSHOT, content)
        self._journal.write(step)
        self._unwatched.append(step)
        self._wrote()
        for fault in self._at_step.pop(self._journal.last, ()):
            self._die(fault)
        if isinstance(event, ACKNOWLEDGED) or not all(isinstance(c, commands.Wake) for c in issued):
            self._sync(self._journal)
        if isinstance(event, events.Aggregated):
            self._delete_updates()
        return issued

    def _die(self, fault: Fault) -> None:
        """Stop before anything leaves the process, or while its instructions are sent."""
        rng = generator(fault.nth, "dying orchestrator", self.stops)
        if rng.random() < 0.5 or self.is_down:
            self._stop_by(fault)
            raise OrchestratorDownError
        self._network.reached = rng
        self._dying = fault

    def finish_step(self) -> None:
        """End a process that stops while its instructions are sent."""
        if self._network.reached is not None:
            self._stop_by(self._dying)
            raise OrchestratorDownError

    @property
    def is_dying(self) -> bool:
        """Whether only a part of its last instructions is sent, and nothing else is done."""
        return self._network.reached is not None

    def _stop_by(self, fault: Fault) -> None:
        self.stop(self._queue.now_s + (fault.for_s or 0.0), power=fault.kind == "cut power")

    def stop(self, until_s: float, *, power: bool) -> None:
        """Stop the process; another one starts at `until_s`."""
        self._network.reached = None
        if self.is_down:
            return
        self.end(power=power)
        self._network.downtime = Downtime(self.stops, self._queue.now_s, until_s)
        self._queue.schedule(until_s, self._restart)

    def end(self, *, power: bool) -> None:
        """End the process; `restart` starts another one."""
        self.stops, self._has_ended = self.stops + 1, True
        self._down_since_s = min(self._down_since_s, self._queue.now_s)
        self._storage.stop(power=power)

    def steps(self) -> Iterator[Step]:
        """Yield all steps in the journal, also of a run that has ended; none before it began."""
        if self._journal is None:
            return iter(())
        if self._has_ended:
            self._journal, self._has_ended = self._storage.open(), False
        return self._journal.steps()

    def restart(self) -> RecoveredRun | None:
        """Start a process that goes on from the journal; None if the run has to begin.

        Raises `DataError` if the journal is damaged, and `OrchestratorDownError` if its disk fails.
        """
        self._network.downtime, self._averaged, self._has_ended = None, [], False
        try:
            run = self._recover()
        except OSError:
            self.stop(self._storage.healthy_from_s(self._queue.now_s) + RESTART_S, power=False)
            raise OrchestratorDownError from None
        self.downtime_s, self._down_since_s = self._queue.now_s - self._down_since_s, np.inf
        return run

    def _recover(self) -> RecoveredRun | None:
        self._unwatched = []
        if not self._synced[0]:
            # Before its first step is on disk, a run is started anew.
            self.machine, self.models, self._journal = CycleMachine(), ModelVersions(), None
            try:
                journal = self._storage.open()
                run = RecoveredRun.from_journal(journal)
            except DataError:
                return None
        else:
            journal = self._storage.open()
            run = RecoveredRun.from_journal(journal)
        self._check_kept(journal)
        self.machine, self.models, self._journal = run.machine, run.models, journal
        self._unwatched = list(journal.steps(after=self._synced[0]))
        self._sync(journal)
        known = {name for name, _ in journal.records("update/")}
        for name in self._storage.updates():
            if name not in known:
                self._storage.delete_update(name)
        return run

    def _check_kept(self, journal: Journal) -> None:
        """Check that no step that was synced is lost or another one."""
        count, checksum = self._synced
        kept = journal.last >= count and journal.checksum(count) == checksum
        expect(kept, f"safety: {journal.last} steps of {count} that were synced are left")

    def _sync(self, journal: Journal) -> None:
        """Sync the journal, and show the steps to those that watch."""
        journal.sync()
        self._synced = journal.last, journal.checksum(journal.last)
        steps, self._unwatched = self._unwatched, []
        for step in steps:
            self._watch(step)

    def _write_updates(self, journal: Journal, event: events.UpdatesReceived) -> None:
        """Write the updates that will count to the disk, each once."""
        if event.refused or not self._storage.keeps_updates:
            return
        expected = self.machine.state.expects(event.learners, event.cycle, event.attempts)
        for learner, attempt in zip(
            event.learners[expected].tolist(), event.attempts[expected].tolist(), strict=True
        ):
            name = update_name(learner, event.cycle, attempt)
            content = name.encode()
            self._storage.write_update(learner, name, content)
            journal.put(name, crc32(content).to_bytes(4, "little"))

    def _delete_updates(self) -> None:
        """Delete updates whose average is on disk."""
        for name in self._averaged:
            self._storage.delete_update(name)
        self._averaged = []

    def find_damaged(self, learners: Ints, cycles: Ints, attempts: Ints) -> Bools:
        """Return which updates of an average are not as they were received."""
        damaged = np.zeros(learners.size, np.bool_)
        if not self._storage.keeps_updates or self._journal is None:
            return damaged
        known = dict(self._journal.records("update/"))
        rows = zip(learners.tolist(), cycles.tolist(), attempts.tolist(), strict=True)
        for index, row in enumerate(rows):
            name = update_name(*row)
            self._averaged.append(name)
            checksum = crc32(self._storage.read_update(name)).to_bytes(4, "little")
            expect(name in known, f"safety: {name} counts, but is not in the journal")
            damaged[index] = checksum != known[name]
        return damaged


def update_name(learner: int, cycle: int, attempt: int) -> str:
    """Return the name of the file and the record of an update."""
    return f"update/{learner}-{cycle}-{attempt}"

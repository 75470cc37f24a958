"""The process of a simulated service: its machine, its tasks, their journals, and its stops.

As live: a step is in a journal before its commands are carried out. The service and each task have
a journal of their own, and the process stops between any two steps of them. The next one recovers
all of them, and then what was decided and not carried out is done again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from melisma.runs.journal import Journal, StepJournal
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import ServiceStep
from melisma.runs.service_recovery import RecoveredService
from melisma.runs.trace import Step
from melisma.simulation.faults import Fault
from melisma.simulation.journaling.orchestrator_process import OrchestratorProcess
from melisma.simulation.journaling.storage import Storage, make_storage
from melisma.simulation.network import Downtime, OrchestratorDownError
from melisma.simulation.surroundings import Surroundings


class ServiceProcess:
    """The journal of a service, and the faults that stop it with all of its tasks."""

    def __init__(
        self, faults: Sequence[Fault], around: Surroundings, restart: Callable[[], object]
    ) -> None:
        self._queue, self._network, self._restart = around.queue, around.network, restart
        self.stops = self._written = self._storages = 0
        self._faults = faults
        self._storage = self._make_storage(ServiceJournal)
        self._journal: ServiceJournal = self._storage.create()
        self._tasks: list[OrchestratorProcess] = []
        self._at_step = {fault.nth: fault for fault in faults if fault.nth}
        for fault in faults:
            if not fault.nth:
                self._queue.schedule(fault.at_s, partial(self._stop, fault))

    def _make_storage(self, kind: type[StepJournal[Any]]) -> Storage:
        """Return the storage of a journal, each with random numbers of its own."""
        self._storages += 1
        return make_storage(self._faults, lambda: self._queue.now_s, self._storages, kind)

    @property
    def is_down(self) -> bool:
        """Whether no process runs."""
        return self._network.downtime is not None

    def add_task(self, watch: Callable[[Step], object]) -> OrchestratorProcess:
        """Return the part of a task in this process."""
        storage = self._make_storage(Journal)
        task = OrchestratorProcess([], storage, self._queue, self._network, watch, self._count)
        self._tasks.append(task)
        return task

    def steps_of(self, number: int) -> Iterator[Step]:
        """Yield all steps of a task in its journal."""
        return self._tasks[number].steps()

    def write(self, step: ServiceStep) -> None:
        """Write a step of the service."""
        self._journal.write(step)
        self._journal.sync()

    def stop_if_due(self) -> None:
        """Raise `OrchestratorDownError` if a fault stops the process after the latest step."""
        self._count()

    def _count(self) -> None:
        self._written += 1
        if (fault := self._at_step.pop(self._written, None)) is not None:
            self._stop(fault)
            raise OrchestratorDownError

    def _stop(self, fault: Fault) -> None:
        """Stop the process; another one starts after the time of the fault."""
        if self.is_down:
            return
        self.stops += 1
        until_s = self._queue.now_s + (fault.for_s or 0.0)
        self._network.downtime = Downtime(self.stops, self._queue.now_s, until_s)
        power = fault.kind == "cut power"
        self._storage.stop(power=power)
        for task in self._tasks:
            task.end(power=power)
        self._queue.schedule(until_s, self._restart)

    def recover(self) -> RecoveredService:
        """Start another process, with the state of the service in the journal."""
        self._network.downtime = None
        self._journal = self._storage.open()
        return RecoveredService.from_journal(self._journal)

    def close(self) -> None:
        """Release the journals."""
        self._storage.close()
        for task in self._tasks:
            task.close()

"""The methods of a service that its owner calls: submit and cancel tasks, and their status."""

from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final

import msgspec

from melisma.axon import Worker
from melisma.errors import MelismaError, RefusedError
from melisma.live import protocol
from melisma.live.orchestrator.learner_authentication import check_owner
from melisma.live.orchestrator.strict_methods import StrictMethods
from melisma.runs.report import Report
from melisma.service.service_state import TaskRecord, TaskStatus

if TYPE_CHECKING:
    from melisma.live.service.served_service import ServedService

TaskFigures = tuple[int, float, float]
"""The present cycle of a task, and the accuracy and the loss of its model; NaN if unknown."""
METHODS: Final = ("propose", "confirm", "withdraw", "cancel_task", "status")
MAX_BODY_BYTES: Final = 64 << 10


class ServedTask(msgspec.Struct, frozen=True):
    """One task of a service; figures are None until they are known.

    `state` is ``waiting``, ``running``, or the outcome of a task that has ended, and `reason` why.
    `paid` is what its learners were paid so far.
    """

    name: str
    number: int
    state: str
    cycle: int
    cycles: int | None
    accuracy: float | None
    loss: float | None
    reason: str
    paid: float
    folder: str


class ServedLearner(msgspec.Struct, frozen=True):
    """One device of a service; `state` is the task that it works for, or that it waits or left."""

    name: str
    state: str
    host: str | None
    last_seen_s: float
    price: float


class TaskProposal(msgspec.Struct, frozen=True):
    """A task that waits to be confirmed by its number, and its candidates as dictionaries.

    There are none if no device has joined, or none was measured in time.
    """

    number: int
    devices: int
    candidates: tuple[dict[str, Any], ...]


class TasksStatus(msgspec.Struct, frozen=True, tag="tasks"):
    """The state of a service of several tasks."""

    run: str
    scheme: str
    budget: float | None
    folder: str
    tasks: tuple[ServedTask, ...]
    learners: tuple[ServedLearner, ...]


class OwnerMethods:
    """Serves the owner of a service."""

    def __init__(self, served: "ServedService") -> None:
        self._served = served
        self._ended: dict[int, TaskFigures] = {}

    def expose(self, worker: Worker) -> None:
        """Let the owner call these methods."""
        worker.expose(
            StrictMethods(self),
            METHODS,
            name="",
            max_body_bytes=MAX_BODY_BYTES,
            check_caller=check_owner,
        )

    async def propose(self, path: str) -> Any:
        """Load the task of a file on this machine; return a `TaskProposal`."""
        try:
            number, found = await self._served.propose(protocol.parse(path, protocol.ShortText))
        except (MelismaError, OSError) as error:
            raise RefusedError(str(error)) from error
        devices = len(self._served.learners.present)
        candidates = tuple(each.as_dict() for each in found)
        return protocol.to_builtins(TaskProposal(number, devices, candidates))

    async def confirm(self, number: int) -> Any:
        """Add a proposed task; return it."""
        try:
            host = self._served.confirm(protocol.parse(number, protocol.NonNegativeInt))
            await self._served.service.synced()
        except MelismaError as error:
            raise RefusedError(str(error)) from error
        return protocol.to_builtins(self._task(self._record(host.prepared.task.name)))

    async def withdraw(self, number: int) -> None:
        """Forget a proposed task."""
        number = protocol.parse(number, protocol.NonNegativeInt)
        self._served.withdraw(number, "its owner withdrew it")

    async def cancel_task(self, name: str) -> Any:
        """End a task and keep its results so far; return it."""
        record = self._record(name)
        if not record.is_live:
            raise RefusedError(f"task {record.task.name} has ended already: {record.outcome}")
        self._served.service.cancel(record.number, "its owner cancelled it")
        await self._served.service.synced()
        return protocol.to_builtins(self._task(record))

    async def status(self) -> Any:
        """Return a `TasksStatus` as built-in types."""
        served, now_s = self._served, self._served.service.now()
        learners = tuple(
            ServedLearner(
                name=each.name,
                state=self._state_of(each.name) if each.is_present(now_s) else "left",
                host=each.host,
                last_seen_s=max(0.0, now_s - each.called_s),
                price=each.price,
            )
            for each in served.learners
        )
        folder = served.folder
        status = TasksStatus(
            run=folder.run,
            scheme=folder.scheme,
            budget=folder.budget,
            folder=str(folder.path),
            tasks=tuple(map(self._task, served.records)),
            learners=learners,
        )
        return protocol.to_builtins(status)

    def _record(self, name: str) -> TaskRecord:
        """Return the latest task of this name; raise `RefusedError` if there is none."""
        records = self._served.records
        named = [record for record in records if record.task.name == name]
        if not named:
            known = ", ".join(dict.fromkeys(record.task.name for record in records)) or "none"
            raise RefusedError(f"no task is called {name!r}; tasks: {known}")
        return named[-1]

    def _task(self, record: TaskRecord) -> ServedTask:
        cycle, accuracy, loss = self._figures(record)
        return ServedTask(
            name=record.task.name,
            number=record.number + 1,
            state=self._state(record),
            cycle=cycle,
            cycles=record.task.cycles,
            accuracy=_known(accuracy),
            loss=_known(loss),
            reason=self._reason(record),
            paid=record.account.paid,
            folder=str(self._served.folder.folder_of(record.number)),
        )

    def _figures(self, record: TaskRecord) -> "TaskFigures":
        """Return the cycle and the score of a task; those of an ended one are read once."""
        host = self._served.service.hosts.get(record.number)
        if host is not None:
            scored, current = host.progress.evaluated_cycle, host.progress.current_cycle
            score = (nan, nan) if scored is None else (scored.accuracy, scored.loss)
            return (current.number if current else 0, *score)
        if record.number not in self._ended:
            report = self._served.report(record.number)
            found = (0, nan, nan) if report is None else _figures_of(report)
            if record.is_live:
                return found
            self._ended[record.number] = found
        return self._ended[record.number]

    def _state(self, record: TaskRecord) -> str:
        if record.status is TaskStatus.ENDED:
            return record.outcome
        return "running" if record.in_cycle else "waiting"

    def _reason(self, record: TaskRecord) -> str:
        """Return why a task waits or how it has ended."""
        if record.status is TaskStatus.ENDED or record.in_cycle:
            return ""
        if not self._served.learners.present:
            return "no device has joined: melisma join STRING on a device"
        rounds = self._served.progress.rounds
        held = rounds[-1].held.get(record.task.name) if rounds else None
        if held is not None:
            return held
        return "its learners are measured" if record.request is None else "for the next round"

    def _state_of(self, name: str) -> str:
        """Return the task that a device works for now."""
        for host in self._served.service.hosts.values():
            for mailbox in host.mailboxes:
                if mailbox.name == name and mailbox.open_work is not None:
                    return host.prepared.task.name
        return "waiting"


def _figures_of(report: Report) -> TaskFigures:
    return len(report.cycles), report.accuracy, report.loss


def _known(value: float) -> float | None:
    return None if isnan(value) else value

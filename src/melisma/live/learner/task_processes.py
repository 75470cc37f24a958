"""The processes of this device for the tasks of one orchestrator, one for each task.

Each task has models, data and code of its own. The processes share the certificate of the device
and take turns to compute. They end when their task has ended; this process starts those for new
tasks. It imports neither NumPy nor a framework.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from melisma.errors import UnregisteredError
from melisma.live import protocol
from melisma.live.joining.learner_child import LearnerChild
from melisma.live.joining.use_limits import UseLimits
from melisma.live.learner.connection import Connection
from melisma.live.learner.device_reports import (
    DeviceReport,
    Ended,
    LearnerReport,
    OfTask,
    OnReport,
    TaskAwaited,
)
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.private_files import make_private_folder

REPORT_CHECK_S: Final = 1.0
MAX_FAILURES: Final = 3
"""Failures of the process for a task after which this device leaves the task to others."""
StartChild = Callable[[LearnerSettings, Path, UseLimits], LearnerChild]


class TaskProcesses:
    """Runs a learner process for each task, until the orchestrator ends."""

    def __init__(
        self,
        settings: LearnerSettings,
        orchestrator: Connection,
        session: str,
        report: OnReport,
        start: StartChild = LearnerChild,
    ) -> None:
        self._settings, self._orchestrator, self._session = settings, orchestrator, session
        self._report, self._start = report, start
        self._folder = Path(f"{settings.cache}-tasks")
        self._children: dict[str, LearnerChild] = {}
        self._failures: dict[str, int] = {}
        self._slowness: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def run(self, run: str) -> bool:
        """Work for all tasks until the orchestrator ends; return whether there were any."""
        self._report(TaskAwaited(run))
        # What an earlier process left of tasks that have ended since.
        folders = {path.name for path in self._folder.glob("task*")}
        known: list[str] = []
        while True:
            listed = self._list_tasks(run, known)
            known = [ref.name for ref in listed.tasks]
            for name in folders - {_folder_name(ref) for ref in listed.tasks}:
                self._forget(name)
            folders = set()
            for ref in listed.tasks:
                if ref.name not in self._failures:
                    self._failures[ref.name] = 0
                    self._follow(ref)
            if listed.ended:
                return bool(self._failures)

    def _list_tasks(self, run: str, known: list[str]) -> protocol.TaskList:
        """Return the tasks of the orchestrator as soon as they change.

        One that was started again with the same tasks gets to know this device again; with others
        it is another one.
        """
        try:
            reply = self._orchestrator.call("list_tasks", self._session, known)
        except UnregisteredError:
            request = protocol.RegisterRequest(self._session, price=self._settings.price)
            answer = self._orchestrator.call("register", protocol.to_builtins(request))
            response = protocol.parse(answer, protocol.AnyRegisterResponse)
            if not isinstance(response, protocol.TasksResponse) or response.run != run:
                raise
            reply = self._orchestrator.call("list_tasks", self._session, known)
        return protocol.parse(reply, protocol.TaskList)

    def note_slowness(self, line: bytes) -> None:
        """Pass on to all processes why this device runs slower."""
        self._slowness = tuple(filter(None, [line.decode(errors="replace")]))
        with self._lock:
            for child in self._children.values():
                child.note_slowness(self._slowness)

    def _follow(self, ref: protocol.TaskRef) -> None:
        thread = threading.Thread(target=self._work_for, args=(ref,), name=ref.name, daemon=True)
        thread.start()

    def _work_for(self, ref: protocol.TaskRef) -> None:
        """Run the process for a task to its end; start it again if it fails."""
        while self._failures[ref.name] < MAX_FAILURES:
            ended = self._run_child(ref)
            self._report(OfTask(ref.task, ended))
            if ended.kind == "run ended":
                self._forget(_folder_name(ref))
                return
            if ended.kind != "failed":
                return
            self._failures[ref.name] += 1

    def _run_child(self, ref: protocol.TaskRef) -> Ended:
        folder = self._folder / _folder_name(ref)
        make_private_folder(folder)
        settings = msgspec.structs.replace(
            self._settings,
            task=ref.name,
            turns=str(self._folder / "turns"),
            cache=str(folder / "cache"),
            spool=str(folder / "spool"),
            supervised=True,
        )
        child = self._start(settings, folder / "learner.log", UseLimits())
        with self._lock:
            self._children[ref.name] = child
        child.note_slowness(self._slowness)
        try:
            while True:
                report = child.next_report(REPORT_CHECK_S)
                if isinstance(report, Ended):
                    return report
                if report is not None:
                    self._report(_of_task(ref.task, report))
        finally:
            with self._lock:
                self._children.pop(ref.name, None)
            child.stop()

    def _forget(self, name: str) -> None:
        """Delete the files for a task that has ended."""
        shutil.rmtree(self._folder / name, ignore_errors=True)


def _folder_name(ref: protocol.TaskRef) -> str:
    """Return the name of the folder for a task: that of another orchestrator has another one."""
    return f"{ref.name}-{ref.run}"


def _of_task(task: str, report: LearnerReport) -> DeviceReport:
    return report if isinstance(report, OfTask | TaskAwaited) else OfTask(task, report)

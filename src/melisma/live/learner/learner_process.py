"""The process of one learner: registers it at the orchestrator and runs its agent."""

import contextlib
import secrets
import sys
import threading
import traceback
from typing import Final

import msgspec

from melisma.errors import (
    AxonError,
    DataError,
    MalformedError,
    MelismaError,
    RefusedError,
    SettingError,
    SupersededError,
    TooLargeError,
    UnauthorizedError,
    UnreachableError,
    UnregisteredError,
)
from melisma.live import protocol
from melisma.live.learner.agent import Agent
from melisma.live.learner.connection import Connection
from melisma.live.learner.device_reports import (
    Ended,
    EndKind,
    OnReport,
    Registered,
    Retrying,
    ignore_report,
    take_standard_output,
)
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.task_processes import TaskProcesses
from melisma.live.processes import exit_with_parent
from melisma.text import visible, visible_lines
from melisma.user_code import describe_error

MAX_REASON_CHARS: Final = 1000
NO_WORK: Final = "the run has ended before this device was given work"
DEPARTURE_S: Final = 3.0
"""Time to tell the orchestrator that this learner leaves."""
FAILURE_S: Final = 20.0
"""Time to tell the orchestrator that this learner has failed."""
END_KINDS: Final[tuple[tuple[type[Exception], EndKind], ...]] = (
    (UnregisteredError, "another run"),
    (SupersededError, "settings"),
    (UnauthorizedError, "settings"),
    (SettingError, "settings"),
    (DataError, "settings"),
    (RefusedError, "refused"),
    (MalformedError, "refused"),
    (TooLargeError, "refused"),
    (UnreachableError, "unreachable"),
)


def main() -> int:
    """Run the learner whose settings are the first line of standard input."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=LearnerSettings)
    report = take_standard_output() if settings.supervised else ignore_report
    learner = LearnerProcess(settings, report)
    if settings.supervised:
        exit_with_parent(learner.leave, learner.note_slowness)
    else:
        exit_with_parent()
    try:
        was_instructed = learner.run()
    except MelismaError as error:
        report(Ended(_end_kind(error), str(error)))
        return 1
    report(Ended("run ended", "" if was_instructed else NO_WORK))
    return 0


class LearnerProcess:
    """The session of one learner in one run."""

    def __init__(self, settings: LearnerSettings, report: OnReport = ignore_report) -> None:
        self._settings, self._report = settings, report
        self._session = secrets.token_hex(16)
        self._registered, self._slowness = False, ""
        self._processes: TaskProcesses | None = None
        self._orchestrator = Connection(
            settings.orchestrator,
            token=settings.token,
            certificate=settings.certificate,
            task=settings.task,
            on_retry=self._on_retry,
        )

    def run(self) -> bool:
        """Take part in a run from registration to its end; return whether there was any work.

        An error is logged, then reported to the orchestrator: the report may end the run, and with
        it this process.
        """
        sys.path += self._settings.module_path
        try:
            return self._take_part()
        except AxonError as error:
            _log(visible_lines(str(error)))
            if reason := _refusal(error):
                self._report_failure(f"{self._settings.name}: {reason}")
            raise
        except Exception as error:
            unexpected = not isinstance(error, MelismaError)
            if unexpected:
                traceback.print_exc()
            described = describe_error(error) if unexpected else str(error)
            reason = f"{self._settings.name}: {described}"[:MAX_REASON_CHARS]
            _log(visible_lines(reason))
            self._report_failure(_public_reason(self._settings, error, reason), FAILURE_S)
            raise MelismaError(reason) from error

    def _take_part(self) -> bool:
        request = protocol.RegisterRequest(self._session, price=self._settings.price)
        reply = self._orchestrator.call("register", protocol.to_builtins(request))
        registered = protocol.parse(reply, protocol.AnyRegisterResponse)
        if isinstance(registered, protocol.TasksResponse):
            return self._work_for_tasks(registered)
        self._registered, task = True, registered.task
        self._report(Registered(registered.run, task.name, task.describe_cycles()))
        agent = Agent(
            self._settings,
            self._orchestrator,
            registered,
            self._session,
            self._report,
            slowness=lambda: self._slowness,
        )
        return agent.run()

    def _work_for_tasks(self, registered: protocol.TasksResponse) -> bool:
        """Take part in several tasks, with a process for each."""
        self._registered = True
        self._processes = TaskProcesses(
            self._settings, self._orchestrator, self._session, self._report
        )
        return self._processes.run(registered.run)

    def note_slowness(self, line: bytes) -> None:
        """Receive from the supervisor why this device runs slower; empty if it does not."""
        if self._processes is not None:
            self._processes.note_slowness(line)
        if self._settings.discloses == "costs":
            self._slowness = line.decode(errors="replace")[:MAX_REASON_CHARS]

    def leave(self) -> None:
        """Tell the orchestrator that this learner leaves the run, if it answers soon."""
        self._report_failure(f"{self._settings.name}: its owner stopped it")

    def _report_failure(self, reason: str, seconds: float = DEPARTURE_S) -> None:
        """Tell the orchestrator why this learner leaves; raise nothing, and end after `seconds`."""
        if not self._registered:
            return

        def send() -> None:
            # The run may have ended meanwhile, or refuse this session.
            with contextlib.suppress(AxonError):
                self._orchestrator.call("report_failure", self._session, reason)

        thread = threading.Thread(target=send, name="leave", daemon=True)
        thread.start()
        thread.join(seconds)

    def _on_retry(self, reason: str, pause_s: float) -> None:
        _log(f"{visible(reason)}; trying again in {pause_s:.1f} s")
        self._report(Retrying(reason, pause_s))


def _refusal(error: AxonError) -> str:
    """Return why this learner does not take part, for the orchestrator; empty if it knows."""
    if isinstance(error, SupersededError):
        # Tells the orchestrator that both sessions run: this one has not ended before.
        return "its identity is in use elsewhere"
    return str(error).partition("\n")[0] if isinstance(error, RefusedError) else ""


def _public_reason(settings: LearnerSettings, error: Exception, reason: str) -> str:
    """Return the reason for the orchestrator: an error on local data may quote samples."""
    if settings.local_data is None or isinstance(error, SettingError):
        return reason
    kind = type(error).__name__
    return f"{settings.name}: {kind} on its local data; the log of the device says more"


def _end_kind(error: MelismaError) -> EndKind:
    """Return the kind of an error, or of its cause if it is only the report of that one."""
    for kind, end in END_KINDS:
        if isinstance(error, kind) or isinstance(error.__cause__, kind):
            return end
    return "failed"


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

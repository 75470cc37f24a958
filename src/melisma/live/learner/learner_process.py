"""The process of one learner: registers it at the orchestrator and runs its agent."""

import secrets
import sys
import traceback

import msgspec

from melisma.errors import AxonError, MelismaError, SettingError
from melisma.learning.user_code import describe_error
from melisma.live import protocol
from melisma.live.learner.agent import Agent, LearnerSettings
from melisma.live.learner.connection import Connection
from melisma.live.processes import exit_with_parent
from melisma.text import visible_lines

MAX_REASON_CHARS = 1000


def main() -> int:
    """Run the learner whose settings are the first line of standard input."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=LearnerSettings)
    exit_with_parent()
    try:
        run_learner(settings)
    except MelismaError as error:
        _say(str(error))
        return 1
    return 0


def run_learner(settings: LearnerSettings) -> None:
    """Take part in a run from registration to its end; report an error to the orchestrator."""
    sys.path += settings.module_path
    orchestrator = Connection(
        settings.orchestrator,
        token=settings.token,
        certificate=settings.certificate,
        on_retry=lambda reason, pause_s: _say(f"{reason}; trying again in {pause_s:.1f} s"),
    )
    session = secrets.token_hex(16)
    reply = orchestrator.call("register", protocol.to_builtins(protocol.RegisterRequest(session)))
    registered = protocol.parse(reply, protocol.RegisterResponse)
    try:
        Agent(settings, orchestrator, registered, session).run()
    except AxonError:
        raise
    except Exception as error:
        unexpected = not isinstance(error, MelismaError)
        if unexpected:
            # Before it is reported: the report may end the run, and with it this process.
            traceback.print_exc()
        described = describe_error(error) if unexpected else str(error)
        reason = f"{settings.name}: {described}"[:MAX_REASON_CHARS]
        orchestrator.call("report_failure", session, _public_reason(settings, error, reason))
        raise MelismaError(reason) from error


def _public_reason(settings: LearnerSettings, error: Exception, reason: str) -> str:
    """Return the reason for the orchestrator: an error on local data may quote samples."""
    if settings.local_data is None or isinstance(error, SettingError):
        return reason
    kind = type(error).__name__
    return f"{settings.name}: {kind} on its local data; the log of the device says more"


def _say(line: str) -> None:
    sys.stderr.write(f"{visible_lines(line)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Reports of a device to its owner: what `melisma join` shows.

The learner process writes its own as lines of JSON to its standard output, if it is supervised.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Literal

import msgspec

EndKind = Literal["run ended", "another run", "refused", "settings", "unreachable", "failed"]
"""Why a learner process ended.

With ``another run`` the orchestrator was started again meanwhile: the learner registers again.
A ``refused`` learner may be accepted in another run of the same orchestrator. With ``settings``
it needs a change by its owner. A learner that ``failed`` may be started again.
"""


class DeviceReport(msgspec.Struct, frozen=True, tag_field="report", tag=True):
    """The base of all reports."""


class Reached(DeviceReport, frozen=True):
    """The orchestrator answered at an address, with the expected certificate.

    One that discovery found has a `name`; only the code proves that certificate.
    """

    address: str
    fingerprint: str
    failures: tuple[str, ...] = ()
    name: str = ""


class IdentityReady(DeviceReport, frozen=True):
    """The identity of this device was loaded, or created."""

    fingerprint: str
    created: bool


class CodeRefused(DeviceReport, frozen=True):
    """The orchestrator refused a code of the owner, who may try another one."""

    reason: str


class ApprovalAwaited(DeviceReport, frozen=True):
    """The orchestrator has not answered the request to enrol yet."""


class Enrolled(DeviceReport, frozen=True):
    """The orchestrator knows this device by a name; `again` if it did before."""

    name: str
    again: bool = False


class LearnerStarted(DeviceReport, frozen=True):
    """The learner process was started; its own messages are in a file."""

    pid: int
    log: str


class Registered(DeviceReport, frozen=True):
    """The learner has registered for a run of a task, with its cycles in words."""

    run: str
    task: str
    cycles: str


class Measured(DeviceReport, frozen=True):
    """The speed of this device was measured; `again` is the reason, if it was known before."""

    samples_per_s: float
    again: str = ""


class Joined(DeviceReport, frozen=True):
    """The learner is part of the run and waits for work; the run may not have `begun`."""

    begun: bool = True


class CycleTrained(DeviceReport, frozen=True):
    """The update of a cycle was uploaded; `refused` says why it does not count, if it does not."""

    cycle: int
    visits: int
    train_s: float
    loss: float | None  # None if it is not finite
    refused: str = ""


class Retrying(DeviceReport, frozen=True):
    """A call got no answer and is repeated after a pause; the reason names the address."""

    reason: str
    pause_s: float


class Ended(DeviceReport, frozen=True):
    """The learner process has ended."""

    kind: EndKind
    reason: str = ""


class Restarting(DeviceReport, frozen=True):
    """The learner process failed and is started again after a pause."""

    reason: str
    pause_s: float


class Paused(DeviceReport, frozen=True):
    """The device has left the run until a limit of its owner allows work again."""

    reason: str


class Resumed(DeviceReport, frozen=True):
    """The limits of the owner allow work again."""


class Slowed(DeviceReport, frozen=True):
    """The device runs slower than it could; empty reasons mean that it no longer does."""

    reasons: tuple[str, ...]


class AwaitingRun(DeviceReport, frozen=True):
    """The device waits for the next run of the orchestrator."""

    reason: str


class LeftRun(DeviceReport, frozen=True):
    """The owner stopped the device, and it has left the run."""


class OfTask(DeviceReport, frozen=True):
    """A report of the process for one task, of an orchestrator that has several."""

    task: str
    of: "Registered | Measured | Joined | CycleTrained | Retrying | Ended"


class TaskAwaited(DeviceReport, frozen=True):
    """The device takes part in an orchestrator of several tasks, and waits for one."""

    run: str


LearnerReport = (
    OfTask | TaskAwaited | Registered | Measured | Joined | CycleTrained | Retrying | Ended
)
"""The reports that the learner process writes."""
OnReport = Callable[[DeviceReport], None]


def ignore_report(report: DeviceReport) -> None:
    """Discard a report."""


def take_standard_output() -> OnReport:
    """Return a function that writes reports to standard output, and nothing else there.

    What other code prints goes to standard error from now on.
    """
    handle = os.dup(1)
    os.dup2(2, 1)

    def write(report: DeviceReport) -> None:
        # The supervisor may have ended; then this process ends too.
        with contextlib.suppress(OSError):
            os.write(handle, msgspec.json.encode(report) + b"\n")

    return write


def read_report(line: bytes) -> LearnerReport:
    """Decode a line of the learner process; raise `msgspec.DecodeError` for other bytes."""
    report: LearnerReport = msgspec.json.decode(line, type=LearnerReport)
    return report

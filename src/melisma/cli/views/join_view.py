"""The lines that `melisma join` prints."""

import re
from functools import singledispatch

from melisma.live.learner import device_reports as reports
from melisma.text import format_speed, visible

FINGERPRINT_CHARS = len("sha256:") + 16


def report_line(report: reports.DeviceReport) -> str:
    """Return a report as one line or several, with text from other machines escaped."""
    return "\n".join(visible(line) for line in _line(report).split("\n"))


@singledispatch
def _line(report: reports.DeviceReport) -> str:
    raise NotImplementedError(type(report).__name__)


@_line.register
def _(report: reports.IdentityReady) -> str:
    made = "created" if report.created else "loaded"
    return f"identity {report.fingerprint[:FINGERPRINT_CHARS]} {made}"


@_line.register
def _(report: reports.Reached) -> str:
    lines = [f"not reached: {_one_line(failure)}" for failure in report.failures]
    fingerprint = report.fingerprint[:FINGERPRINT_CHARS]
    if report.name:
        found = f"reached {_one_line(report.name)} at {report.address}"
        lines.append(f"{found}; the code will prove its certificate {fingerprint}")
    else:
        lines.append(
            f"reached the orchestrator at {report.address}, certificate {fingerprint} checked"
        )
    return "\n".join(lines)


@_line.register
def _(report: reports.CodeRefused) -> str:
    return _one_line(report.reason)


@_line.register
def _(_: reports.ApprovalAwaited) -> str:
    return "waiting for the owner of the orchestrator to accept this device"


@_line.register
def _(report: reports.Enrolled) -> str:
    return f"known to the orchestrator as {_one_line(report.name)}" + (
        ", as before" if report.again else ""
    )


@_line.register
def _(report: reports.LearnerStarted) -> str:
    return f"started the learner process {report.pid}; its messages are in {report.log}"


@_line.register
def _(report: reports.TaskAwaited) -> str:
    return f"joined run {_one_line(report.run)}, which may have several tasks; waiting for one"


@_line.register
def _(report: reports.OfTask) -> str:
    if isinstance(report.of, reports.Ended):
        why = f": {_one_line(report.of.reason)}" if report.of.reason else ""
        return f"{_one_line(report.task)}: {report.of.kind}{why}"
    return f"{_one_line(report.task)}: {_line(report.of)}"


@_line.register
def _(report: reports.Registered) -> str:
    task = f"task {_one_line(report.task)}, {report.cycles}"
    return f"registered for run {_one_line(report.run)}: {task}"


@_line.register
def _(report: reports.Measured) -> str:
    again = f" again, {report.again}:" if report.again else ""
    return f"measured{again} {format_speed(report.samples_per_s)}"


@_line.register
def _(report: reports.Joined) -> str:
    return f"joined; waiting for {'work' if report.begun else 'the run to begin'}"


@_line.register
def _(report: reports.CycleTrained) -> str:
    line = f"cycle {report.cycle}: {report.visits:,} samples in {report.train_s:.1f} s"
    if report.train_s > 0 and report.visits:
        line += f", {format_speed(report.visits / report.train_s)}"
    if report.loss is not None and report.visits:
        line += f", loss {report.loss:.4g}"
    return line + (f"; not counted: {_one_line(report.refused)}" if report.refused else "")


@_line.register
def _(report: reports.Retrying) -> str:
    # The rest of an address is its fingerprint, and after the reason comes advice.
    reason = re.sub(r"#sha256:\w+", "", _one_line(report.reason)).partition("): ")
    cause = reason[0] + (")" if reason[1] else "")
    return f"{cause}; trying again in {report.pause_s:.1f} s"


@_line.register
def _(report: reports.Ended) -> str:
    # Other ends are printed as errors, or with the pause before the next start.
    lines = {
        "run ended": _one_line(report.reason) or "the run has ended",
        "another run": "the orchestrator has begun another run: joining it",
    }
    return lines.get(report.kind, "")


@_line.register
def _(report: reports.Restarting) -> str:
    return (
        f"the learner process failed: {_one_line(report.reason)}; starting it again in "
        f"{report.pause_s:.0f} s"
    )


@_line.register
def _(report: reports.Paused) -> str:
    return f"paused: {report.reason}"


@_line.register
def _(_: reports.Resumed) -> str:
    return "resumed"


@_line.register
def _(report: reports.Slowed) -> str:
    return "\n".join(f"slower: {reason}" for reason in report.reasons) or "at full speed again"


@_line.register
def _(report: reports.AwaitingRun) -> str:
    return f"waiting for the next run: {_one_line(report.reason)}"


@_line.register
def _(_: reports.LeftRun) -> str:
    return "left the run"


def _one_line(text: str) -> str:
    """Return text from another machine without line breaks, which `report_line` would keep."""
    return " ".join(text.split())

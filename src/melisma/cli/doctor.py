"""`melisma doctor`: check whether this device can train, and say what to mend."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from melisma.cli.options import FILE, join_string_argument, json_option
from melisma.cli.output import write
from melisma.live.joining import device_checks
from melisma.live.joining.clock_check import is_synchronized
from melisma.live.joining.device_checks import CheckedOrchestrator, Finding
from melisma.live.learner.device_identity import DeviceState
from melisma.text import visible

WIDTH = len("orchestrator")


@click.command("doctor", short_help="Check this device, and say what to mend.")
@join_string_argument
@click.option("--cache", type=FILE, help="Folder for shards; default: in the state folder.")
@click.option("--data", metavar="MODULE:FUNCTION|FOLDER", help="Data of this device.")
@json_option
def command(string: str | None, cache: Path | None, data: str | None, as_json: bool) -> None:
    """Check Python, packages, memory, disk, clock, power, data, speed and GPU of this device.

    With a join STRING, or on a device that has joined before, also the way to the orchestrator.
    """
    # Before the checks, which take seconds.
    state = DeviceState()
    target = (
        CheckedOrchestrator.from_string(string)
        if string is not None
        else CheckedOrchestrator.last_joined(state)
    )
    findings = []
    for finding in _check(state, target, cache, data):
        findings.append(finding)
        if not as_json:
            write(f"{finding.level:4}  {finding.check:{WIDTH}}  {visible(finding.text)}\n")
    if as_json:
        write(msgspec.json.encode(findings).decode() + "\n")
    elif target is None:
        write("no orchestrator is known: pass the join string to check the way to it\n")
    sys.exit(int(any(finding.level == "fail" for finding in findings)))


def _check(
    state: DeviceState, target: CheckedOrchestrator | None, cache: Path | None, data: str | None
) -> Iterator[Finding]:
    home = state.identity.parent
    yield device_checks.check_python()
    yield device_checks.check_packages()
    yield device_checks.check_memory()
    yield device_checks.check_disk("home", home)
    yield device_checks.check_disk("cache", (cache or home / "cache").absolute())
    yield device_checks.check_clock(synchronized=is_synchronized())
    yield from device_checks.check_power()
    if data is not None:
        # The module of a function may be in the current folder, as with melisma join.
        sys.path.append(str(Path.cwd()))
        yield device_checks.check_data(data)
    if target is not None:
        yield from device_checks.check_orchestrator(target, state)
    yield from device_checks.check_speed()

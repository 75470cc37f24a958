"""`melisma submit`: add a task to the service that runs on this machine."""

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from melisma import axon
from melisma.cli.options import DEFAULT_TASK, default_task_argument, json_option
from melisma.cli.output import write
from melisma.cli.status import connect_owner
from melisma.cli.views.candidates_view import candidates_view
from melisma.errors import SettingError
from melisma.fleet.files.task_file import read_task
from melisma.live import protocol
from melisma.live.orchestrator.running_orchestrator import require_running
from melisma.live.service.owner_methods import ServedTask, TaskProposal
from melisma.service.plan_candidates import PlanCandidate

LOAD_S = 900.0
"""Time in which a service loads the model and the data of a task, and devices measure it."""


@click.command("submit", short_help="Add a task to the service that runs on this machine.")
@default_task_argument
@click.option("--yes", is_flag=True, help="Add the task without a question.")
@json_option
def command(task: Path | None, yes: bool, as_json: bool) -> None:
    """Add TASK.toml to the tasks of the service that `melisma orchestrate` runs on this machine.

    The devices measure the task first. Then the candidates are shown: when each task would end,
    what it costs, and what another budget or deadline would give. Without a file: handwritten
    digits.
    """
    file = (task or DEFAULT_TASK).resolve()
    read_task(file)
    with connect_owner(require_running(), LOAD_S) as service:
        if not as_json:
            write("devices measure the task, and candidates are planned: this may take a minute\n")
        proposal = protocol.parse(service["propose"](str(file)), TaskProposal)
        try:
            added = _confirm(service, proposal, yes=yes, as_json=as_json)
        except BaseException:
            service["withdraw"](proposal.number)
            raise
    if as_json:
        content = {"task": added, "candidates": proposal.candidates}
        write(msgspec.json.encode(content).decode() + "\n")
        return
    write(f"{added.name}: task {added.number}, {added.state}; its folder is {added.folder}\n")
    if added.reason:
        write(f"{added.reason}\n")
    write(f"melisma status shows it, and melisma result {added.name} what it has learnt\n")


def _confirm(
    service: axon.Remote, proposal: TaskProposal, *, yes: bool, as_json: bool
) -> ServedTask:
    """Show the candidates, and add the task if the owner agrees."""
    candidates = [msgspec.convert(each, PlanCandidate) for each in proposal.candidates]
    if not candidates:
        why = "no device has joined" if not proposal.devices else "no device has measured it yet"
        _note(f"{why}: when the task ends, and what it costs, is not known", as_json=as_json)
    elif not as_json:
        write(candidates_view(candidates, has_prices=True))
    _require_plan(candidates)
    if not yes and not as_json and sys.stdin.isatty():
        click.confirm("add the task?", default=True, abort=True, err=True)
    added: Any = protocol.parse(service["confirm"](proposal.number), ServedTask)
    assert isinstance(added, ServedTask)
    return added


def _note(line: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(line, err=True)
    else:
        write(f"{line}\n")


def _require_plan(candidates: list[PlanCandidate]) -> None:
    """Raise `SettingError` if there is no plan for the task as it is; others say what would do."""
    if not candidates or candidates[0].feasible:
        return
    changes = " or ".join(each.change for each in candidates[1:] if each.feasible)
    hint = f"; use {changes}" if changes else ""
    raise SettingError(f"the task was not added: {candidates[0].reason}{hint}")

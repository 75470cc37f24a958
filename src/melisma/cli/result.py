"""`melisma result`: the results of a task of a service, while it runs or later."""

from pathlib import Path

import click

from melisma.cli.options import FILE, json_option, show_option
from melisma.cli.output import exit_with, write, write_json
from melisma.cli.status import ask_status
from melisma.cli.views.run_summary_view import run_summary_view
from melisma.errors import SettingError
from melisma.live.orchestrator.running_orchestrator import require_running
from melisma.live.service.owner_methods import TasksStatus
from melisma.live.service.service_folder import find_report


@click.command("result", short_help="Show the results of a task of a service.")
@click.argument("name")
@click.option("--folder", type=FILE, help="Folder of the service; default: the one that runs.")
@show_option
@json_option
def command(name: str, folder: Path | None, show: int, as_json: bool) -> None:
    """Show what the task NAME has learnt so far, and the path of its model.

    The exit code is that of `melisma run`; of a task that has not ended it is 0.
    """
    report = find_report(folder or _running_folder(), name)
    if as_json:
        write_json(report.as_dict())
    else:
        write(run_summary_view(report, show))
    if report.outcome != "running":
        exit_with(report.outcome)


def _running_folder() -> Path:
    status = ask_status(require_running())
    if not isinstance(status, TasksStatus):
        raise SettingError(
            f"the orchestrator of this machine runs one task, {status.task}: use melisma status"
        )
    return Path(status.folder)

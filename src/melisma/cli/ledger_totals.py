"""`melisma ledger`: print what each task has paid to learners."""

from pathlib import Path
from typing import get_args

import click

from melisma.atomic import write_atomic
from melisma.cli.options import FILE, json_option
from melisma.cli.output import write, write_json
from melisma.cli.views.ledger_view import ledger_view
from melisma.errors import SettingError
from melisma.runs.payment_ledger import By, has_ledger, read_ledger

RUNS = Path("runs")


def find_latest() -> Path:
    """Return the latest folder below `runs` that has a ledger; `SettingError` if none has."""
    folders = [each for each in RUNS.glob("*") if has_ledger(each)] if RUNS.is_dir() else []
    if not folders:
        raise SettingError(
            f"no folder in {RUNS}/ has a ledger; name the folder of a service, or that of a "
            "simulation of several tasks with --out"
        )
    return max(folders, key=lambda each: each.stat().st_mtime)


@click.command("ledger", short_help="Print what tasks have paid to learners.")
@click.argument("folder", metavar="[FOLDER]", required=False, type=FILE)
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="task",
    show_default=True,
    help="Sums for each task, or for each learner.",
)
@click.option("--csv", "csv_file", type=FILE, metavar="FILE", help="Write all payments as CSV.")
@json_option
def command(*, folder: Path | None, by: By, csv_file: Path | None, as_json: bool) -> None:
    """Print what the tasks of a service have paid to learners, also while it runs.

    FOLDER is that of the service, or of a simulation of several tasks; by default the latest one
    below runs/. Nothing in it is changed.
    """
    ledger = read_ledger(folder or find_latest())
    if csv_file is not None:
        try:
            write_atomic(csv_file, ledger.to_csv().encode())
        except OSError as error:
            raise SettingError(f"cannot write {csv_file}: {error.strerror}") from error
    if as_json:
        write_json(ledger.as_dict())
    else:
        write(ledger_view(ledger, by))

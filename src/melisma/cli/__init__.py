"""The `melisma` command: its subcommands and exit codes.

A subcommand is a module of this package with a click command named `command`. It is imported only
when it is used, so that `melisma --version` starts quickly.
Exit codes: 0 success, 1 an error of Melisma, 2 wrong usage or settings, 130 interrupted. An error
is printed as one line.

::

    axon.py               `melisma axon`
    bench.py              `melisma bench`
    bench_device.py       the device that `melisma bench` measures
    bench_report.py       the measurements of `melisma bench`
    cancel.py             `melisma cancel`
    code.py               `melisma code`
    compare.py            `melisma compare`
    data.py               `melisma data`
    doctor.py             `melisma doctor`
    durations.py          durations as options and answers
    enrolled_learners.py  `melisma learners`
    evaluate.py           `melisma evaluate`
    init.py               `melisma init`
    join.py               `melisma join`
    ledger_totals.py      `melisma ledger`
    options.py            options that several subcommands share
    orchestrate.py        `melisma orchestrate`
    output.py             writing to standard output
    peers/                `melisma peers`
    plan.py               `melisma plan`
    process_list.py       secrets of the command line, hidden from other users
    rename.py             `melisma rename`
    result.py             `melisma result`
    resume.py             `melisma resume`
    revoke.py             `melisma revoke`
    run.py                `melisma run`
    scheme_option.py      the `--scheme` option of several subcommands
    service_run.py        several tasks in `melisma run`, `resume` and `simulate`
    simulate.py           `melisma simulate`
    size.py               `melisma size`
    starter_files.py      the text of the files that `melisma init` writes
    status.py             `melisma status`
    submit.py             `melisma submit`
    status_line.py        a line of a terminal that changes while a command computes
    suggestions.py        suggestions for misspelled commands and values
    usage_errors.py       wrong usage of the command line as one line
    views/                tables and lines that the subcommands print
"""

import errno
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import click

from melisma import __version__
from melisma.cli.suggestions import SuggestingGroup
from melisma.errors import MelismaError, MelismaWarning, SettingError
from melisma.text import visible_part

# By the heading in the help.
COMMAND_GROUPS = {
    "Train": ("init", "run", "orchestrate", "join", "resume", "peers", "evaluate"),
    "Plan and simulate": ("plan", "simulate", "compare", "size"),
    "Tasks of a service": ("submit", "cancel", "result", "ledger"),
    "Devices of an orchestrator": ("status", "learners", "code", "rename", "revoke"),
    "Tools": ("doctor", "bench", "data", "axon"),
}
SUBCOMMANDS = tuple(name for names in COMMAND_GROUPS.values() for name in names)
SUMMARY_LETTERS = 100

# Of subcommands whose module has another name.
MODULES = {"learners": "enrolled_learners", "ledger": "ledger_totals"}


class LazyGroup(SuggestingGroup):
    """A group that imports a subcommand when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command = import_module(f"{__name__}.{MODULES.get(cmd_name, cmd_name)}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands under the headings of their groups."""
        width = max(map(len, SUBCOMMANDS))
        for heading, names in COMMAND_GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{name:{width}}", each.get_short_help_str(SUMMARY_LETTERS))
                        for name, each in commands
                        if each is not None
                    ]
                )


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="melisma")
def melisma() -> None:
    """Train one model on the devices you have, by the deadline you set."""


def main() -> None:
    """Run the command line, and turn an error of Melisma into one line and an exit code."""
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    if threading.current_thread() is threading.main_thread():
        # Treat SIGTERM like Ctrl-C, so that partial results are saved.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = melisma.main(prog_name="melisma", standalone_mode=False)
    # Click turns Ctrl-C into Abort while it runs a command, but not before.
    except (click.Abort, KeyboardInterrupt):
        click.echo("melisma: interrupted", err=True)
        code = 130
    except click.ClickException as error:
        _show_click_error(error)
        code = error.exit_code
    except MelismaError as error:
        click.echo(f"melisma: {visible_part(one_line(error))}", err=True)
        code = 2 if isinstance(error, SettingError) else 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        click.echo(f"melisma: {error.filename or 'disk'}: no space left on the disk", err=True)
        code = 1
    sys.exit(code or 0)


def _show_click_error(error: click.ClickException) -> None:
    """Print an error as one line; a group without a command prints its help."""
    from melisma.cli.usage_errors import usage_line

    shows_help = isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))
    if isinstance(error, click.UsageError) and not shows_help:
        click.echo(f"melisma: {visible_part(usage_line(error))}", err=True)
    else:
        error.show()


def _show_warning(
    default: Callable[..., None], message: Warning | str, *args: Any, **kwargs: Any
) -> None:
    """Print a warning of Melisma as one line, and any other warning by `default`."""
    if isinstance(message, MelismaWarning):
        click.echo(f"melisma: {' '.join(str(message).split())}", err=True)
    else:
        default(message, *args, **kwargs)


def one_line(error: MelismaError) -> str:
    """Return the first paragraph of the message as one line; a remote traceback may follow it."""
    paragraph = str(error).partition("\n\n")[0]
    return " ".join(paragraph.split()) or type(error).__name__

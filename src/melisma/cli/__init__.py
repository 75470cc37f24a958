"""The `melisma` command: which subcommands there are, and how errors end it.

A subcommand is a module of this package with a click command named `command`;
it is imported only when it is asked for, so that `melisma --version` stays quick.
Exit codes: 0 done, 1 an error of Melisma, 2 wrong usage or settings, 130 interrupted; errors are
one line.

The modules::

    run.py, simulate.py, compare.py, peers.py, plan.py, bench.py, data.py, axon.py   subcommands
    bench_device.py        the device that `melisma bench` measures
    bench_measurement.py   the measurements of `melisma bench`
    suggestions.py         choices and groups that suggest the nearest known word
    files.py               files that commands take, and the default ones
    output.py              text for terminals, files and pipes
    views/                 tables and summaries that commands print
"""

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

SUBCOMMANDS = ("run", "simulate", "compare", "peers", "plan", "bench", "data", "axon")


class LazyGroup(SuggestingGroup):
    """A group that imports a subcommand when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command = import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="melisma")
def melisma() -> None:
    """Train one model on the devices you have, by the deadline you set."""


def main() -> None:
    """Run the command line; an error of Melisma becomes one line and an exit code."""
    warnings.showwarning = partial(_show, warnings.showwarning)
    if threading.current_thread() is threading.main_thread():
        # Who is asked to end, as services are, ends as by Ctrl-C: what there is is kept.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = melisma.main(prog_name="melisma", standalone_mode=False)
    # Click turns Ctrl-C into Abort while it runs a command, but not before.
    except (click.Abort, KeyboardInterrupt):
        click.echo("melisma: interrupted", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except MelismaError as error:
        click.echo(f"melisma: {one_line(error)}", err=True)
        code = 2 if isinstance(error, SettingError) else 1
    sys.exit(code or 0)


def _show(others: Callable[..., None], message: Warning | str, *said: Any, **more: Any) -> None:
    """A warning of Melisma as one line, too; those of others as ever."""
    if isinstance(message, MelismaWarning):
        click.echo(f"melisma: {' '.join(str(message).split())}", err=True)
    else:
        others(message, *said, **more)


def one_line(error: MelismaError) -> str:
    """The first paragraph of the message; a remote traceback, where there is one, follows it."""
    paragraph = str(error).partition("\n\n")[0]
    return " ".join(paragraph.split()) or type(error).__name__

"""Options that several subcommands share, and the files used if none is given."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from melisma.cli.durations import DURATION
from melisma.cli.process_list import hide_argument
from melisma.errors import SettingError

if TYPE_CHECKING:
    from melisma.fleet.run_time import RunTime

T = TypeVar("T")

DEFAULT_TASK = Path(__file__).parent / "default_files" / "task.toml"
DEFAULT_FLEET = Path(__file__).parent / "default_files" / "fleet.toml"
FILE = click.Path(path_type=Path)
COUNT = click.IntRange(1)
PORT = click.IntRange(0, 65535)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
token_option = click.option(
    "--token", envvar="AXON_TOKEN", help="Token to require or to present (or $AXON_TOKEN)."
)


def _hide(_context: click.Context, _argument: click.Parameter, string: str | None) -> str | None:
    """Hide a join string, which contains a token, before anything else is done with it."""
    if string is not None:
        hide_argument(string)
    return string


join_string_argument = click.argument("string", required=False, callback=_hide)
default_task_argument = click.argument("task", metavar="[TASK.toml]", type=FILE, required=False)
default_tasks_argument = click.argument(
    "tasks", metavar="[TASK.toml]...", type=FILE, nargs=-1, required=False
)
default_fleet_option = click.option(
    "--fleet",
    metavar="FLEET.toml",
    type=FILE,
    help="The devices; default: two Raspberry Pis, a phone and a Jetson.",
)
learners_option = click.option(
    "--learners", type=COUNT, help="Scale the fleet to this number of learners."
)
_deadline_option = click.option(
    "--deadline", "deadline_s", type=DURATION, help="Time of a cycle, instead of the task's."
)
_total_option = click.option(
    "--total",
    "total_s",
    type=DURATION,
    help="Time of the whole run, such as 90, 10min or 2h, which chooses its cycles.",
)
_finish_by_option = click.option(
    "--finish-by", metavar="TIME", help="When the whole run ends, such as 23:00."
)


def time_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options of `RunTime`, and pass it to the command as `run_time`."""

    @functools.wraps(command)
    def pass_time(
        *args: Any,
        deadline_s: float | None,
        total_s: float | None,
        finish_by: str | None,
        **kwargs: Any,
    ) -> T:
        # `melisma join` imports this module and must stay light.
        from melisma.fleet.run_time import RunTime

        return command(*args, run_time=RunTime(deadline_s, total_s, finish_by), **kwargs)

    return _deadline_option(_total_option(_finish_by_option(pass_time)))


_start_option = click.option(
    "--start", type=FILE, metavar="MODEL", help="Start from this model.safetensors."
)
_aggregation_option = click.option(
    "--aggregation",
    metavar="NAME",
    help="Aggregate updates by mean, median, trimmed_mean, or module:function.",
)


def run_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options of `RunSettings`, those of `RunTime` included; pass it as `run_settings`."""

    @functools.wraps(command)
    def pass_settings(
        *args: Any, run_time: "RunTime", start: Path | None, aggregation: str | None, **kwargs: Any
    ) -> T:
        from melisma.fleet.run_settings import RunSettings

        times = run_time.deadline_s, run_time.total_s, run_time.finish_by
        settings = RunSettings(*times, start, aggregation)
        return command(*args, run_settings=settings, **kwargs)

    return time_options(_start_option(_aggregation_option(pass_settings)))


show_option = click.option(
    "--show",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Maximum number of learners to list.",
)
faults_option = click.option(
    "--faults", default="", help="Faults to inject, a seed to draw them, or module:function."
)
search_faults_option = click.option(
    "--search-faults", type=COUNT, metavar="N", help="Check N random fault schedules."
)


def check_picture_path(picture: Path | None) -> None:
    """Raise SettingError before the runs if the picture cannot be saved after them."""
    if picture is not None and (picture.is_dir() or not picture.parent.is_dir()):
        raise SettingError(f"--picture is {picture}; expected a file in an existing folder")
    if picture is not None and picture.suffix != ".svg":
        raise SettingError(f"--picture is {picture}; expected a name that ends with .svg")

"""Options that several subcommands share, and the files used if none is given."""

from pathlib import Path

import click

from melisma.cli.process_list import hide_argument

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
default_fleet_option = click.option(
    "--fleet",
    metavar="FLEET.toml",
    type=FILE,
    help="The devices; default: two Raspberry Pis, a phone and a Jetson.",
)
learners_option = click.option(
    "--learners", type=COUNT, help="Scale the fleet to this number of learners."
)
faults_option = click.option(
    "--faults", default="", help="Faults to inject, or a seed to draw them."
)
search_faults_option = click.option(
    "--search-faults", type=COUNT, metavar="N", help="Check N random fault schedules."
)

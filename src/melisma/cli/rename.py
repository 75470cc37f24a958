"""`melisma rename`: give a device another name."""

import click

from melisma.cli.options import json_option
from melisma.cli.output import write, write_json
from melisma.live.orchestrator.registry import Registry


@click.command("rename", short_help="Give a device another name.")
@click.argument("name", metavar="OLD")
@click.argument("new_name", metavar="NEW")
@json_option
def command(name: str, new_name: str, as_json: bool) -> None:
    """Give the device OLD the name NEW, from the next run on."""
    renamed = Registry().rename(name, new_name)
    if as_json:
        write_json(renamed)
    else:
        write(f"{name} is {renamed.name} from the next run on\n")

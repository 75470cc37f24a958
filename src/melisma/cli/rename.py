"""`melisma rename`: give a device another name."""

import click

from melisma.cli.output import write
from melisma.live.orchestrator.registry import Registry


@click.command("rename", short_help="Give a device another name.")
@click.argument("name", metavar="OLD")
@click.argument("new_name", metavar="NEW")
def command(name: str, new_name: str) -> None:
    """Give the device OLD the name NEW, from the next run on."""
    write(f"{name} is {Registry().rename(name, new_name).name} from the next run on\n")

"""`melisma revoke`: refuse a device from now on."""

import click

from melisma.cli.options import json_option
from melisma.cli.output import write, write_json
from melisma.live.orchestrator.registry import Registry


@click.command("revoke", short_help="Refuse a device from now on.")
@click.argument("name")
@json_option
def command(name: str, as_json: bool) -> None:
    """Refuse the device NAME from now on; a running orchestrator removes it at once."""
    revoked = Registry().revoke(name)
    if as_json:
        write_json(revoked)
        return
    write(f"{revoked.name} is revoked; to join again it needs melisma join STRING --new-identity\n")

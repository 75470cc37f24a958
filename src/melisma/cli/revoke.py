"""`melisma revoke`: refuse a device from now on."""

import click

from melisma.cli.output import write
from melisma.live.orchestrator.registry import Registry


@click.command("revoke", short_help="Refuse a device from now on.")
@click.argument("name")
def command(name: str) -> None:
    """Refuse the device NAME from now on; a running orchestrator removes it at once."""
    revoked = Registry().revoke(name)
    write(f"{revoked.name} is revoked; to join again it needs melisma join STRING --new-identity\n")

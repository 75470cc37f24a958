"""`melisma axon`: call functions, find workers, run a notice board or a relay."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from melisma import axon
from melisma.axon.address import host_and_port
from melisma.cli.suggestions import SuggestingGroup
from melisma.errors import RemoteError, SettingError

listen_option = click.option(
    "--listen", metavar="HOST:PORT", help="Where to listen; 0.0.0.0 means every interface."
)
token_option = click.option(
    "--token", envvar="AXON_TOKEN", help="The token to ask for or to show (or $AXON_TOKEN)."
)
tls_option = click.option("--tls", is_flag=True, help="Use TLS with a certificate made here.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("axon", cls=SuggestingGroup)
def command() -> None:
    """Remote calls: call a function, find workers, run a notice board or a relay."""


@command.command("call")
@click.argument("address")
@click.argument("function")
@click.argument("arguments", nargs=-1)
@token_option
@click.option("--deadline", "deadline_s", type=float, help="Seconds until the call is given up.")
@json_option
def call_command(
    address: str,
    function: str,
    arguments: tuple[str, ...],
    token: str | None,
    deadline_s: float | None,
    as_json: bool,
) -> None:
    """Call FUNCTION at ADDRESS; ARGUMENTS are JSON, or text where they are not.

    Options come first; put -- before ARGUMENTS that begin with a dash.
    """
    show = partial(json.dumps, default=repr) if as_json else str
    with axon.connect(address, token=token, deadline_s=deadline_s) as worker:
        try:
            result = worker[function](*map(_value, arguments))
            for item in result if isinstance(result, Iterator) else [result]:
                click.echo(show(item))
        except Exception as error:
            if isinstance(error.__cause__, RemoteError):  # the function's mistake, not this one's
                raise error.__cause__ from None
            raise


@command.command("list")
@click.argument("address")
@token_option
@json_option
def list_command(address: str, token: str | None, as_json: bool) -> None:
    """List the functions of the worker at ADDRESS."""
    with axon.connect(address, token=token) as worker:
        functions = axon.describe(worker)
    if as_json:
        click.echo(json.dumps(functions))
        return
    for function in functions:
        doc = function["doc"].partition("\n")[0]
        click.echo(f"{function['name']}{function['signature']}" + (f"  {doc}" if doc else ""))


@command.command("find")
@click.option("--board", help="Ask this notice board instead of the local network.")
@click.option("--seconds", default=2.0, show_default=True, help="How long to listen for answers.")
@token_option
@json_option
def find_command(board: str | None, seconds: float, token: str | None, as_json: bool) -> None:
    """Find workers, on the local network or on a notice board."""
    found = axon.workers(board, token=token) if board else axon.discover(seconds)
    if as_json:
        click.echo(json.dumps([asdict(worker) for worker in found]))
        return
    for worker in found:
        click.echo(f"{worker.name}  {worker.address}")
    if not found:
        click.echo("no workers found", err=True)


@command.command("board")
@listen_option
@token_option
@tls_option
def board_command(listen: str | None, token: str | None, tls: bool) -> None:
    """Run a notice board (port 8002) until interrupted."""
    board = axon.board_worker(**_place(listen), token=token, tls=tls)
    board.serve(on_started=lambda address: click.echo(f"notice board at {address}"))


@command.command("relay")
@listen_option
@token_option
@tls_option
def relay_command(listen: str | None, token: str | None, tls: bool) -> None:
    """Run a relay (port 8001) until interrupted."""
    relay = axon.Relay(**_place(listen), token=token, tls=tls)
    relay.serve(on_started=lambda address: click.echo(f"relay at {address}"))


@command.command("token")
@click.argument("name")
@click.option("--lifetime", "lifetime_s", type=float, help="Seconds until it expires.")
@click.option("--once", is_flag=True, help="Good for one call.")
def token_command(name: str, lifetime_s: float | None, once: bool) -> None:
    """Issue a token for NAME from the secret in $AXON_TOKEN."""
    secret = os.environ.get("AXON_TOKEN")
    if not secret:
        raise SettingError("put the worker's token into the environment variable AXON_TOKEN")
    click.echo(axon.issue_token(secret, name, lifetime_s=lifetime_s, once=once))


def _place(listen: str | None) -> dict[str, Any]:
    if listen is None:
        return {}
    host, port = host_and_port(listen)
    return {"host": host, "port": port}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

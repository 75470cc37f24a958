"""`melisma axon`: call functions, find workers, run a notice board or a relay."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from melisma import axon
from melisma.axon.address import host_and_port
from melisma.cli.durations import DURATION, Duration
from melisma.cli.options import json_option, token_option
from melisma.cli.suggestions import SuggestingGroup
from melisma.errors import RemoteError, SettingError

listen_option = click.option(
    "--listen", metavar="HOST:PORT", help="Address to listen on; 0.0.0.0 means every interface."
)
tls_option = click.option("--tls", is_flag=True, help="Use TLS with a self-signed certificate.")


@click.group("axon", cls=SuggestingGroup, short_help="Call remote functions and find workers.")
def command() -> None:
    """Call remote functions, find workers, run a notice board or a relay."""


@command.command("call")
@click.argument("address")
@click.argument("function")
@click.argument("arguments", nargs=-1)
@token_option
@click.option(
    "--deadline", "deadline_s", type=DURATION, help="Time until the call fails, such as 30 or 2min."
)
@json_option
def call_command(
    address: str,
    function: str,
    arguments: tuple[str, ...],
    token: str | None,
    deadline_s: float | None,
    as_json: bool,
) -> None:
    """Call FUNCTION at ADDRESS; ARGUMENTS are JSON, otherwise text.

    Options come first; put -- before ARGUMENTS that begin with a dash.
    """
    show = partial(json.dumps, default=repr) if as_json else str
    with axon.connect(address, token=token, deadline_s=deadline_s) as worker:
        try:
            result = worker[function](*map(_parse_argument, arguments))
            for item in result if isinstance(result, Iterator) else [result]:
                click.echo(show(item))
        except Exception as error:
            if isinstance(error.__cause__, RemoteError):  # raised by the remote function
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
@click.option("--board", help="Search this notice board instead of the local network.")
@click.option("--seconds", default=2.0, show_default=True, help="Seconds to wait for answers.")
@token_option
@json_option
def find_command(board: str | None, seconds: float, token: str | None, as_json: bool) -> None:
    """Find workers, on the local network or on a notice board."""
    workers = axon.workers(board, token=token) if board else axon.discover(seconds)
    if as_json:
        click.echo(json.dumps([asdict(worker) for worker in workers]))
        return
    for worker in workers:
        click.echo(f"{worker.name}  {worker.address}")
    if not workers:
        click.echo("no workers found", err=True)


@command.command("board")
@listen_option
@token_option
@tls_option
@json_option
def board_command(listen: str | None, token: str | None, tls: bool, as_json: bool) -> None:
    """Run a notice board (port 8002) until interrupted."""
    board = axon.board_worker(**_listen_arguments(listen), token=token, tls=tls)
    board.serve(on_started=_say_address("notice board", as_json=as_json))


@command.command("relay")
@listen_option
@token_option
@tls_option
@json_option
def relay_command(listen: str | None, token: str | None, tls: bool, as_json: bool) -> None:
    """Run a relay (port 8001) until interrupted."""
    relay = axon.Relay(**_listen_arguments(listen), token=token, tls=tls)
    relay.serve(on_started=_say_address("relay", as_json=as_json))


@command.command("token")
@click.argument("name")
@click.option(
    "--lifetime",
    "lifetime_s",
    type=Duration(min_s=1.0),
    help="Time until the token expires, such as 2h.",
)
@click.option("--once", is_flag=True, help="Valid for one call.")
@json_option
def token_command(name: str, lifetime_s: float | None, once: bool, as_json: bool) -> None:
    """Issue a token for NAME from the secret in $AXON_TOKEN."""
    secret = os.environ.get("AXON_TOKEN")
    if not secret:
        raise SettingError("AXON_TOKEN is not set; set it to the worker's token")
    token = axon.issue_token(secret, name, lifetime_s=lifetime_s, once=once)
    click.echo(json.dumps({"name": name, "token": token}) if as_json else token)


def _say_address(kind: str, *, as_json: bool) -> Callable[[str], None]:
    """Return a function that prints the address of a service that has started."""

    def say(address: str) -> None:
        click.echo(json.dumps({"address": address}) if as_json else f"{kind} at {address}")

    return say


def _listen_arguments(listen: str | None) -> dict[str, Any]:
    """Return `host` and `port` for a worker, or nothing for its defaults."""
    if listen is None:
        return {}
    host, port = host_and_port(listen)
    return {"host": host, "port": port}


def _parse_argument(text: str) -> Any:
    """Decode JSON; keep text that is not JSON as it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

"""`melisma peers node`: one node on this device."""

import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import msgspec

from melisma.axon.address import host_and_port
from melisma.cli.options import FILE, token_option
from melisma.cli.peers.peers_options import (
    STATE_OPTION,
    TRAINING_OPTIONS,
    build_peer_settings,
    with_options,
)
from melisma.cli.peers.peers_output import ProgressPrinter, finish
from melisma.errors import MelismaError, SettingError
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_process import run_node
from melisma.peer.group import check_node_name
from melisma.runs.peer_report import NodeReport, PeerReport


@click.command("node", short_help="Run one node on this device.")
@with_options(TRAINING_OPTIONS)
@click.option("--name", required=True, help="Name of this node.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on.",
)
@click.option("--advertise", help="Host name at which neighbours reach this node.")
@click.option(
    "--neighbours", default="", help="NAME=ADDRESS,...; names without address are searched for."
)
@click.option("--peers", "peers_file", type=FILE, help="TOML file of NAME = ADDRESS.")
@click.option(
    "--keys", "keys_file", type=FILE, help="TOML file of NAME = KEY, as nodes print them."
)
@click.option("--board", help="Notice board on which to register and to find neighbours.")
@click.option("--discover", is_flag=True, help="Find neighbours on the local network.")
@click.option("--part", default="1/1", show_default=True, help="Train on part K/N of the data.")
@click.option(
    "--every",
    default=0,
    type=click.IntRange(0),
    help="Evaluate after every N steps; default: at the end.",
)
@click.option(
    "--out", type=FILE, help="Folder for model, report and state; the node resumes if it has one."
)
@STATE_OPTION
@token_option
@click.option(
    "--open-group",
    is_flag=True,
    help="Without a token beyond this machine: every host that reaches a node may join.",
)
@click.option("--tls", is_flag=True, help="Use TLS on this machine too; beyond it, always.")
def command(  # noqa: PLR0913 - one argument per option
    *,
    as_json: bool,
    name: str,
    listen: str,
    advertise: str | None,
    neighbours: str,
    peers_file: Path | None,
    keys_file: Path | None,
    board: str | None,
    discover: bool,
    part: str,
    every: int,
    out: Path | None,
    no_state: bool,
    token: str | None,
    open_group: bool,
    tls: bool,
    **options: Any,
) -> None:
    """Run one node on this device, until it and its neighbours have finished."""
    host, port = host_and_port(listen)
    names, addresses = _parse_neighbours(neighbours, name, _read_names(peers_file, "ADDRESS"))
    number, parts = _parse_part(part)
    settings = build_peer_settings(options)
    check_node_name(name)
    out = out or Path("runs") / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{name}"
    config = NodeConfig(
        name=name,
        settings=settings,
        score_every=every,
        part=number,
        parts=parts,
        neighbours=names,
        addresses=addresses,
        host=host,
        port=port,
        token=token,
        open_group=open_group,
        keys=_read_names(keys_file, "KEY"),
        tls=tls,
        board=board,
        discover=discover,
        advertise=advertise,
        folder=str(out),
        keep_state=not no_state,
    )
    printer = ProgressPrinter(quiet=as_json)
    with redirect_stdout(sys.stderr):
        report = run_node(
            config, printer.print_line, _stop_on_signal(), options["task"], printer.print_progress
        )
    if report.outcome == "failed":
        raise MelismaError(report.reason)
    finish(_single_node_report(config, report, out), as_json)


def _stop_on_signal() -> threading.Event:
    """Return an event set by the first signal, so that the node leaves; a second one kills it."""
    stop = threading.Event()

    def stop_once(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_once)
    return stop


def _single_node_report(config: NodeConfig, report: NodeReport, out: Path) -> PeerReport:
    """Return the report of one node, without its notices, which are printed already."""
    settings = config.settings
    return PeerReport(
        str(settings.algorithm.__struct_config__.tag),
        f"with {', '.join(config.neighbours) or 'no neighbours'}",
        settings.task.model,
        settings.task.data,
        settings.compression,
        simulated=False,
        nodes=[msgspec.structs.replace(report, notices=[])],
        folder=out,
    )


def _parse_part(text: str) -> tuple[int, int]:
    number, slash, parts = text.partition("/")
    if not slash or not number.isdecimal() or not parts.isdecimal():
        raise SettingError(f"--part {text}; expected K/N, such as 2/5")
    if not 1 <= int(number) <= int(parts):
        raise SettingError(f"--part {text}; expected 1/{parts} to {parts}/{parts}")
    return int(number) - 1, int(parts)


def _parse_neighbours(
    text: str, name: str, known: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the names of the neighbours, by default all known nodes, and their addresses."""
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    if len({neighbour for neighbour, _, _ in pairs}) < len(pairs):
        raise SettingError(f"--neighbours {text}; expected each name once")
    given = {neighbour: address for neighbour, _, address in pairs if address}
    addresses = {key: address for key, address in {**known, **given}.items() if key != name}
    return tuple(neighbour for neighbour, _, _ in pairs) or (*addresses,), addresses


def _read_names(file: Path | None, value: str) -> dict[str, str]:
    if file is None:
        return {}
    try:
        return msgspec.toml.decode(file.read_bytes(), type=dict[str, str])
    except OSError as error:
        raise SettingError(f"{file}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingError(f'{file}: {error}; expected lines of NAME = "{value}"') from error

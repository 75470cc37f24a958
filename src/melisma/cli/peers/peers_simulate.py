"""`melisma peers simulate`: nodes in virtual time, with or without faults."""

import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stdout
from math import inf
from pathlib import Path
from typing import Any, NoReturn, get_args

import click
import msgspec

from melisma.cli.options import (
    faults_option,
    search_faults_option,
)
from melisma.cli.output import write
from melisma.cli.peers.peers_options import (
    GROUP_OPTIONS,
    TRAINING_OPTIONS,
    build_peers,
    convert_settings,
    with_options,
)
from melisma.cli.peers.peers_output import finish
from melisma.cli.suggestions import SuggestingChoice
from melisma.errors import SettingError, suggest
from melisma.peer.group import Peers
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_fault_search import search_peer_faults
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers


@click.command("simulate", short_help="Run the nodes in virtual time, with faults.")
@with_options(TRAINING_OPTIONS)
@with_options(GROUP_OPTIONS)
@click.option(
    "--work",
    type=SuggestingChoice(["timing", "train"]),
    default="train",
    show_default=True,
    help="What nodes compute.",
)
@click.option("--step-s", help="MIN,MAX seconds per step; default: 0.0001,0.001.")
@click.option("--message-s", help="MIN,MAX seconds per message; default: 0.0001,0.0015.")
@click.option(
    "--drawn",
    type=SuggestingChoice(get_args(Delays.__annotations__["drawn"])),
    help="Draw the step time once per this; default: iteration.",
)
@click.option("--tail", type=float, help="A round takes x times longer with probability x^-TAIL.")
@click.option("--bandwidth", "bandwidth_bps", type=float, help="Bits per second of a message.")
@faults_option
@search_faults_option
@click.option("--join", "joins", multiple=True, help="NODE@SECONDS: the node joins at this time.")
def command(  # noqa: PLR0913 - one argument per option
    *,
    as_json: bool,
    every: int,
    out: Path | None,
    work: Any,
    faults: str,
    search_faults: int | None,
    joins: tuple[str, ...],
    step_s: str | None,
    message_s: str | None,
    drawn: str | None,
    tail: float | None,
    bandwidth_bps: float | None,
    **options: Any,
) -> None:
    """Run the nodes in virtual time, with delays, stragglers and faults drawn by a seed."""
    with redirect_stdout(sys.stderr):
        peers = build_peers(options)
    delays = convert_settings(
        "delays",
        {
            "step_s": _parse_range("--step-s", step_s),
            "message_s": _parse_range("--message-s", message_s),
            "drawn": drawn,
            "tail": tail,
            "bandwidth_bps": bandwidth_bps,
            "seed": peers.settings.task.seed,
        },
        Delays,
    )
    peer_options = PeerOptions(work, delays, faults, _parse_joins(joins, peers), every)
    if search_faults is not None:
        if faults or out:
            raise SettingError(
                "--search-faults draws its faults and saves nothing; remove --faults and --out"
            )
        _search_faults(peers, peer_options, search_faults, as_json)
    began = time.monotonic()
    with redirect_stdout(sys.stderr):
        report = simulate_peers(peers, peer_options, file=options["task"], folder=out)
    if not as_json:
        write(f"simulated in {time.monotonic() - began:.1f} s; all invariants held\n")
    finish(report, as_json)


def _search_faults(peers: Peers, options: PeerOptions, schedules: int, as_json: bool) -> NoReturn:
    first = peers.settings.task.seed
    seeds = range(first, first + schedules)
    failures = [failure for failure in search_peer_faults(peers, options, seeds) if failure]
    violations = [
        {
            "violation": failure.violation,
            "seed": failure.seed,
            "faults": "; ".join(map(str, failure.faults)),
        }
        for failure in failures
    ]
    if as_json:
        write(
            msgspec.json.encode({"schedules": schedules, "violations": violations}).decode() + "\n"
        )
    else:
        for row in violations:
            options_text = (
                f"--work timing --seed {row['seed']} --faults {shlex.quote(str(row['faults']))}"
            )
            write(
                f"{row['violation']}:\n  to repeat it, replace --search-faults by {options_text}\n"
            )
        write(f"{schedules} fault schedules, {len(failures)} violations\n")
    sys.exit(1 if failures else 0)


def _parse_range(option: str, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise SettingError(f"{option} {text}; expected MIN,MAX, such as 0.001,0.01") from None
    return low, high


def _parse_joins(texts: Iterable[str], peers: Peers) -> dict[str, float]:
    joins: dict[str, float] = {}
    for text in texts:
        name, _, seconds = text.rpartition("@")
        try:
            joins[name] = float(seconds)
        except ValueError:
            joins[name] = -1.0
        if not 0 <= joins[name] < inf:
            raise SettingError(f"--join {text}; expected NODE@SECONDS, such as n1@0.5")
        if name not in peers.topology.names:
            expected = suggest(name, peers.topology.names)
            raise SettingError(f"--join {text}: unknown node {name!r}; {expected}")
    return joins

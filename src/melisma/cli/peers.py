"""`melisma peers`: train without an orchestrator, on this machine, on a device, or simulated.

`run` and `simulate` end with 0 if every node came to its end, with 1 if one did not.
"""

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any, NoReturn, get_args

import click
import msgspec

from melisma.axon.address import host_and_port
from melisma.cli.axon import token_option
from melisma.cli.files import FILE
from melisma.cli.output import write
from melisma.cli.suggestions import SuggestingChoice, SuggestingGroup
from melisma.cli.views.peers_view import progress_line, screen
from melisma.errors import MelismaError, SettingError, suggest
from melisma.fleet.files.toml_file import convert
from melisma.fleet.task import OptimizerSettings, PartitionSettings, Task, read_task
from melisma.live.peer.local_group import PeerObserver, run_peers
from melisma.live.peer.node_process import run_node
from melisma.live.peer.node_runner import NodeConfig, Progress
from melisma.peer.algorithms import ALGORITHMS, Algorithm
from melisma.peer.group import Peers, PeerSettings, check_node_name, peers_for
from melisma.runs.peer_report import NodeReport, PeerReport
from melisma.simulation.faults import format_faults
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_fault_search import search_peer_faults
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers

LINE_S = 2.0
"""How often a line of progress is printed where there is no terminal."""
Command = Callable[..., None]
COUNT = click.IntRange(1)
AMONG = (
    click.option("--nodes", default=5, show_default=True, type=COUNT, help="How many."),
    click.option(
        "--topology",
        default="ring",
        show_default=True,
        help="ring, line, star, complete, torus[:RxC], regular[:DEGREE], small-world[:NEAR,PART], "
        "or a file of edges.",
    ),
    click.option("--shares", default="", help="Speeds of the nodes in their order: 1,1,2."),
    click.option("--every", default=0, type=click.IntRange(0), help="Score after so many steps."),
    click.option("--out", type=FILE, help="Empty or new folder for models and picture."),
)
TRAINED = (
    click.argument("task", metavar="[TASK.toml]", type=FILE, required=False),
    click.option("--model", help="Instead of what the task says; else lenet."),
    click.option("--data", help="Instead of what the task says; else mnist."),
    click.option("--batch", type=COUNT, help="Samples a step; else 16."),
    click.option("--seed", type=click.IntRange(0), help="Instead of what the task says."),
    click.option(
        "--partition",
        type=SuggestingChoice(["iid", "sorted", "dirichlet"]),
        help="What of the data each node has; else like parts.",
    ),
    click.option(
        "--algorithm",
        default="aet",
        show_default=True,
        type=SuggestingChoice([*ALGORITHMS]),
        help="How nodes train together.",
    ),
    click.option("--iterations", default=1000, show_default=True, type=COUNT, help="Of each node."),
    click.option("--lag", help="Rounds that neighbours may be behind, or auto."),
    click.option("--set", "said", multiple=True, help="NAME=VALUE of the algorithm."),
    click.option(
        "--compress",
        default="none",
        show_default=True,
        help="none, q8, q4, or topk:PART, as topk:0.01.",
    ),
    click.option(
        "--patience",
        "patience_s",
        type=click.FloatRange(0.01),
        help="Seconds until a neighbour that does not answer is given up; else 10, of a node 60.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end."),
)


def _with(options: Iterable[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def decorated(function: Command) -> Command:
        for option in reversed([*options]):
            function = option(function)
        return function

    return decorated


@click.group("peers", cls=SuggestingGroup)
def command() -> None:
    """Train without an orchestrator: every node with its neighbours."""


@command.command("run")
@_with(TRAINED)
@_with(AMONG)
@click.option("--tls", is_flag=True, help="Nodes talk over TLS with certificates made here.")
def run_command(*, as_json: bool, tls: bool, every: int, out: Path | None, **said: Any) -> None:
    """Start a process for each node on this machine, and show how they get on."""
    with redirect_stdout(sys.stderr):
        peers = _peers(said)
    lines = _Lines(quiet=as_json)
    watch = PeerObserver(lines.tell, lines.progress)
    report = run_peers(
        peers, file=said["task"], folder=out, score_every=every, tls=tls, observer=watch
    )
    _end(report, as_json)


@command.command("simulate")
@_with(TRAINED)
@_with(AMONG)
@click.option(
    "--work", type=SuggestingChoice(["timing", "train"]), default="train", show_default=True
)
@click.option("--step-s", help="LEAST,MOST seconds for a step; else 0.0001,0.001.")
@click.option("--message-s", help="LEAST,MOST seconds for a message; else 0.0001,0.0015.")
@click.option(
    "--drawn",
    type=SuggestingChoice(get_args(Delays.__annotations__["drawn"])),
    help="Steps are drawn for each of these; else iteration.",
)
@click.option("--tail", type=float, help="Rounds take x times longer with chance x^-TAIL.")
@click.option("--bandwidth", "bandwidth_bps", type=float, help="Bits a second of a message.")
@click.option("--faults", default="", help="What goes wrong, in words; a number draws some.")
@click.option("--search-faults", type=COUNT, help="Check N random fault schedules.")
@click.option("--join", "joins", multiple=True, help="NODE@SECONDS: it comes that late.")
def simulate_command(  # noqa: PLR0913 - one argument an option
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
    **said: Any,
) -> None:
    """Run the same nodes in virtual time: delays, stragglers and faults by a seed."""
    with redirect_stdout(sys.stderr):
        peers = _peers(said)
    delays = _converted(
        "delays",
        {
            "step_s": _pair("--step-s", step_s),
            "message_s": _pair("--message-s", message_s),
            "drawn": drawn,
            "tail": tail,
            "bandwidth_bps": bandwidth_bps,
            "seed": peers.settings.task.seed,
        },
        Delays,
    )
    options = PeerOptions(work, delays, faults, _joins(joins, peers), every)
    if search_faults is not None:
        if faults or out:
            raise SettingError(
                "--search-faults draws faults by itself, and keeps nothing: no --faults, --out"
            )
        _search_faults(peers, options, search_faults, as_json)
    began = time.monotonic()
    with redirect_stdout(sys.stderr):
        report = simulate_peers(peers, options, file=said["task"], folder=out)
    if not as_json:
        write(f"simulated in {time.monotonic() - began:.1f} s; all that must hold, held\n")
    _end(report, as_json)


@command.command("node")
@_with(TRAINED)
@click.option("--name", required=True, help="What neighbours call it.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT")
@click.option("--advertise", help="The host name by which neighbours reach it.")
@click.option(
    "--neighbours", default="", help="NAME=ADDRESS,NAME=ADDRESS; names alone are looked for."
)
@click.option("--peers", "peers_file", type=FILE, help="TOML file of NAME = ADDRESS.")
@click.option("--board", help="Address of a notice board: sign in, and look for neighbours there.")
@click.option("--discover", is_flag=True, help="Look for neighbours on the local network.")
@click.option("--part", default="1/1", show_default=True, help="Train on part K/N of the data.")
@click.option("--every", default=0, type=click.IntRange(0), help="Score after so many steps.")
@click.option("--out", type=FILE, help="Folder for model and report.")
@token_option
@click.option("--tls", is_flag=True, help="Be called over TLS with a certificate made here.")
def node_command(  # noqa: PLR0913 - one argument an option
    *,
    as_json: bool,
    name: str,
    listen: str,
    advertise: str | None,
    neighbours: str,
    peers_file: Path | None,
    board: str | None,
    discover: bool,
    part: str,
    every: int,
    out: Path | None,
    token: str | None,
    tls: bool,
    **said: Any,
) -> None:
    """Run one node on this device, until it and its neighbours have done their steps."""
    host, port = host_and_port(listen)
    names, addresses = _neighbours(neighbours, name, _addresses(peers_file))
    number, parts = _part(part)
    group = _group(said)
    check_node_name(name)
    out = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    setting = NodeConfig(
        name=name,
        settings=group,
        score_every=every,
        part=number,
        parts=parts,
        neighbours=names,
        addresses=addresses,
        host=host,
        port=port,
        token=token,
        tls=tls,
        board=board,
        discover=discover,
        advertise=advertise,
        folder=str(out),
    )
    lines = _Lines(quiet=as_json)
    with redirect_stdout(sys.stderr):
        report = run_node(setting, lines.tell, _stopped(), said["task"], lines.progress)
    if report.outcome == "failed":
        raise MelismaError(report.reason)
    _end(_alone(setting, report, out), as_json)


def _stopped() -> threading.Event:
    """Set by the first signal, which lets a node say goodbye; the second does not."""
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
    return stop


def _alone(setting: NodeConfig, report: NodeReport, out: Path) -> PeerReport:
    """The report of one node; what happened on the way was told then."""
    group = setting.settings
    return PeerReport(
        str(group.algorithm.__struct_config__.tag),
        f"with {', '.join(setting.neighbours) or 'nobody'}",
        group.task.model,
        group.task.data,
        group.compression,
        simulated=False,
        nodes=[msgspec.structs.replace(report, notices=[])],
        folder=out,
    )


class _Lines:
    """Lines on what happens; progress now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._last = quiet, time.monotonic()

    def tell(self, line: str) -> None:
        """Something that matters."""
        click.echo(line, err=True)

    def progress(self, progress: Progress) -> None:
        """How far nodes are."""
        now = time.monotonic()
        if progress and not self._quiet and now - self._last >= LINE_S:
            self._last = now
            click.echo(progress_line(progress), err=True)


def _search_faults(peers: Peers, options: PeerOptions, schedules: int, as_json: bool) -> NoReturn:
    first = peers.settings.task.seed
    seeds = range(first, first + schedules)
    failures = [each for each in search_peer_faults(peers, options, seeds) if each is not None]
    found = [
        {"violation": each.violation, "seed": each.seed, "faults": format_faults(each.faults)}
        for each in failures
    ]
    if as_json:
        write(msgspec.json.encode({"schedules": schedules, "violations": found}).decode() + "\n")
    else:
        for each in found:
            again = (
                f"--work timing --seed {each['seed']} --faults {shlex.quote(str(each['faults']))}"
            )
            write(f"{each['violation']}:\n  run again with {again} instead of --search-faults\n")
        write(f"{schedules} fault schedules, {len(failures)} violations\n")
    sys.exit(1 if failures else 0)


def _end(report: PeerReport, as_json: bool) -> None:
    write(msgspec.json.encode(report.as_dict()).decode() + "\n" if as_json else screen(report))
    cancelled = any(node.outcome == "cancelled" for node in report.nodes)
    sys.exit(130 if cancelled else 0 if report.succeeded else 1)


def _peers(said: Mapping[str, Any]) -> Peers:
    try:
        shares = tuple(float(each) for each in said["shares"].split(",") if each.strip())
    except ValueError:
        shares = (-1.0,)
    if not all(isfinite(share) and share > 0 for share in shares):
        raise SettingError(f"--shares {said['shares']}; expected numbers above 0, as 1,1,2")
    return peers_for(
        _task(said),
        _algorithm(said),
        iterations=said["iterations"],
        nodes=said["nodes"],
        topology=said["topology"],
        shares=shares,
        compression=said["compress"],
        patience_s=said["patience_s"] or 10.0,
    )


def _group(said: Mapping[str, Any]) -> PeerSettings:
    return PeerSettings(
        _task(said),
        _algorithm(said),
        said["iterations"],
        said["compress"],
        said["patience_s"] or 60.0,
    )


def _task(said: Mapping[str, Any]) -> Task:
    """That of the file, with what options say instead."""
    plain = OptimizerSettings(lr=1.0)
    task = Task(
        name="peers", model="lenet", data="mnist", deadline_s=1.0, batch=16, optimizer=plain
    )
    if said["task"] is not None:
        task = msgspec.structs.replace(read_task(said["task"]), optimizer=plain)
    instead = {key: said[key] for key in ("model", "data", "batch", "seed")}
    if said["partition"] is not None:
        instead |= {"mode": "federated", "partition": PartitionSettings(kind=said["partition"])}
    return msgspec.structs.replace(task, **{k: v for k, v in instead.items() if v is not None})


def _algorithm(said: Mapping[str, Any]) -> Algorithm:
    settings: dict[str, Any] = {}
    for each in said["said"]:
        name, equals, value = each.partition("=")
        if not equals:
            raise SettingError(f"--set {each}; expected NAME=VALUE")
        settings[name] = _value(value)
    if said["lag"] is not None:
        settings["max_lag"] = _value(said["lag"])
    found: Algorithm = _converted(said["algorithm"], settings, ALGORITHMS[said["algorithm"]])
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _converted(what: str, values: Mapping[str, Any], kind: type[Any]) -> Any:
    known = {name: value for name, value in values.items() if value is not None}
    if issubclass(kind, get_args(Algorithm)):
        known["algorithm"] = kind.__struct_config__.tag
    if unknown := known.keys() - {*kind.__struct_fields__, "algorithm"}:
        name = min(unknown)
        raise SettingError(f"{what} has no setting {name}; {suggest(name, kind.__struct_fields__)}")
    return convert(what, known, kind)


def _pair(option: str, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        least, most = (float(each) for each in text.split(","))
    except ValueError:
        raise SettingError(f"{option} {text}; expected LEAST,MOST, as 0.001,0.01") from None
    return least, most


def _joins(said: Iterable[str], peers: Peers) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in said:
        name, _, seconds = each.rpartition("@")
        try:
            found[name] = float(seconds)
        except ValueError:
            found[name] = -1.0
        if not 0 <= found[name] < inf:
            raise SettingError(f"--join {each}; expected NODE@SECONDS, as n1@0.5")
        if name not in peers.topology.names:
            expected = suggest(name, peers.topology.names)
            raise SettingError(f"--join {each}: unknown node {name!r}; {expected}")
    return found


def _part(text: str) -> tuple[int, int]:
    number, slash, parts = text.partition("/")
    if not slash or not number.isdecimal() or not parts.isdecimal():
        raise SettingError(f"--part {text}; expected K/N, as 2/5")
    if not 1 <= int(number) <= int(parts):
        raise SettingError(f"--part {text}; expected 1/{parts} to {parts}/{parts}")
    return int(number) - 1, int(parts)


def _neighbours(
    text: str, name: str, known: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Those of a node, or everybody who is known; and where those are that have an address."""
    pairs = [each.strip().partition("=") for each in text.split(",") if each.strip()]
    if len({each for each, _, _ in pairs}) < len(pairs):
        raise SettingError(f"--neighbours {text}; expected each of them once")
    said = {each: place for each, _, place in pairs if place}
    addresses = {each: place for each, place in {**known, **said}.items() if each != name}
    return tuple(each for each, _, _ in pairs) or (*addresses,), addresses


def _addresses(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        return msgspec.toml.decode(file.read_bytes(), type=dict[str, str])
    except OSError as error:
        raise SettingError(f"{file}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingError(f'{file}: {error}; expected lines of NAME = "ADDRESS"') from error

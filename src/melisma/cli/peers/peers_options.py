"""Options that the subcommands of `melisma peers` share, and the settings built from them."""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, get_args

import click
import msgspec

from melisma.cli.durations import Duration
from melisma.cli.options import COUNT, FILE, json_option
from melisma.cli.suggestions import SuggestingChoice
from melisma.errors import SettingError, suggest
from melisma.fleet.files.task_file import read_task
from melisma.fleet.files.toml_file import convert
from melisma.fleet.task import OptimizerSettings, PartitionSettings, Task
from melisma.peer.algorithms import ALGORITHMS, Algorithm
from melisma.peer.group import Peers, PeerSettings, peers_for
from melisma.peer.guard import GUARD_MODES

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
GROUP_OPTIONS = (
    click.option("--nodes", default=5, show_default=True, type=COUNT, help="Number of nodes."),
    click.option(
        "--topology",
        default="ring",
        show_default=True,
        help="ring, line, star, complete, torus[:RxC], regular[:DEGREE], small-world[:NEAR,PART], "
        "or a file of edges.",
    ),
    click.option("--shares", default="", help="Relative speeds of the nodes, such as 1,1,2."),
    click.option(
        "--every",
        default=0,
        type=click.IntRange(0),
        help="Evaluate after every N steps; default: at the end.",
    ),
    click.option("--out", type=FILE, help="Empty or new folder for models and picture."),
)
TRAINING_OPTIONS = (
    click.argument("task", metavar="[TASK.toml]", type=FILE, required=False),
    click.option("--model", help="Model, instead of the task's; default: lenet."),
    click.option("--data", help="Data set, instead of the task's; default: mnist."),
    click.option("--batch", type=COUNT, help="Samples per step; default: 16."),
    click.option("--seed", type=click.IntRange(0), help="Seed, instead of the task's."),
    click.option(
        "--partition",
        type=SuggestingChoice(["iid", "sorted", "dirichlet"]),
        help="How to divide the data among nodes; default: equal random parts.",
    ),
    click.option(
        "--algorithm",
        default="aet",
        show_default=True,
        type=SuggestingChoice([*ALGORITHMS]),
        help="Algorithm of the nodes.",
    ),
    click.option(
        "--iterations", default=1000, show_default=True, type=COUNT, help="Iterations of each node."
    ),
    click.option("--lag", help="Rounds that a neighbour may lag behind, or auto."),
    click.option(
        "--set", "settings", multiple=True, help="NAME=VALUE: set an option of the algorithm."
    ),
    click.option(
        "--compress",
        default="none",
        show_default=True,
        help="none, q8, q4, or topk:FRACTION, such as topk:0.01.",
    ),
    click.option(
        "--patience",
        "patience_s",
        type=Duration(min_s=0.01),
        help="Time until a silent neighbour counts as lost; default: 10, for `node` 60.",
    ),
    click.option(
        "--guard",
        default="clip",
        show_default=True,
        type=SuggestingChoice([*GUARD_MODES]),
        help="Scale down updates that are far larger than others, leave them out, or apply all.",
    ),
    json_option,
)


STATE_OPTION = click.option(
    "--no-state",
    is_flag=True,
    help="Keep no state on disk: faster on slow disks, but a killed node starts anew.",
)


def with_options(options: Iterable[Decorator]) -> Decorator:
    """Return a decorator that adds all options to a command, in this order."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed([*options]):
            function = option(function)
        return function

    return decorate


def build_peers(options: Mapping[str, Any]) -> Peers:
    """Return the group of nodes that the options describe."""
    try:
        shares = tuple(float(share) for share in options["shares"].split(",") if share.strip())
    except ValueError:
        shares = (-1.0,)
    if not all(isfinite(share) and share > 0 for share in shares):
        raise SettingError(f"--shares {options['shares']}; expected numbers above 0, such as 1,1,2")
    return peers_for(
        _task(options),
        _algorithm(options),
        iterations=options["iterations"],
        nodes=options["nodes"],
        topology=options["topology"],
        shares=shares,
        compression=options["compress"],
        patience_s=options["patience_s"] or 10.0,
        guard=options["guard"],
    )


def build_peer_settings(options: Mapping[str, Any]) -> PeerSettings:
    """Return the settings of a single node's group."""
    return PeerSettings(
        _task(options),
        _algorithm(options),
        options["iterations"],
        options["compress"],
        options["patience_s"] or 60.0,
        options["guard"],
    )


def _task(options: Mapping[str, Any]) -> Task:
    """Return the task of the file, with the settings that options override."""
    optimizer = OptimizerSettings(lr=1.0)
    task = Task(
        name="peers", model="lenet", data="mnist", deadline_s=1.0, batch=16, optimizer=optimizer
    )
    if options["task"] is not None:
        task = msgspec.structs.replace(read_task(options["task"]), optimizer=optimizer)
    overrides = {key: options[key] for key in ("model", "data", "batch", "seed")}
    if options["partition"] is not None:
        overrides |= {
            "mode": "federated",
            "partition": PartitionSettings(kind=options["partition"]),
        }
    return msgspec.structs.replace(task, **{k: v for k, v in overrides.items() if v is not None})


def _algorithm(options: Mapping[str, Any]) -> Algorithm:
    settings: dict[str, Any] = {}
    for text in options["settings"]:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--set {text}; expected NAME=VALUE")
        settings[name] = _parse_value(value)
    if options["lag"] is not None:
        settings["max_lag"] = _parse_value(options["lag"])
    algorithm: Algorithm = convert_settings(
        options["algorithm"], settings, ALGORITHMS[options["algorithm"]]
    )
    return algorithm


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def convert_settings(name: str, values: Mapping[str, Any], kind: type[Any]) -> Any:
    """Convert the values that are not None to `kind`; raise SettingError for unknown keys."""
    known = {key: value for key, value in values.items() if value is not None}
    if issubclass(kind, get_args(Algorithm)):
        known["algorithm"] = kind.__struct_config__.tag
    if unknown := known.keys() - {*kind.__struct_fields__, "algorithm"}:
        key = min(unknown)
        raise SettingError(f"{name} has no setting {key}; {suggest(key, kind.__struct_fields__)}")
    return convert(name, known, kind)

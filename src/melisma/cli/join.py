"""`melisma join`: let this device take part in the runs of an orchestrator."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from melisma import axon
from melisma.cli.options import FILE, join_string_argument, json_option
from melisma.cli.output import write
from melisma.cli.views.join_view import report_line
from melisma.disclosure import Disclosure
from melisma.errors import SettingError, UnreachableError
from melisma.live.joining.enrolling import Enroller, default_name, discover_orchestrators
from melisma.live.joining.supervisor import SupervisedLearner, Supervisor
from melisma.live.joining.use_limits import Hours, UseLimits, read_battery
from melisma.live.learner.device_identity import DeviceState, KnownOrchestrator
from melisma.live.learner.device_reports import AwaitingRun, DeviceReport, OnReport
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.pairing import normalize_code
from melisma.live.state_folder import restrict_folder
from melisma.prices import check_price
from melisma.text import visible
from melisma.user_code import is_import_path

COMPUTE_DEVICES = ("auto", "cpu", "cuda", "mps")
LOG_NAME = "learner.log"
SEARCH_PAUSE_S = 30.0


def show_text(report: DeviceReport) -> None:
    """Print a report as a line; progress has no place to go if the output is closed."""
    if line := report_line(report):
        write(f"{line}\n")


def show_json(report: DeviceReport) -> None:
    """Print a report as a line of JSON."""
    write(msgspec.json.encode(report).decode() + "\n")


@click.command("join", short_help="Train on this device for an orchestrator.")
@join_string_argument
@click.option("--name", help="Name of this device; default: that of the machine.")
@click.option("--new-identity", is_flag=True, help="Replace the identity of this device.")
@click.option(
    "--stay", is_flag=True, help="Wait for the orchestrator, and after a run for the next."
)
@click.option("--cache", type=FILE, help="Folder for shards; default: in the state folder.")
@click.option("--cache-bytes", type=click.IntRange(0), help="Most bytes of the cache.")
@click.option(
    "--discloses",
    type=click.Choice(get_args(Disclosure)),
    help="The most to report before an update.",
)
@click.option("--cores", type=float, default=1.0, metavar="SHARE", help="Share of cores, to 1.")
@click.option("--hours", metavar="22:00-06:00", help="Work at these local times only.")
@click.option(
    "--min-battery", type=float, metavar="PERCENT", help="Pause below this charge, on battery."
)
@click.option(
    "--data", metavar="MODULE:FUNCTION|FOLDER", help="Data of this device, for federated learning."
)
@click.option(
    "--states", type=FILE, help="Operating states of this device and their stressors, in a file."
)
@click.option(
    "--allow-module",
    metavar="MODULE",
    multiple=True,
    help="Module, installed or in the current folder, from which a task may import its model, "
    "and a state its stressor; may be repeated.",
)
@click.option(
    "--trust-code", is_flag=True, help="Run the source of the model that the orchestrator offers."
)
@click.option(
    "--memory-bytes",
    type=click.IntRange(min=1),
    help="Most memory of the learner; with --trust-code 75 % of the machine's by default.",
)
@click.option("--price", type=float, help="Price of a shard, for services with a budget.")
@click.option(
    "--device",
    type=click.Choice(COMPUTE_DEVICES),
    default="auto",
    show_default=True,
    help="What trains: the processor or a GPU.",
)
@json_option
def command(string: str | None, new_identity: bool, as_json: bool, **options: Any) -> None:
    """Train on this device for the orchestrator of a join STRING.

    Without one: for the orchestrator that was joined last, or one that is found in the local
    network and shows a code.
    """
    limits, data = _read_limits(options), _resolve_data(options["data"])
    data |= _resolve_states(options["states"])
    show = show_json if as_json else show_text
    state = DeviceState()
    if new_identity and string is None:
        raise SettingError(
            "--new-identity is not known to any orchestrator yet: pass the join string, as in "
            "melisma join STRING --new-identity"
        )
    with state.joining():
        enroller = Enroller(
            state, options["name"] or default_name(), show, new_identity=new_identity
        )
        find = partial(_find_orchestrator, enroller, string)
        orchestrator = _wait_for(find, show) if options["stay"] else _find_now(find)
        settings = _learner_settings(state, orchestrator, options, data | _module_path(options))
        learner = SupervisedLearner(settings, state.identity.with_name(LOG_NAME))
        Supervisor(learner, limits, show, stay=options["stay"]).run()


def _read_limits(options: dict[str, Any]) -> UseLimits:
    hours = options["hours"]
    limits = UseLimits(
        hours=None if hours is None else Hours.parse(hours),
        min_battery_percent=options["min_battery"],
        core_share=options["cores"],
    )
    if limits.min_battery_percent is not None and read_battery() is None:
        click.echo("this device has no battery now: --min-battery has no effect", err=True)
    return limits


def _find_orchestrator(enroller: Enroller, string: str | None) -> KnownOrchestrator:
    """Enrol by the join string, or at a known orchestrator, or at one in the local network."""
    if string is not None:
        return enroller.by_string(string)
    if known := enroller.known():
        return known
    _require_terminal()
    click.echo("looking for orchestrators in the local network", err=True)
    return enroller.by_code(_choose(discover_orchestrators()), _ask_code)


def _find_now(find: Callable[[], KnownOrchestrator]) -> KnownOrchestrator:
    """Find the orchestrator; the error about one that does not answer names `--stay`."""
    try:
        return find()
    except UnreachableError as error:
        raise UnreachableError(
            f"{error}; melisma join --stay waits until the orchestrator runs"
        ) from error


def _wait_for(find: Callable[[], KnownOrchestrator], show: OnReport) -> KnownOrchestrator:
    """Find the orchestrator again and again, until it is running."""
    while True:
        try:
            return find()
        except UnreachableError as error:
            show(AwaitingRun(str(error).partition("\n")[0].rstrip(":")))
            time.sleep(SEARCH_PAUSE_S)


def _choose(found: list[axon.DiscoveredWorker]) -> axon.DiscoveredWorker:
    """Return the only orchestrator, or the one that the owner chooses."""
    if len(found) == 1:
        return found[0]
    for number, item in enumerate(found, 1):
        address = item.address.partition("#")[0]
        click.echo(f"{number}  {visible(item.name)}  {visible(address)}", err=True)
    number = click.prompt("Orchestrator", type=click.IntRange(1, len(found)), err=True)
    return found[number - 1]


def _ask_code() -> str:
    """Ask until the input can be a code."""
    return str(click.prompt("Code that the orchestrator shows", err=True, value_proc=_parse_code))


def _parse_code(text: str) -> str:
    try:
        return normalize_code(text)
    except SettingError as error:
        raise click.UsageError(str(error)) from None


def _require_terminal() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise SettingError(
            "this device has joined no orchestrator yet, and a code can be typed in a terminal "
            "only: use melisma join STRING with the join string that the orchestrator shows"
        )


def _learner_settings(
    state: DeviceState,
    orchestrator: KnownOrchestrator,
    options: dict[str, Any],
    data: dict[str, Any],
) -> LearnerSettings:
    """Return the settings of the learner; those that were not given have their defaults."""
    cache = options["cache"] or state.identity.with_name("cache")
    if options["price"] is not None:
        check_price(options["price"], orchestrator.name)
    optional = {
        "price": options["price"],
        "cache_bytes": options["cache_bytes"],
        "discloses": options["discloses"],
        "memory_bytes": options["memory_bytes"],
    }
    given = {key: value for key, value in optional.items() if value is not None}
    return LearnerSettings(
        name=orchestrator.name,
        orchestrator=orchestrator.addresses,
        certificate=str(state.identity),
        cache=str(restrict_folder(Path(cache).absolute())),
        # Not beside the cache, which devices may share.
        spool=str(restrict_folder(state.identity.with_name("spool"))),
        allowed_modules=options["allow_module"],
        trust_code=options["trust_code"],
        compute_device=options["device"],
        supervised=True,
        **given,
        **data,
    )


def _module_path(options: dict[str, Any]) -> dict[str, Any]:
    """Return the current folder as a place for modules, if the owner named any on this device."""
    named = options["allow_module"] or is_import_path(options["data"] or "")
    return {"module_path": (str(Path.cwd()),)} if named else {}


def _resolve_states(file: Path | None) -> dict[str, Any]:
    """Return the setting for operating states; the learner reads them, which takes NumPy."""
    if file is not None and not file.is_file():
        raise SettingError(f"--states is {str(file)!r}, which is no file of this device")
    return {} if file is None else {"states": str(file.absolute())}


def _resolve_data(data: str | None) -> dict[str, Any]:
    """Return the settings for data on this device; raise `SettingError` if a folder is missing."""
    if data is None:
        return {}
    folder = Path(data)
    if folder.is_dir():
        return {"local_data": str(folder.absolute())}
    if is_import_path(data):
        return {"local_data": data}
    raise SettingError(
        f"--data is {data!r}, which is no folder of this device: pass an existing folder, or "
        "MODULE:FUNCTION"
    )

"""The `--scheme` option: its help lists the schemes, and it is checked before any file is read."""

from collections.abc import Sequence

import click

from melisma.allocation.schemes import OWN_SCHEME, SCHEMES, get_cycle_scheme, get_scheme

CYCLE_SCHEMES = [row.name for row in SCHEMES.values() if row.problem == "cycle"]


def format_schemes(names: Sequence[str]) -> str:
    """Return the names as a list for a help text."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _check_name(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    return None if name is None else get_scheme(name).name


def _check_cycle(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    return None if name is None else get_cycle_scheme(name).name


run_scheme_option = click.option(
    "--scheme",
    callback=_check_cycle,
    help="Allocate by this scheme instead of the task's: "
    f"{format_schemes([*CYCLE_SCHEMES, OWN_SCHEME])}.",
)
SHARED_SCHEMES = [row.name for row in SCHEMES.values() if row.problem == "shared"]
tasks_scheme_option = click.option(
    "--scheme",
    callback=_check_name,
    help="Allocate by this scheme instead of the task's: "
    f"{format_schemes([*CYCLE_SCHEMES, OWN_SCHEME])}; "
    f"several tasks by {format_schemes(SHARED_SCHEMES)}.",
)
plan_scheme_option = click.option(
    "--scheme",
    callback=_check_name,
    help="Plan by this scheme instead of the task's; default for several tasks: med. "
    f"Schemes: {format_schemes([*SCHEMES, OWN_SCHEME])}.",
)

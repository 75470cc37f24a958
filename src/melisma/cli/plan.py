"""`melisma plan`: print how much each learner would train, and whether the deadline can be met.

Nothing is trained and no device is contacted: costs come from the task and fleet files.
The exit code is 0 if a plan keeps deadlines and budget, and 1 if none does.
"""

from math import inf
from pathlib import Path

import click

from melisma.cli import output
from melisma.cli.durations import DURATION
from melisma.cli.options import (
    DEFAULT_FLEET,
    DEFAULT_TASK,
    default_fleet_option,
    json_option,
    learners_option,
    show_option,
    time_options,
)
from melisma.cli.scheme_option import plan_scheme_option
from melisma.cli.views.candidates_view import candidates_view
from melisma.cli.views.plan_view import plan_comparison_view, plan_view
from melisma.errors import SettingError
from melisma.fleet.run_time import RunTime
from melisma.service.plan_candidates import PlanCandidate, Submission, find_candidates
from melisma.simulation.plans.plan_report import is_met
from melisma.simulation.plans.plan_request import DEFAULT_TIME_LIMIT_S, PlanRequest, prepare_plans
from melisma.simulation.plans.plan_result import plan_json


def find_plan_candidates(request: PlanRequest) -> list[PlanCandidate]:
    """Return the candidates of several tasks, by the scheme of the plan."""
    scheme = request.schemes[0]
    if scheme.problem != "shared":
        raise SettingError(
            f"--candidates is for tasks that share learners, and scheme {scheme.name} plans one; "
            "remove it"
        )
    return find_candidates(Submission.to_fleet(request.tasks, request.fleet, scheme))


@click.command("plan", short_help="Print the plan of a cycle and check the deadline.")
@click.argument("tasks", nargs=-1, metavar="[TASK.toml]...")
@default_fleet_option
@plan_scheme_option
@learners_option
@time_options
@click.option(
    "--all", "compare_all", is_flag=True, help="Compare all schemes for this kind of problem."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=DURATION,
    default=DEFAULT_TIME_LIMIT_S,
    show_default=True,
    help="Time that med may search; then it returns its best plan and the gap.",
)
@click.option(
    "--candidates",
    "with_candidates",
    is_flag=True,
    help="Of several tasks: what other budgets and deadlines would give.",
)
@show_option
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    tasks: tuple[str, ...],
    fleet: Path | None,
    scheme: str | None,
    learners: int | None,
    run_time: RunTime,
    compare_all: bool,
    time_limit_s: float,
    with_candidates: bool,
    show: int,
    as_json: bool,
) -> None:
    """Print how much each learner would train, and whether the deadline can be met.

    Without a file: handwritten digits, on four devices of unequal speed.
    """
    tasks = tasks or (str(DEFAULT_TASK),)
    if scheme is not None and compare_all:
        raise SettingError("--scheme and --all exclude each other; use one of them")
    if not 0 < time_limit_s < inf:
        raise SettingError(f"--time-limit is {time_limit_s:g}; expected seconds, more than 0")
    devices = fleet or DEFAULT_FLEET
    request = prepare_plans(tasks, devices, scheme, run_time, learners, compare_all=compare_all)
    candidates = find_plan_candidates(request) if with_candidates else []
    reports = request.reports(time_limit_s)
    if as_json:
        result = {"plans": reports} if compare_all else reports[0]
        if with_candidates:
            result = {**result, "candidates": [each.as_dict() for each in candidates]}
        output.write(plan_json(result) + "\n")
    else:
        output.write(plan_comparison_view(reports) if compare_all else plan_view(reports[0], show))
        if with_candidates:
            output.write(candidates_view(candidates, has_prices=request.fleet.has_prices))
    if not any(map(is_met, reports)):
        raise click.exceptions.Exit(1)

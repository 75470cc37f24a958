"""Tables of `melisma compare`: a row per scheme, failed runs, and the scheme that leads."""

from dataclasses import replace
from math import isnan
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.run_view import format_capacity
from melisma.cli.views.table_view import FigureTable
from melisma.simulation.comparison.compared_run import ComparedRun
from melisma.simulation.comparison.comparison import Comparison, Lead
from melisma.simulation.comparison.comparison_table import Columns, build_table
from melisma.simulation.comparison.figures import TIME_FIGURES, WORK_FIGURES, format_interval
from melisma.simulation.comparison.interval import Interval

TARGET_ORIGINS = {
    "asked": "from --accuracy",
    "task": "the stop accuracy of the task",
    "lowest": "the lowest final accuracy of all runs",
}


def run_line(run: ComparedRun) -> str:
    """Return the result of a finished run in one line."""
    run_name = f"{run.scheme}, seed {run.seed}"
    if not run.completed:
        return f"{run_name}: {run.outcome}: {run.reason}"
    score = "" if isnan(run.accuracy) else f", accuracy {run.accuracy:.1%}"
    return f"{run_name}: {run.run_s:.4g} s{score}"


class LeadFigure(NamedTuple):
    """How a figure by which schemes are ranked is described."""

    name: str
    unit: str
    directions: tuple[str, str]  # larger and smaller than that of the first scheme
    same: str


LEAD_FIGURES = {
    "accuracy_s": LeadFigure(
        "time to the target accuracy", "s", ("later", "earlier"), "at the same time"
    ),
    "training_s": LeadFigure("time in cycles", "s", ("more", "less"), "the same time"),
    "visits_per_s": LeadFigure("rate of visits", "visits/s", ("more", "less"), "the same rate"),
}


def compare_view(comparison: Comparison) -> RenderableType:
    """Return the tables, notes and lead of a comparison."""
    tables = [_table(comparison, columns) for columns in (TIME_FIGURES, WORK_FIGURES)]
    lines = [*_notes(comparison), lead_line(comparison)]
    return Group(Text(_heading(comparison), style="bold"), *tables, *map(Text, lines))


def lead_line(comparison: Comparison) -> str:
    """Return which scheme was first, or that no lead is significant."""
    lead, goal = comparison.lead, f"reached {comparison.target.accuracy:.2%}"
    if lead is None and comparison.interrupted:
        return "interrupted before every scheme had a run on the same seed"
    if lead is None:
        completed = any(run.completed for run in comparison.runs)
        return (
            f"no scheme {goal if comparison.target else 'trained'}"
            if completed
            else "every run failed"
        )
    if not lead.is_clear:
        return _no_lead_line(lead)
    best = comparison.interval(lead.first, lead.figure)
    first = {
        "accuracy_s": f"{lead.first} {goal} first, after {best.mean:.4g} s",
        "training_s": f"{lead.first} needed the least time in cycles, {best.mean:.4g} s",
        "visits_per_s": f"{lead.first} trained the most, {best.mean:,.0f} visits/s",
    }[lead.figure] + _seed_count(best)
    if lead.second is None:
        others = "no other scheme did" if comparison.target else "all runs of other schemes failed"
        return first if len(comparison.schemes) == 1 else f"{first}; {others}"
    return f"{first}; {_runner_up(comparison, lead)}"


def _no_lead_line(lead: Lead) -> str:
    """Return that the first two schemes do not differ significantly, and by how much."""
    compared = LEAD_FIGURES[lead.figure].name
    schemes = f"no scheme leads: the {compared} of {lead.first} and {lead.second}"
    behind = lead.difference
    if behind.mean == 0 and not behind.half_width > 0:
        return f"{schemes} is the same"
    by = _format_difference(lead)
    return f"{schemes} differs by {by} on the same seeds, {_significance(behind)}"


def _seed_count(interval: Interval) -> str:
    if interval.known < interval.count:
        return f" on {interval.known} of {interval.count} seeds"
    return " on average" if interval.count > 1 else ""


def _runner_up(comparison: Comparison, lead: Lead) -> str:
    """Return the lag of the second scheme on the same seeds, and its significance."""
    assert lead.second is not None
    behind, second = lead.difference, comparison.interval(lead.second, lead.figure)
    seeds = "" if second.known == second.count else _seed_count(second) + " only,"
    if not behind.known:
        return f"{lead.second}{seeds} none of them in common"
    if behind.mean == 0 and not behind.half_width > 0:
        return f"{lead.second}{seeds} {LEAD_FIGURES[lead.figure].same}"
    larger, smaller = LEAD_FIGURES[lead.figure].directions
    direction, by = larger if behind.mean > 0 else smaller, _format_difference(lead)
    return f"{lead.second}{seeds} {by} {direction} on the same seeds, {_significance(behind)}"


def _format_difference(lead: Lead) -> str:
    """Return the size of the difference of the first two schemes, with its unit."""
    size = replace(lead.difference, mean=abs(lead.difference.mean))
    return format_interval(size, LEAD_FIGURES[lead.figure].unit)


def _significance(behind: Interval) -> str:
    if isnan(behind.half_width):
        return "one seed shows no significance"
    return "significant" if behind.excludes_zero else "not significant"


def _heading(comparison: Comparison) -> str:
    count, task = len(comparison.seeds), comparison.task
    seeds = (
        f"seeds {comparison.seeds[0]} to {comparison.seeds[-1]}"
        if count > 1
        else f"seed {comparison.seeds[0]}"
    )
    return f"{task.name}: {task.describe_cycles()}, {seeds}"


def _table(comparison: Comparison, columns: Columns) -> FigureTable:
    table = build_table(comparison, columns)
    return FigureTable(table.titles, list(table.rows))


def _notes(comparison: Comparison) -> list[str]:
    """Return the target accuracy, missing runs, faults, and failed runs."""
    reason = "nothing is trained" if comparison.level == "timing" else "the model has none"
    notes = [f"no accuracy: {reason}"]
    if comparison.target:
        origin = TARGET_ORIGINS[comparison.target.origin]
        notes = [f"target accuracy {comparison.target.accuracy:.2%}: {origin}"]
    if comparison.interrupted:
        done, planned = len(comparison.runs), comparison.planned_runs
        notes.append(f"interrupted: {done} of {planned} runs have finished")
    if len(comparison.seeds) == 1:
        notes.append("one seed, so no confidence intervals")
    notes += [f"with faults ({comparison.faults}) in every run"] if comparison.faults else []
    return [
        *notes,
        *filter(None, (_capacity_line(comparison, scheme) for scheme in comparison.schemes)),
        *(line for scheme in comparison.schemes for line in _failure_lines(comparison, scheme)),
    ]


def _capacity_line(comparison: Comparison, scheme: str) -> str:
    """Return the capacity that a scheme used, and what the rest was lost to; empty if unknown."""
    used, lost = comparison.interval(scheme, "capacity_used").mean, comparison.capacity_lost(scheme)
    capacity = format_capacity(used, lost)
    return f"{scheme}: {capacity}" if "lost" in capacity else ""


def _failure_lines(comparison: Comparison, scheme: str) -> list[str]:
    failed = comparison.failures(scheme)
    if not failed:
        return []
    count = f"{len(failed)} of {len(comparison.seeds)} failed"
    return [f"{scheme}: {count}; seed {failed[0].seed}: {failed[0].reason}"]

"""The summary of several tasks that shared a fleet, and a comparison of schemes for them."""

from math import isnan

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.run_view import format_capacity
from melisma.cli.views.table_view import FigureTable, format_count
from melisma.runs.report import Report
from melisma.runs.service_report import ServiceReport
from melisma.simulation.comparison.service_comparison import ServiceComparison, ServiceRun

TITLES = (
    *("task", "cycles", "training", "satisfaction", "fulfilment", "dropped", "occupancy"),
    *("capacity", "accuracy", "cost", "paid"),
)
MAX_HELD = 5


def service_summary_view(report: ServiceReport) -> RenderableType:
    """Return the figures of each task and of all, cost against budget, and tasks that waited."""
    rows = [
        _row(each.task.name, report.of_task(number), each)
        for number, each in enumerate(report.tasks)
    ]
    # The prices of devices that join are not known to their tasks.
    unknown = any(isnan(each.cost) for each in report.tasks)
    hidden = [TITLES.index("cost")] if unknown or not report.has_prices else []
    hidden += [] if unknown and any(report.paid) else [TITLES.index("paid")]
    hidden += [TITLES.index("accuracy")] * all(isnan(each.accuracy) for each in report.tasks)
    shown = [column for column in range(len(TITLES)) if column not in hidden]
    table = FigureTable(
        tuple(TITLES[column] for column in shown),
        [tuple(row[column] for column in shown) for row in (*rows, _row("all tasks", report))],
    )
    return Group(table, *map(Text, _lines(report)))


def _row(name: str, figures: ServiceReport, report: Report | None = None) -> tuple[str, ...]:
    accuracy = "" if report is None or isnan(report.accuracy) else f"{report.accuracy:.1%}"
    cost = sum(each.cost for each in figures.tasks)
    return (
        name,
        str(len(figures.ended_cycles)),
        f"{figures.mean_cycle_s:.1f} s" if not isnan(figures.mean_cycle_s) else "-",
        *(
            "-" if isnan(value) else f"{value:.1%}"
            for value in (
                figures.satisfaction,
                figures.fulfilment,
                figures.drop_rate,
                figures.occupancy,
                figures.capacity_used,
            )
        ),
        accuracy,
        f"{cost:,.1f}",
        f"{sum(figures.paid):,.1f}",
    )


def _lines(report: ServiceReport) -> list[str]:
    lines = [
        f"{each.task.name}: {each.outcome}: {each.reason}"
        for each in report.tasks
        if each.outcome != "finished"
    ]
    rounds = [each for each in report.rounds if each.planned_s]
    if rounds:
        line = format_count(len(rounds), "round")
        if report.has_prices:
            line += f", the most expensive for {report.largest_cost:,.1f}"
        lines.append(line + (f" of {report.budget:g}" if report.budget is not None else ""))
    lines += filter(None, [format_capacity(report.capacity_used, report.capacity_lost)])
    held = [(each.number, name, why) for each in report.rounds for name, why in each.held.items()]
    lines += [f"round {number}: {name} waited: {why}" for number, name, why in held[:MAX_HELD]]
    if len(held) > MAX_HELD:
        lines.append(f"... {len(held) - MAX_HELD} more waits")
    return [*lines, *([f"folder {report.folder}"] if report.folder else [])]


def service_run_line(run: ServiceRun) -> str:
    """Return the result of a finished run in one line."""
    name = f"{run.scheme}, seed {run.seed}"
    if not run.completed:
        return f"{name}: {run.outcome}: {run.reason}"
    return f"{name}: {run.figures['ended_s']:.4g} s"


def service_comparison_view(comparison: ServiceComparison) -> RenderableType:
    """Return the table and notes of a comparison."""
    count, seeds = len(comparison.seeds), comparison.seeds
    which = f"seeds {seeds[0]} to {seeds[-1]}" if count > 1 else f"seed {seeds[0]}"
    table = comparison.table()
    notes = [] if count > 1 else ["one seed, so no confidence intervals"]
    notes += [f"with faults ({comparison.faults}) in every run"] if comparison.faults else []
    if comparison.interrupted:
        done, planned = len(comparison.runs), comparison.planned_runs
        notes.append(f"interrupted: {done} of {planned} runs have finished")
    for scheme in comparison.schemes:
        used, lost = (
            comparison.interval(scheme, "capacity_used").mean,
            comparison.capacity_lost(scheme),
        )
        if capacity := format_capacity(used, lost):
            notes.append(f"{scheme}: {capacity}")
        if failed := comparison.failures(scheme):
            first = f"seed {failed[0].seed}: {failed[0].reason}"
            notes.append(f"{scheme}: {len(failed)} of {count} failed; {first}")
    return Group(
        Text(f"{', '.join(comparison.tasks)}: {which}", style="bold"),
        FigureTable(table.titles, list(table.rows)),
        *map(Text, notes),
    )

"""What `melisma compare` prints: a row a scheme, what failed, and who was first."""

from math import isnan

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.plan_table import Rows
from melisma.simulation.comparison.comparison import ComparedRun, Comparison, Lead
from melisma.simulation.comparison.figures import (
    TIME_FIGURES,
    WORK_FIGURES,
    format_interval,
    is_shown,
)
from melisma.simulation.comparison.interval import Interval

FROM = {
    "asked": "as asked for",
    "task": "at which the task stops",
    "lowest": "the lowest that any run ended with",
}


def run_line(run: ComparedRun) -> str:
    """A run that is over, in one line."""
    said = f"{run.scheme}, seed {run.seed}: "
    if not run.completed:
        return f"{said}{run.outcome}: {run.reason}"
    score = "" if isnan(run.accuracy) else f", accuracy {run.accuracy:.1%}"
    return f"{said}{run.run_s:.4g} s{score}"


def view(found: Comparison) -> RenderableType:
    """All that is known of it."""
    tables = [_table(found, columns) for columns in (TIME_FIGURES, WORK_FIGURES)]
    lines = [*_notes(found), verdict(found)]
    return Group(Text(_head(found), style="bold"), *tables, *map(Text, lines))


def verdict(found: Comparison) -> str:
    """Who was first, and whether chance would do to explain it."""
    lead, goal = found.lead, f"reached {found.target.accuracy:.2%}"
    if lead is None:
        ended = any(each.completed for each in found.runs)
        return f"no scheme {goal if found.target else 'trained'}" if ended else "every run failed"
    goal = goal if found.target else "ended"
    least = found.interval(lead.first, lead.figure)
    said = f"{lead.first} {goal} first, after {least.mean:.4g} s{_on_average(least)}"
    if lead.second is None:
        return said if len(found.schemes) == 1 else f"{said}; no other scheme did"
    return f"{said}; {_next(found, lead)}"


def _on_average(interval: Interval) -> str:
    some = f" on {interval.known} of {interval.count} seeds"
    every = " on average" if interval.count > 1 else ""
    return every if interval.known == interval.count else some


def _next(found: Comparison, lead: Lead) -> str:
    """By how much the next was behind, seed by seed."""
    assert lead.second is not None
    behind, all_of = lead.difference, found.interval(lead.second, lead.figure)
    some = "" if all_of.known == all_of.count else _on_average(all_of) + " only,"
    if not behind.known:
        return f"{lead.second}{some} none of them the same"
    if behind.mean == 0 and not behind.half_width > 0:
        return f"{lead.second}{some} at the same time"
    way = "later" if behind.mean > 0 else "earlier"
    by = format_interval(
        Interval(abs(behind.mean), behind.half_width, behind.known, behind.count), "s"
    )
    return f"{lead.second}{some} {by} {way} on the same seeds, {_chance(behind)}"


def _chance(behind: Interval) -> str:
    if isnan(behind.half_width):
        return "and one seed cannot tell whether by chance"
    return "more than chance" if behind.excludes_zero else "which may be chance"


def _head(found: Comparison) -> str:
    count, task = len(found.seeds), found.task
    seeds = (
        f"seeds {found.seeds[0]} to {found.seeds[-1]}" if count > 1 else f"seed {found.seeds[0]}"
    )
    return f"{task.name}: {task.cycles} cycles of {task.deadline_s:g} s, {seeds}"


def _table(found: Comparison, columns: dict[str, tuple[str, str]]) -> Rows:
    shown = [name for name in columns if is_shown(found, name)]
    cells = [_column(found, name, columns[name][1]) for name in shown]
    titles = ("scheme", *(columns[name][0] for name in shown))
    return Rows(titles, list(zip(found.schemes, *cells, strict=True)))


def _column(found: Comparison, figure: str, unit: str) -> list[str]:
    intervals = [found.interval(scheme, figure) for scheme in found.schemes]
    largest = max((each.mean for each in intervals if each.known), default=0.0)
    cells = [format_interval(each, unit, largest) for each in intervals]
    if figure != "accuracy_s":
        return cells
    never = [_never(found, scheme) for scheme in found.schemes]
    return [_with_never(*each) for each in zip(cells, intervals, never, strict=True)]


def _never(found: Comparison, scheme: str) -> int:
    return sum(each.completed and isnan(each.accuracy_s) for each in found.runs_of(scheme))


def _with_never(cell: str, interval: Interval, never: int) -> str:
    """Runs that failed are told by themselves."""
    if not never:
        return cell
    return f"{cell} ({never} of {interval.count} never)" if interval.known else "never"


def _notes(found: Comparison) -> list[str]:
    """What the figures are over, and what they leave out."""
    nothing = "nothing is trained" if found.level == "timing" else "the model has none"
    said = [f"no accuracy: {nothing}"]
    if found.target:
        said = [f"accuracy of {found.target.accuracy:.2%}: {FROM[found.target.origin]}"]
    if len(found.seeds) == 1:
        said.append("one seed, so no confidence intervals")
    said += [f"with faults ({found.faults}) in every run"] if found.faults else []
    return [*said, *(line for scheme in found.schemes for line in _failed(found, scheme))]


def _failed(found: Comparison, scheme: str) -> list[str]:
    failed = found.failures(scheme)
    if not failed:
        return []
    count = f"{len(failed)} of {len(found.seeds)} failed"
    return [f"{scheme}: {count}; seed {failed[0].seed}: {failed[0].reason}"]

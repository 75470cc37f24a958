"""The summary of a finished run: deadline, work of each learner, and score of the model."""

from collections.abc import Iterator, Mapping
from math import isnan
from pathlib import Path
from types import MappingProxyType

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.run_view import format_capacity, format_score
from melisma.cli.views.table_view import FigureTable, format_count
from melisma.cycle.events import PHASES
from melisma.runs.idleness import IdleGroup
from melisma.runs.report import Report
from melisma.runs.totals import UNASSIGNED_COUNTS, UNCOUNTED_STATUSES, LearnerTotal
from melisma.text import visible_part

MAX_LEARNERS, MAX_IDLE, MAX_IDLE_NAMED = 20, 5, 3
MIN_SHOWN_S = 0.1
MAX_LEFT_NAMED = 5
NO_GROUPS: Mapping[str, range] = MappingProxyType({})
TITLES = (
    *("learner", "shards", "visits", "done", "capacity"),
    *("fetch s", "train s", "upload s"),
)
MISSING = (*UNCOUNTED_STATUSES, *UNASSIGNED_COUNTS)


def run_summary_view(
    report: Report, show: int = MAX_LEARNERS, groups: Mapping[str, range] = NO_GROUPS
) -> RenderableType:
    """Return the summary, with at most `show` learners listed, or the sums of their groups, too."""
    first, usage = report.learners[:show], _usage_titles(report)
    table = (
        [FigureTable((*TITLES, *usage, "missing"), [_row(learner, usage) for learner in first])]
        if report.cycles and show
        else []
    )
    return Group(
        Text(report.deadline_summary, style="bold"),
        *map(Text, _ending_lines(report)),
        *table,
        *map(Text, _unlisted_line(report, show)),
        *(_group_tables(report, groups) if len(report.learners) > show else ()),
        *map(Text, _guard_lines(report)),
        *map(Text, _result_lines(report)),
        *map(Text, _usage_lines(report)),
        *map(Text, _saved_files(report)),
    )


def _ending_lines(report: Report) -> list[str]:
    """Return how the run ended early, and which learners left, were copied or had no work."""
    ending = [] if report.outcome == "finished" else [f"{report.outcome}: {report.reason}"]
    ending += [report.restart_summary] if report.restarts else []
    left = _left_lines(report)
    idle = np.flatnonzero(report.learners.shards == 0)
    if report.cycles and idle.size:
        names = ", ".join(report.names[learner] for learner in idle[:5]) + ", ..." * (idle.size > 5)
        left.append(f"no work in any cycle: {names}")
    left += [f"copied identity: {reason}" for reason in report.shared_identities[:MAX_LEARNERS]]
    return [visible_part(line) for line in (*ending, *left)]


def _left_lines(report: Report) -> list[str]:
    """Return a line for each cause for which learners left, the most frequent first."""
    by_cause: dict[str, list[str]] = {}
    names = set(report.names)
    for name, reason in zip(report.departed, report.departures, strict=True):
        by_cause.setdefault(_cause(reason, names), []).append(name)
    ordered = sorted(by_cause.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"left: {_name_left(*item)}" for item in ordered[:MAX_LEARNERS]]


def _cause(reason: str, names: set[str]) -> str:
    """Return why learners left, without their names, which stand in front if there are any."""
    before, colon, cause = reason.partition(": ")
    return cause if colon and before.split(", ")[0] in names else reason


def _name_left(cause: str, names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]}: {cause}"
    first = ", ".join(sorted(names)[:MAX_LEFT_NAMED]) + ", ..." * (len(names) > MAX_LEFT_NAMED)
    return f"{cause}: {format_count(len(names), 'learner')} ({first})"


def _usage_titles(report: Report) -> dict[str, str]:
    """Return the titles of the usage that the fleet gives rates for, with their figures."""
    totals = report.learners
    has_energy = np.any(totals.joules > 0)
    is_known = {"energy J": ("joules", has_energy), "cost": ("cost", report.has_prices)}
    return {
        title: figure
        for title, (figure, shown) in is_known.items()
        if shown and not np.isnan(getattr(totals, figure)).all()
    }


def _usage_lines(report: Report) -> list[str]:
    """Return the energy and the cost of all learners, if the fleet gives rates for them."""
    parts = {"energy J": f"energy {report.joules:,.1f} J", "cost": f"cost {report.cost:,.6g}"}
    shown = [parts[title] for title in _usage_titles(report)]
    return [", ".join(shown)] if shown else []


def _row(total: LearnerTotal, usage: dict[str, str]) -> tuple[str, ...]:
    seconds = dict(zip(PHASES, total.phases, strict=True))
    fetch_s = seconds["fetch model"] + seconds["fetch shards"]
    missing = [
        f"{getattr(total, cause)} {cause.replace('_', ' ')}"
        for cause in MISSING
        if getattr(total, cause)
    ]
    return (
        total.name or "-",
        str(total.shards),
        str(total.counted_visits),
        _format_done(total),
        "-" if isnan(total.capacity_used) else f"{total.capacity_used:.0%}",
        *(f"{value:.1f}" for value in (fetch_s, seconds["train"], seconds["upload"])),
        *(_format_usage(getattr(total, figure)) for figure in usage.values()),
        ", ".join(missing) or "-",
    )


def _format_usage(amount: float) -> str:
    return "-" if isnan(amount) else f"{amount:,.1f}"


def _format_done(total: LearnerTotal) -> str:
    """Return the fraction of planned visits that were made; further ones do not count."""
    planned = total.planned_visits
    return f"{total.done_visits / planned:.0%}" if planned else "-"


def _unlisted_line(report: Report, show: int) -> list[str]:
    rest = report.learners[show:]
    if not rest or not report.cycles:
        return []
    trained, missing = rest.counted_visits.sum(), rest.uncounted.sum()
    updates = format_count(int(missing), "update")
    return [f"and {len(rest)} more (--show): {trained} visits counted, {updates} missing"]


def _group_tables(report: Report, groups: Mapping[str, range]) -> Iterator[FigureTable]:
    """Yield a table with the sums of each group, if there are several learners in one."""
    if not report.cycles or all(len(members) == 1 for members in groups.values()):
        return
    usage = _usage_titles(report)
    titles = ("group", "learners", "shards", "visits", *usage, "missing")
    yield FigureTable(titles, [_group_row(report, *group, usage) for group in groups.items()])


def _group_row(report: Report, name: str, members: range, usage: dict[str, str]) -> tuple[str, ...]:
    totals = report.learners[members.start : members.stop]
    sums = {cause: int(getattr(totals, cause).sum()) for cause in MISSING}
    missing = [f"{count} {cause.replace('_', ' ')}" for cause, count in sums.items() if count]
    return (
        name,
        str(len(members)),
        str(totals.shards.sum()),
        str(totals.counted_visits.sum()),
        *(_format_usage(float(getattr(totals, figure).sum())) for figure in usage.values()),
        ", ".join(missing) or "-",
    )


def _guard_lines(report: Report) -> list[str]:
    """Return the learners whose updates did not count in full, most often first."""
    verdicts = {"scaled down": report.clipped, "left out": report.left_out}
    lines = [
        f"{verdict}, as they changed the model too far: {_name_counts(counts)}"
        for verdict, counts in verdicts.items()
        if counts
    ]
    if report.failed_checks:
        lines += [f"left out, as they failed their audit: {_name_counts(report.failed_checks)}"]
    if report.suspected:
        problem = "suspected, as they fit the shards of their learner no better than others"
        lines += [f"{problem}: {_name_counts(report.suspected)}"]
    return lines


def _name_counts(counts: dict[str, int]) -> str:
    """Return the updates of each learner, of the first `MAX_LEARNERS`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    names = [f"{n} update{'s' * (n != 1)} of {name}" for name, n in ordered[:MAX_LEARNERS]]
    return ", ".join(names) + ", ..." * (len(ordered) > MAX_LEARNERS)


def _result_lines(report: Report) -> list[str]:
    if not report.cycles:
        return ["nothing was trained"]
    scored = sum(cycle.evaluate_s >= 0 and not cycle.empty for cycle in report.cycles)
    if not scored:
        return ["no update counted: the model is unchanged"]
    scores = [
        format_score(report.accuracy, report.loss) + f" after {format_count(scored, 'cycle')}"
    ]
    if isnan(report.training_s):
        return scores
    staleness = f"staleness up to {report.max_staleness:.3g}"
    occupancies = np.array([cycle.occupancy for cycle in report.ended_cycles])
    occupancy = (
        f", occupancy {np.nanmean(occupancies):.0%}" if not np.isnan(occupancies).all() else ""
    )
    total_s = report.ended_s - report.began_s
    time = f"{report.training_s:.1f} s of training, {total_s:.1f} s total"
    if report.task.total_s is not None and report.due_s is not None:
        # A live run also needs time to start processes, and to save its results.
        other_s = report.task.total_s - (report.due_s - report.began_s)
        time += f" and {other_s:.1f} s to start and to save" * (other_s >= MIN_SHOWN_S)
    outside = f"{report.outside_share:.0%} outside cycles"
    return [
        *scores,
        f"{time}, {outside}; average truancy {report.mean_truancy:.1%}",
        f"{report.fulfilment:.0%} of planned visits done{occupancy}, {staleness}",
        *_late_lines(report),
        *_capacity_lines(report),
        *_idle_lines(report),
    ]


def _late_lines(report: Report) -> list[str]:
    carried = int(report.learners.carried.sum())
    return [f"{format_count(carried, 'late update')} joined later averages"] if carried else []


def _capacity_lines(report: Report) -> list[str]:
    """Return the capacity used and lost, and in which cycles learners are not part of it."""
    capacity = format_capacity(report.capacity_used, report.capacity_lost)
    totals = report.learners
    idle = np.flatnonzero(sum(getattr(totals, name) for name in UNASSIGNED_COUNTS))
    if not capacity or not idle.size:
        return [capacity] if capacity else []
    first = ", ".join(_cycles_without_work(totals[learner]) for learner in idle[:MAX_IDLE].tolist())
    more = f" and {idle.size - MAX_IDLE:,} more learners" if idle.size > MAX_IDLE else ""
    return [capacity, f"not included: {first}{more}"]


def _idle_lines(report: Report) -> list[str]:
    """Return which learners idled, how much, why, and what to change."""
    return [visible_part(_idle_line(group)) for group in report.idle]


def _idle_line(group: IdleGroup) -> str:
    """Return the first learners of a group, the number of the others, and the advice."""
    first = list(zip(group.names, group.shares, strict=True))[:MAX_IDLE_NAMED]
    names = ", ".join(f"{name} idle {share:.0%}" for name, share in first)
    if rest := group.count - len(first):
        names += f" and {format_count(rest, 'more learner')} {group.shares[-1]:.0%} or more"
    return f"{names}: {group.reason}; {group.change}"


def _cycles_without_work(total: LearnerTotal) -> str:
    """Return the number of cycles in which a learner had no assignment, and why."""
    counts = {name.replace("_", " "): getattr(total, name) for name in UNASSIGNED_COUNTS}
    known = {reason: count for reason, count in counts.items() if count}
    reasons = ", ".join(f"{count} {reason}" for reason, count in known.items())
    cycles = format_count(sum(known.values()), "cycle")
    return f"{total.name} in {cycles} ({reasons if len(known) > 1 else next(iter(known))})"


def _saved_files(report: Report) -> list[str]:
    files = {"model": report.model, "best": report.best_model}
    files |= {"picture": report.picture_path, "trace": report.trace_path}
    return [f"{name:<8} {_relative_path(path)}" for name, path in files.items() if path is not None]


def _relative_path(path: Path) -> Path:
    """Return the path relative to the current folder if it is inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path

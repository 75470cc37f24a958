"""Tables of `melisma plan`, with a bar for each learner against its deadline."""

from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from melisma.allocation.infeasible import format_rounded_up
from melisma.cli.views.table_view import DeadlineBar, FigureTable, format_count, make_table
from melisma.cycle.rounds import MAX_TAIL_FRACTION
from melisma.simulation.forecast import MIN_CYCLES_IN_TIME
from melisma.simulation.plans.plan_report import LearnerRows, PlanReport

MAX_LATE_NAMED = 10


def plan_view(report: PlanReport, show: int) -> RenderableType:
    """Return the table of one plan, and whether it keeps deadline and budget."""
    if not report["feasible"]:
        return _no_plan_view(report)
    return VIEWS[report["problem"]](report, show)


def plan_comparison_view(reports: list[PlanReport]) -> RenderableType:
    """Return a table with one row per scheme."""
    problem = reports[0]["problem"]
    titles = COLUMNS[problem]
    if all(report.get("cost") is None for report in reports):
        titles = tuple(title for title in titles if title != "cost")
    empty = ("-",) * len(titles)
    rows = [
        (report["scheme"], *(_summary(report)[: len(titles)] if report["feasible"] else empty))
        for report in reports
    ]
    reasons = [
        Text(f"{report['scheme']}: {reason}") for report in reports for reason in _reasons(report)
    ]
    return Group(FigureTable(("scheme", *titles), rows), *reasons)


def _reasons(report: PlanReport) -> list[str]:
    """Return why there is no plan, or which limits it exceeds; late learners have a column."""
    if not report["feasible"]:
        return [report["reason"]]
    return [*_budget_lines(report), *LATE_LINES[report["problem"]](report)]


def _budget_lines(report: PlanReport) -> list[str]:
    over = f"cost {_format_cost(report)} is over the budget of {report['budget']}"
    return [] if report["keeps_budget"] else [over]


def _late_task_lines(report: PlanReport) -> list[str]:
    tasks = zip(report["tasks"], report["expected_s"], report["deadline_s"], strict=True)
    return [
        f"{name} is expected to finish after {seconds:.2f} s, past its deadline of {deadline_s:g} s"
        for name, seconds, deadline_s in tasks
        if seconds > deadline_s
    ]


def _no_round_lines(report: PlanReport) -> list[str]:
    return (
        [] if report["keeps_deadline"] else [f"no round finishes by {report['deadline_s'][0]:g} s"]
    )


def _late_cycle_lines(report: PlanReport) -> list[str]:
    """Return a warning if the run fails, or if too many of its cycles close late."""
    (deadline_s,), expected = report["deadline_s"], report["forecast"]
    if expected["failure"]:
        return [f"warning: this run fails in a simulation: {expected['failure']}"]
    share, quorum = expected["weight_in_time"], report["quorum"]
    if expected["cycles_in_time"] >= MIN_CYCLES_IN_TIME:
        return []
    closed = _format_share(expected["cycles_in_time"])
    line = f"warning: about {closed} of the cycles close by {deadline_s:g} s, because about"
    weight = f"{_format_share(share)} of the planned weight arrives by then and a cycle closes with"
    late = f"expect the others to be up to {MAX_TAIL_FRACTION * deadline_s:g} s late"
    return [f"{line} {weight} {quorum:.0%}; {late}"]


LATE_LINES: dict[str, Callable[[PlanReport], list[str]]] = {
    "cycle": _late_cycle_lines,
    "shared": _late_task_lines,
    "radio": _no_round_lines,
}


# Cost is last, so that it can be left out.
COLUMNS = {
    "cycle": ("shards", "passes", "staleness", "average", "late", "ends at", "cost"),
    "shared": ("planned", "gap", "expected to finish after", "total", "cost"),
    "radio": ("total batch", "round", "efficiency", "rounds by deadline"),
}


def _summary(report: PlanReport) -> tuple[str, ...]:
    if report["problem"] == "shared":
        ends = " + ".join(f"{seconds:.1f}" for seconds in report["expected_s"])
        expected = f"{ends} s", f"{sum(report['expected_s']):.1f} s"
        gap = f"{report['gap']:.2%}" if report["bound_s"] else "-"
        return f"{report['total_s']:.1f} s", gap, *expected, _format_cost(report)
    if report["problem"] == "radio":
        rounds = str(report["rounds_by_deadline"])
        return (
            str(report["batch"]),
            f"{report['round_s']:.2f} s",
            f"{report['efficiency']:.2f}",
            rounds,
        )
    return (
        str(report["handed_out"]),
        _format_range(report["least_passes"], report["most_passes"]),
        str(report["max_staleness"]),
        f"{report['average_staleness']:.2f}",
        str(report["late"]),
        f"{report['ends_s']:.1f} s",
        _format_cost(report),
    )


def _cycle_view(report: PlanReport, show: int) -> RenderableType:
    (name,), (deadline_s,), (shards,) = report["tasks"], report["deadline_s"], report["shards"]
    rows = report["learners"]
    scale_s = max(deadline_s, report["ends_s"])
    table = make_table("learner", "shards", "passes", "seconds", f"deadline {deadline_s:g} s")
    for row in rows.first(show):
        bar = DeadlineBar(row["seconds"], scale_s, deadline_s)
        figures = (str(row["shards"]), str(row["passes"]), f"{row['seconds']:.1f}")
        table.add_row(row["name"], *figures, bar)
    late, idle = np.flatnonzero(rows.columns["late"]), report["idle"]
    verb = "handed out" if report["hands_out_all"] else "requested"
    lines = [
        *_sample_lines(report),
        *_total_lines(report),
        f"{format_count(report['handed_out'], 'shard')} {verb}, {shards:,} available"
        + (f"; {format_count(idle, 'learner')} idle" if idle else ""),
        *(
            f"{name} is idle: one shard takes {format_rounded_up(seconds)} s; "
            f"use deadline_s > {format_rounded_up(seconds)} or leave it out"
            for name, seconds in report["too_slow"].items()
        ),
        f"staleness {report['max_staleness']}, average {report['average_staleness']:.2f}"
        + (f"; cost {_format_cost(report)}" if report["cost"] is not None else ""),
        *_budget_lines(report),
        *_awake_lines(report),
        *_late_lines(report, [rows.columns["name"][k] for k in late[:MAX_LATE_NAMED]]),
        *_quorum_lines(report),
        *_extension_lines(report),
    ]
    head = f"{name}: {report['scheme']}, {format_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), table, *_unlisted_line(rows, show), *map(Text, lines))


def _sample_lines(report: PlanReport) -> list[str]:
    """Return how many learners a cycle draws, if not all."""
    drawn = len(report["learners"])
    learners = format_count(drawn + report["not_drawn"], "learner")
    line = f"each cycle draws {drawn:,} of {learners}; these are the first cycle's"
    return [line] if report["not_drawn"] else []


def _total_lines(report: PlanReport) -> list[str]:
    """Return how a run with a total time divides it, by a simulation."""
    if "total_s" not in report:
        return []
    (deadline_s,) = report["deadline_s"]
    cycles = f"about {format_count(report['cycles'], 'cycle')}, most of them of {deadline_s:.3g} s"
    return [f"{cycles}, in {report['run_s']:.4g} of {report['total_s']:.4g} s"]


def _tasks_view(report: PlanReport, show: int) -> RenderableType:
    deadlines = dict(zip(report["tasks"], report["deadline_s"], strict=True))
    scale_s = max([*deadlines.values(), *report["expected_s"]])
    rows = report["learners"]
    table = make_table("learner", "task", "shards", "seconds", "deadline of its task")
    for row in rows.first(show):
        bar = DeadlineBar(row["seconds"], scale_s, deadlines.get(row["task"], 0.0))
        figures = (row["task"] or "-", str(row["shards"]), f"{row['seconds']:.1f}")
        table.add_row(row["name"], *figures, bar)
    ends = [
        f"{name} is expected to finish after {seconds:.1f} of {deadlines[name]:g} s"
        for name, seconds in zip(report["tasks"], report["expected_s"], strict=True)
    ]
    budget = "no budget" if report["budget"] is None else f"budget {report['budget']:g}"
    cost = [] if report["cost"] is None else [f"cost {report['cost']:.1f}, {budget}"]
    bound = f", lower bound {report['bound_s']:.2f} s (gap {report['gap']:.2%})"
    lines = [
        f"planned total {report['total_s']:.2f} s{bound if report['bound_s'] else ''}",
        *cost,
        *_late_task_lines(report),
        *_budget_lines(report),
    ]
    head = f"{', '.join(report['tasks'])}: {report['scheme']}, {format_count(len(rows), 'learner')}"
    return Group(
        Text(head, style="bold"), table, *_unlisted_line(rows, show), *map(Text, ends + lines)
    )


def _radio_view(report: PlanReport, show: int) -> RenderableType:
    rows, frame_s = report["learners"], report["frame_s"]
    rounds = report["rounds_by_deadline"]
    table = make_table(
        "learner", "batch", "gradient", "uplink slot", "downlink slot", "share of frame"
    )
    widest = float(rows.columns["uplink_slot_s"].max())
    for row in rows.first(show):
        slots = [f"{row[key] * 1e3:.3f} ms" for key in ("uplink_slot_s", "downlink_slot_s")]
        bar = DeadlineBar(row["uplink_slot_s"], widest)
        table.add_row(row["name"], str(row["batch"]), f"{row['gradient_s']:.2f} s", *slots, bar)
    lines = [
        (
            f"round of {report['round_s']:.2f} s with {report['batch']} samples; "
            f"{format_count(rounds, 'round')} in {report['deadline_s'][0]:g} s"
        ),
        (
            f"efficiency {report['efficiency']:.3f} (square root of samples per second); "
            f"frame of {frame_s * 1e3:g} ms"
        ),
        *_no_round_lines(report),
    ]
    head = f"{report['tasks'][0]}: {report['scheme']}, {format_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), table, *_unlisted_line(rows, show), *map(Text, lines))


VIEWS = {"cycle": _cycle_view, "shared": _tasks_view, "radio": _radio_view}


def _no_plan_view(report: PlanReport) -> RenderableType:
    tasks = ", ".join(report["tasks"])
    return Text(f"{tasks}: no plan by {report['scheme']}: {report['reason']}")


def _awake_lines(report: PlanReport) -> list[str]:
    """Return how many learners are present, and how many run out of battery, if not all are."""
    count, expected = len(report["learners"]) + report["not_drawn"], report["forecast"]
    start, mean = expected["awake_at_start"] * count, expected["awake_on_average"] * count
    if _are_all_present(report):
        return []
    digits = 0 if count >= 100 else 1
    line = f"about {mean:.{digits}f} of {count} learners awake on average, {start:.0f} at start"
    empty = max(round(expected["out_of_battery"] * count), 1) if expected["out_of_battery"] else 0
    battery = f"warning: about {format_count(empty, 'learner')} run out of battery during the run"
    return [line, f"{battery}, and lose the work under way"] if empty else [line]


def _are_all_present(report: PlanReport) -> bool:
    """Return whether all learners are present and awake during the whole run."""
    expected = report["forecast"]
    all_awake = min(expected["awake_at_start"], expected["awake_on_average"]) == 1
    return bool(all_awake and not expected["out_of_battery"])


def _late_lines(report: PlanReport, names: list[str]) -> list[str]:
    (deadline_s,), count, expected = report["deadline_s"], report["late"], report["forecast"]
    if count:
        return [f"{count} late: {', '.join(names)}{' ...' if count > len(names) else ''}"]
    if expected["finishing"] < 1:
        share = _format_share(expected["finishing"])
        line = f"about {share} of the learners finish their shards by {deadline_s:g} s"
        return [f"{line}; the others send what they have trained"]
    subject = "all learners with shards" if report["idle"] else "all learners"
    if not _are_all_present(report):
        subject += " that are present"
    return [f"{subject} finish by {deadline_s:g} s"] if expected["weight_in_time"] == 1 else []


def _quorum_lines(report: PlanReport) -> list[str]:
    (deadline_s,), expected = report["deadline_s"], report["forecast"]
    share, closed = expected["weight_in_time"], expected["cycles_in_time"]
    if warning := _late_cycle_lines(report):
        return warning
    if share == 1 and closed == 1:
        return []
    late = "" if closed == 1 else f"; about {_format_share(closed)} of the cycles close in time"
    line = _format_weight(share, deadline_s)
    return [f"{line}, and a cycle closes then with the quorum of {report['quorum']:.0%}{late}"]


def _extension_lines(report: PlanReport) -> list[str]:
    """Return what the figures of the plan leave out, and those of the simulated run."""
    expected = report["forecast"]
    if not report["extension"] or expected["failure"]:
        return []
    planned = "seconds and staleness are those of the planned work"
    used, most = _format_share(expected["capacity_used"]), expected["max_staleness"]
    staleness = f"{most:.3g}" if most < 1000 else f"{most:,.0f}"
    subject = "learners" if _are_all_present(report) else "learners that are present"
    simulated = f"{subject} use {used} of their capacity, and staleness is up to {staleness}"
    return [
        f"with extension, learners go on until the deadline; {planned}",
        f"in a simulated run, {simulated}",
    ]


def _format_weight(share: float, deadline_s: float) -> str:
    return f"about {_format_share(share)} of the planned weight arrives by {deadline_s:g} s"


def _format_share(share: float) -> str:
    """Return a share in percent; 100 % only if nothing is missing."""
    return f"{min(round(share * 100), 99)}%" if share < 1 else "100%"


def _unlisted_line(rows: LearnerRows, show: int) -> Iterable[Text]:
    return [Text(f"and {len(rows) - show} more (--show)")] if len(rows) > show else []


def _format_cost(report: PlanReport) -> str:
    return "-" if report["cost"] is None else f"{report['cost']:.1f}"


def _format_range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"

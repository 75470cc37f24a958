"""Draws what `plan_report` found: tables with a bar for each learner against its deadline."""

from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.plan_data import Learners, Report
from melisma.cli.views.plan_table import Bar, Rows, table

TOLD = 10


def plan(report: Report, show: int) -> RenderableType:
    """One plan: who gets what, and whether it holds."""
    if not report["feasible"]:
        return _no_plan(report)
    return VIEWS[report["problem"]](report, show)


def comparison(reports: list[Report]) -> RenderableType:
    """One line a scheme."""
    kind = reports[0]["problem"]
    nothing = ("-",) * len(COLUMNS[kind])
    rows = [
        (report["scheme"], *(_summary(report) if report["feasible"] else nothing))
        for report in reports
    ]
    reasons = [
        Text(f"{report['scheme']}: {reason}") for report in reports for reason in _reasons(report)
    ]
    return Group(Rows(("scheme", *COLUMNS[kind]), rows), *reasons)


def _reasons(report: Report) -> list[str]:
    """Why there is no plan, or what it does not keep; learners that are late have a column."""
    if not report["feasible"]:
        return [report["why"]]
    return [*_budget(report), *LATE[report["problem"]](report)]


def _budget(report: Report) -> list[str]:
    over = f"cost {_cost(report)} is over the budget of {report['budget']}"
    return [] if report["keeps_budget"] else [over]


def _late_tasks(report: Report) -> list[str]:
    each = zip(report["tasks"], report["expected_s"], report["deadline_s"], strict=True)
    return [
        f"{name} is expected to end after {seconds:.2f} s, past its deadline of {deadline_s:g} s"
        for name, seconds, deadline_s in each
        if seconds > deadline_s
    ]


def _no_round(report: Report) -> list[str]:
    return [] if report["keeps_deadline"] else [f"no round ends by {report['deadline_s'][0]:g} s"]


LATE: dict[str, Callable[[Report], list[str]]] = {
    "cycle": lambda _: [],
    "shared": _late_tasks,
    "radio": _no_round,
}


COLUMNS = {
    "cycle": ("shards", "updates", "staleness", "average", "late", "ends at", "cost"),
    "shared": ("planned", "gap", "expected to end after", "in all", "cost"),
    "radio": ("batch in all", "round", "efficiency", "rounds by deadline"),
}


def _summary(report: Report) -> tuple[str, ...]:
    if report["problem"] == "shared":
        ends = " + ".join(f"{seconds:.1f}" for seconds in report["expected_s"])
        expected = f"{ends} s", f"{sum(report['expected_s']):.1f} s"
        return f"{report['total_s']:.1f} s", f"{report['gap']:.2%}", *expected, _cost(report)
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
        _range(report["least_updates"], report["most_updates"]),
        str(report["max_staleness"]),
        f"{report['average_staleness']:.2f}",
        str(report["late"]),
        f"{report['ends_s']:.1f} s",
        _cost(report),
    )


def _cycle_view(report: Report, show: int) -> RenderableType:
    (name,), (deadline_s,), (shards,) = report["tasks"], report["deadline_s"], report["shards"]
    rows = report["learners"]
    scale_s = max(deadline_s, report["ends_s"])
    listed = table("learner", "shards", "updates", "seconds", f"deadline {deadline_s:g} s")
    for row in rows.first(show):
        bar = Bar(row["seconds"], scale_s, deadline_s)
        figures = (str(row["shards"]), str(row["updates"]), f"{row['seconds']:.1f}")
        listed.add_row(row["name"], *figures, bar)
    late, idle = np.flatnonzero(rows.columns["late"]), report["idle"]
    given = "handed out" if report["hands_out_all"] else "wanted"
    lines = [
        f"{report['handed_out']} shards {given}, {shards} there are"
        + (f"; {_count(idle, 'learner')} without any" if idle else ""),
        f"staleness {report['max_staleness']}, on average {report['average_staleness']:.2f}"
        + (f"; cost {_cost(report)}" if report["cost"] is not None else ""),
        *_budget(report),
        _late([rows.columns["name"][k] for k in late[:TOLD]], late.size, deadline_s),
    ]
    head = f"{name}: {report['scheme']}, {_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), listed, *_more(rows, show), *map(Text, lines))


def _shared_view(report: Report, show: int) -> RenderableType:
    deadlines = dict(zip(report["tasks"], report["deadline_s"], strict=True))
    scale_s = max([*deadlines.values(), *report["expected_s"]])
    rows = report["learners"]
    listed = table("learner", "task", "shards", "seconds", "deadline of its task")
    for row in rows.first(show):
        bar = Bar(row["seconds"], scale_s, deadlines.get(row["task"], 0.0))
        figures = (row["task"] or "-", str(row["shards"]), f"{row['seconds']:.1f}")
        listed.add_row(row["name"], *figures, bar)
    ends = [
        f"{name} is expected to end after {seconds:.1f} of {deadlines[name]:g} s"
        for name, seconds in zip(report["tasks"], report["expected_s"], strict=True)
    ]
    budget = "no budget" if report["budget"] is None else f"budget {report['budget']:g}"
    lines = [
        (
            f"planned {report['total_s']:.2f} s in all; no plan can do better than "
            f"{report['bound_s']:.2f} s (gap {report['gap']:.2%})"
        ),
        f"cost {report['cost']:.1f}, {budget}",
        *_late_tasks(report),
        *_budget(report),
    ]
    head = f"{', '.join(report['tasks'])}: {report['scheme']}, {_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), listed, *_more(rows, show), *map(Text, ends + lines))


def _radio_view(report: Report, show: int) -> RenderableType:
    rows, frame_s = report["learners"], report["frame_s"]
    listed = table("learner", "batch", "gradient", "uplink slot", "downlink slot", "of the frame")
    widest = float(rows.columns["uplink_slot_s"].max())
    for row in rows.first(show):
        slots = [f"{row[key] * 1e3:.3f} ms" for key in ("uplink_slot_s", "downlink_slot_s")]
        bar = Bar(row["uplink_slot_s"], widest)
        listed.add_row(row["name"], str(row["batch"]), f"{row['gradient_s']:.2f} s", *slots, bar)
    lines = [
        (
            f"round of {report['round_s']:.2f} s with {report['batch']} samples; "
            f"{_count(report['rounds_by_deadline'], 'round')} in {report['deadline_s'][0]:g} s"
        ),
        (
            f"efficiency {report['efficiency']:.3f} (square root of samples a second); "
            f"frame of {frame_s * 1e3:g} ms"
        ),
        *_no_round(report),
    ]
    head = f"{report['tasks'][0]}: {report['scheme']}, {_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), listed, *_more(rows, show), *map(Text, lines))


VIEWS = {"cycle": _cycle_view, "shared": _shared_view, "radio": _radio_view}


def _no_plan(report: Report) -> RenderableType:
    tasks = ", ".join(report["tasks"])
    return Text(f"{tasks}: no plan by {report['scheme']}: {report['why']}")


def _late(names: list[str], count: int, deadline_s: float) -> str:
    if not count:
        return f"everyone ends by {deadline_s:g} s"
    return f"{count} late: {', '.join(names)}{' ...' if count > len(names) else ''}"


def _more(rows: Learners, show: int) -> Iterable[Text]:
    return [Text(f"and {len(rows) - show} more (--show)")] if len(rows) > show else []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cost(report: Report) -> str:
    return "-" if report["cost"] is None else f"{report['cost']:.1f}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"

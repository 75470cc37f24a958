"""Draws what `plan_report` found: tables with a bar for each learner against its deadline."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Report = dict[str, Any]
BAR, SHORT_BAR = 26, 6
PAGE = 1000
LEFT = ("task", "of the frame")


@dataclass(frozen=True)
class Bar:
    """Filled to `seconds`, with a mark at the deadline, if any; what is beyond it is red.

    As wide as there is room for, `scale_s` from end to end.
    """

    seconds: float
    scale_s: float
    deadline_s: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        a_second = min(BAR, options.max_width - 1) / self.scale_s
        filled = round(self.seconds * a_second)
        if self.deadline_s is None:
            yield Text("━" * filled, style="cyan")
            return
        mark = round(self.deadline_s * a_second)
        bar = Text("━" * min(filled, mark), style="green")
        bar.append(" " * (mark - filled))
        bar.append("│")
        yield bar.append("━" * (filled - mark), style="red")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(SHORT_BAR, BAR + 1)


@dataclass(frozen=True)
class Rows:
    """A table where there is room for it, and else a line or two a row."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = _table(*self.titles)
        for row in self.rows:
            table.add_row(*row)
        if Measurement.get(console, options.update_width(PAGE), table).maximum <= options.max_width:
            yield table
            return
        for name, *figures in self.rows:
            named = zip(self.titles[1:], figures, strict=True)
            yield Text(f"{name}: {', '.join(f'{title} {figure}' for title, figure in named)}")


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
        Text(f"{report['scheme']}: {report['why']}{_who(report)}")
        for report in reports
        if not report["feasible"]
    ]
    return Group(Rows(("scheme", *COLUMNS[kind]), rows), *reasons)


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
    updates = [learner["updates"] for learner in report["learners"] if learner["shards"]]
    return (
        str(report["handed_out"]),
        _range(updates),
        str(report["max_staleness"]),
        f"{report['average_staleness']:.2f}",
        str(report["late"]),
        f"{report['ends_s']:.1f} s",
        _cost(report),
    )


def _cycle_view(report: Report, show: int) -> RenderableType:
    (name,), (deadline_s,), (shards,) = report["tasks"], report["deadline_s"], report["shards"]
    rows = report["learners"]
    scale_s = max([deadline_s, *(row["seconds"] for row in rows)])
    table = _table("learner", "shards", "updates", "seconds", f"deadline {deadline_s:g} s")
    for row in rows[:show]:
        bar = Bar(row["seconds"], scale_s, deadline_s)
        figures = (str(row["shards"]), str(row["updates"]), f"{row['seconds']:.1f}")
        table.add_row(row["name"], *figures, bar)
    late = [row["name"] for row in rows if row["late"]]
    idle = sum(row["shards"] == 0 for row in rows)
    given = "handed out" if report["hands_out_all"] else "wanted"
    lines = [
        f"{report['handed_out']} shards {given}, {shards} there are"
        + (f"; {_count(idle, 'learner')} without any" if idle else ""),
        f"staleness {report['max_staleness']}, on average {report['average_staleness']:.2f}"
        + (f"; cost {_cost(report)}" if report["cost"] is not None else ""),
        _late(late, deadline_s),
    ]
    head = f"{name}: {report['scheme']}, {_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), table, *_more(rows, show), *map(Text, lines))


def _shared_view(report: Report, show: int) -> RenderableType:
    deadlines = dict(zip(report["tasks"], report["deadline_s"], strict=True))
    scale_s = max([*deadlines.values(), *report["task_s"]])
    rows = report["learners"]
    table = _table("learner", "task", "shards", "seconds", "deadline of its task")
    for row in rows[:show]:
        bar = Bar(row["seconds"], scale_s, deadlines.get(row["task"], 0.0))
        figures = (row["task"] or "-", str(row["shards"]), f"{row['seconds']:.1f}")
        table.add_row(row["name"], *figures, bar)
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
    ]
    head = f"{', '.join(report['tasks'])}: {report['scheme']}, {_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), table, *_more(rows, show), *map(Text, ends + lines))


def _radio_view(report: Report, show: int) -> RenderableType:
    rows, frame_s = report["learners"], report["frame_s"]
    table = _table("learner", "batch", "gradient", "uplink slot", "downlink slot", "of the frame")
    widest = max(row["uplink_slot_s"] for row in rows)
    for row in rows[:show]:
        slots = [f"{row[key] * 1e3:.3f} ms" for key in ("uplink_slot_s", "downlink_slot_s")]
        bar = Bar(row["uplink_slot_s"], widest)
        table.add_row(row["name"], str(row["batch"]), f"{row['gradient_s']:.2f} s", *slots, bar)
    lines = [
        (
            f"round of {report['round_s']:.2f} s with {report['batch']} samples; "
            f"{_count(report['rounds_by_deadline'], 'round')} in {report['deadline_s'][0]:g} s"
        ),
        (
            f"efficiency {report['efficiency']:.3f} (square root of samples a second); "
            f"frame of {frame_s * 1e3:g} ms"
        ),
    ]
    head = f"{report['tasks'][0]}: {report['scheme']}, {_count(len(rows), 'learner')}"
    return Group(Text(head, style="bold"), table, *_more(rows, show), *map(Text, lines))


VIEWS = {"cycle": _cycle_view, "shared": _shared_view, "radio": _radio_view}


def _no_plan(report: Report) -> RenderableType:
    tasks = ", ".join(report["tasks"])
    return Text(f"{tasks}: no plan by {report['scheme']}: {report['why']}{_who(report)}")


def _who(report: Report) -> str:
    """The names behind the learners' numbers."""
    names = report.get("learners") or []
    more = " ..." if len(names) > 5 else ""
    return f" (that is {', '.join(names[:5])}{more})" if names else ""


def _late(names: list[str], deadline_s: float) -> str:
    if not names:
        return f"everyone ends by {deadline_s:g} s"
    return f"{len(names)} late: {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"


def _more(rows: list[Report], show: int) -> Iterable[Text]:
    return [Text(f"and {len(rows) - show} more (--show)")] if len(rows) > show else []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cost(report: Report) -> str:
    return "-" if report["cost"] is None else f"{report['cost']:.1f}"


def _range(values: list[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for title in others:
        left = title in LEFT or title.startswith("deadline")
        table.add_column(title, justify="left" if left else "right")
    return table

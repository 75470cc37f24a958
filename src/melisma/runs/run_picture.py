"""A run as an SVG picture: the phases of each learner in each cycle, accuracy and loss.

Cycles are panels side by side on the same scale, seconds since dispatch, with one row for each
learner and the deadline. A bar ends where the update arrived, even if the cycle had closed by then;
phases are drawn back from there, and the rest is waiting. An update that arrives long after its
cycle is cut at the edge of the panel. A thin line is a learner without an assignment. Beside each
row is the capacity used by its learner. Only the last `MAX_CYCLES` cycles and the first
`MAX_LEARNERS` learners are drawn, and a note says so; accuracy and loss are drawn for all cycles.
"""

from collections.abc import Iterable
from math import floor, isfinite
from textwrap import wrap
from xml.sax.saxutils import escape

import numpy as np

from melisma.cycle.events import PHASES
from melisma.runs.assignments import COUNTED, Assignment
from melisma.runs.capacity import LOSSES
from melisma.runs.cycle_figures import Cycle
from melisma.runs.report import Report
from melisma.runs.svg import (
    ALIGN_RIGHT,
    BAND,
    BLUE,
    BOLD,
    CENTER,
    GREEN,
    GREY,
    INK,
    LETTER_WIDTH,
    MARGIN,
    ORANGE,
    PALE,
    RED,
    TITLE,
    WIDTH,
    Picture,
    Scale,
    dashed_line,
    document,
    line,
    rect,
    replace_unprintable,
    round_up,
    space_out,
    text,
    truncate,
)

MAX_CYCLES, MAX_LEARNERS = 12, 40
MAX_TALL_ROWS, NAME_LETTERS = 16, 20
PANEL_STRETCH = 1.05  # of the longest cycle or the deadline, so that its end is visible
MAX_LATE_STRETCH = 2.0  # of the same, if updates arrive after their cycle
MIN_LOSS = 0.0005  # of the capacity of a learner, to be listed
# In pixels.
LEFT, RIGHT, TOP = 150, 108, 92
HEADER_HEIGHT, SCORES_HEIGHT, ROW_HEIGHT, SMALL_ROW_HEIGHT = 52, 96, 26, 16
TICK_DISTANCE = 34
LOSS_LABEL_OFFSET = 54  # from the loss axis to labels past its tick labels
LABEL_GAP = 14  # from one label to the next below it
BOLD_LETTER_WIDTH = 8.5  # pixels
COLORS = dict(zip(PHASES, ("#e6e9ed", "#9ecae1", BLUE, "#b39ddb", GREEN, ORANGE), strict=True))
IDLE_HEIGHT, IDLE_LABEL = 2, "no work or absent"
CAPACITY_OFFSET, CAPACITY_WIDTH = 10, 42  # pixels, of the bars of capacity used
HATCH = (
    '<defs><pattern id="dropped" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fbe3e3"/>'
    f'<rect width="2.5" height="6" fill="{RED}"/></pattern></defs>'
)


def draw_run(report: Report) -> Picture:
    """Draw a run, complete or not."""
    return Picture(_Drawing(report).draw())


class _Drawing:
    """Draws one picture from top to bottom."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.cycles = report.cycles[-MAX_CYCLES:]
        self.names = report.names[:MAX_LEARNERS]
        self.row = SMALL_ROW_HEIGHT if len(self.names) > MAX_TALL_ROWS else ROW_HEIGHT
        self.rows_y = TOP + HEADER_HEIGHT
        self.axis_y = self.rows_y + self.row * max(len(self.names), 1) + 4
        self.cut = len(report.cycles) > MAX_CYCLES
        self.pitch = (WIDTH - RIGHT - LEFT) / max(len(self.cycles), 1)
        self.gap = 6 if len(self.cycles) > 8 else 12
        self.span_s = PANEL_STRETCH * max(
            [self.length_s(cycle) for cycle in self.cycles], default=1.0
        )

    def draw(self) -> str:
        parts, bottom = [*self.head()], TOP - 16
        if self.cycles:
            parts += [*self.legend(), *self.rows(), *self.capacities()]
            for index, cycle in enumerate(self.cycles):
                parts += self.panel(cycle, self.scale(index, cycle))
            bottom = self.axis_y + 44
        if any(isfinite(cycle.accuracy) or isfinite(cycle.loss) for cycle in self.report.cycles):
            parts += self.scores(bottom)
            bottom += SCORES_HEIGHT + (44 if self.cut else 28)
        notes = [(note, GREY) for note in self.notes()] + [(row, RED) for row in self.failure()]
        left = LEFT if self.cycles else MARGIN
        parts += [text(left, bottom + 16 * k, *note) for k, note in enumerate(notes)]
        height = bottom + 16 * len(notes)
        return document(parts, height, HATCH)

    def head(self) -> Iterable[str]:
        task, count = self.report.task, len(self.report.names)
        learners = f"{count} learner" + "s" * (count != 1)
        title = replace_unprintable(f"{task.name}: {task.scheme}, {learners}")
        yield text(MARGIN, 32, truncate(title, 90), INK, TITLE, title)
        used, outside = self.report.capacity_used, self.report.outside_share
        capacity = f"; capacity used {used:.0%}, {outside:.0%} of the run outside cycles"
        yield text(MARGIN, 52, self.report.deadline_summary + capacity * isfinite(used), GREY)

    def legend(self) -> Iterable[str]:
        x, y = LEFT, TOP - 20
        for name, color in [*COLORS.items(), ("not counted", "url(#dropped)")]:
            yield rect(x, y, 12, 10, color)
            yield text(x + 17, y + 9, name, GREY)
            x += 34 + round(6.3 * len(name))
        if any(len(cycle.unassigned) for cycle in self.cycles):
            yield rect(x, y + 4, 12, IDLE_HEIGHT, GREY)
            yield text(x + 17, y + 9, IDLE_LABEL, GREY)
            x += 34 + round(6.3 * len(IDLE_LABEL))
        yield dashed_line(x + 6, y - 1, y + 12)
        yield text(x + 14, y + 9, "deadline", GREY)

    def rows(self) -> Iterable[str]:
        for index, name in enumerate(self.names):
            y = self.rows_y + self.row * (index + 0.5) + 4
            full_name = replace_unprintable(name) or "-"
            yield text(LEFT - 12, y, truncate(full_name, NAME_LETTERS), INK, ALIGN_RIGHT, full_name)
        yield text(LEFT - 12, self.axis_y + 17, "seconds", GREY, ALIGN_RIGHT)

    def capacities(self) -> Iterable[str]:
        """Draw a bar for the capacity used by each learner, where it is known."""
        x, totals = WIDTH - RIGHT + CAPACITY_OFFSET, self.report.learners[: len(self.names)]
        known = [k for k, total in enumerate(totals) if isfinite(total.capacity_used)]
        if known:
            for row, word in enumerate(("capacity", "used")):
                yield text(x, self.rows_y - 26 + 14 * row, word, GREY)
        for index in known:
            y, used = self.rows_y + self.row * (index + 0.2), totals[index].capacity_used
            lost = _lost_shares(totals[index].capacity_lost)
            yield f"<g><title>lost: {escape(lost)}</title>"
            yield rect(x, y, CAPACITY_WIDTH, self.row * 0.6, PALE)
            yield rect(x, y, CAPACITY_WIDTH * used, self.row * 0.6, GREY)
            yield "</g>"
            y += self.row * 0.3 + 4
            yield text(x + CAPACITY_WIDTH + 6, y, f"{used:.0%}", INK)

    def panel(self, cycle: Cycle, x: Scale) -> Iterable[str]:
        """Draw one cycle: its head, a row for each learner, the deadline and the axis."""
        yield from self.panel_head(cycle, x)
        top, wide = self.rows_y - 4, x.end - x.start
        yield rect(x.start, top, wide, self.axis_y - top, BAND)
        for index in range(1, len(self.names)):
            y = self.rows_y + self.row * index
            yield line(x.start, y, x.end, y, "#e9edf1")
        work = cycle.assignments
        for assignment in work[: int(np.searchsorted(work.learner, len(self.names)))]:
            yield from self.bar(assignment, x)
        yield from self.idle_lines(cycle, x)
        yield dashed_line(x(cycle.began_s + cycle.deadline_s), top, self.axis_y)
        yield line(x.start, self.axis_y, x.end, self.axis_y, PALE)
        yield from self.axis(Scale(0, self.span_s, x.start, x.end))

    def axis(self, x: Scale) -> Iterable[str]:
        """Draw seconds below a panel, without running into the next panel."""
        for value in x.ticks(max(2, int((x.end - x.start) / TICK_DISTANCE))):
            tick_x, label = x(value), f"{value:g}"
            yield line(tick_x, self.axis_y, tick_x, self.axis_y + 4, GREY)
            half = LETTER_WIDTH * len(label) / 2
            label_x = min(max(tick_x, x.start + half - 1), x.end - half + 1)
            yield text(label_x, self.axis_y + 17, label, GREY, CENTER)

    def panel_head(self, cycle: Cycle, x: Scale) -> Iterable[str]:
        """Write number, seconds and score of a cycle, as far as known and as there is room."""
        ending = f"{cycle.cycle_s:.4g} s" if cycle.ending == "aggregated" else cycle.ending
        missed = not cycle.met_deadline and cycle.ending != "running"
        lines = (
            ((f"cycle {cycle.number}", str(cycle.number)), INK, BOLD),
            ((ending, "!" * missed), RED if missed else GREY, ""),
            (_score(cycle), COLORS["train"], ""),
        )
        for row, (forms, color, style) in enumerate(lines):
            fits = [form for form in forms if LETTER_WIDTH * len(form) < self.pitch]
            y = self.rows_y - 40 + 14 * row
            yield text(x.start + 1, y, fits[0] if fits else forms[-1], color, style, forms[0])

    def bar(self, assignment: Assignment, x: Scale) -> Iterable[str]:
        y = self.rows_y + self.row * assignment.learner + self.row * 0.2
        high = self.row * 0.6
        name, samples = replace_unprintable(assignment.name), assignment.counted_visits
        tooltip = f"{name}, cycle {assignment.cycle}: {assignment.status}, {samples} samples"
        if assignment.arrived_s > assignment.ended_s:
            late_s = assignment.arrived_s - assignment.ended_s
            tooltip += f", arrived {late_s:.3g} s after the cycle closed"
        pale = ' opacity="0.5"' if assignment.status == "carried" else ""
        yield f"<g{pale}><title>{escape(tooltip)}</title>"
        if assignment.status not in COUNTED:
            fill = PALE if assignment.status == "training" else "url(#dropped)"
            yield _bar_part(x, assignment.dispatched_s, self.bar_end_s(assignment), y, high, fill)
        else:
            yield from _phases(assignment, x, y, high)
        yield "</g>"

    def idle_lines(self, cycle: Cycle, x: Scale) -> Iterable[str]:
        """Draw a thin line from the beginning to the deadline for learners without work."""
        idle, end_s = cycle.unassigned, cycle.began_s + cycle.deadline_s
        count = int(np.searchsorted(idle.learner, len(self.names)))
        learners = idle.learner[:count].tolist()
        for learner, (name, reason) in zip(learners, idle.first(count), strict=True):
            y = self.rows_y + self.row * (learner + 0.5) - IDLE_HEIGHT / 2
            tooltip = f"{replace_unprintable(name)}, cycle {cycle.number}: {reason}"
            yield f"<g><title>{escape(tooltip)}</title>"
            yield _bar_part(x, cycle.began_s, end_s, y, IDLE_HEIGHT, GREY)
            yield "</g>"

    def scores(self, top: float) -> Iterable[str]:
        """Draw accuracy and loss below each panel, or by cycle if not all have a panel."""
        cycles, bottom, end = self.report.cycles, top + SCORES_HEIGHT, WIDTH - RIGHT
        axis_x = end - self.gap
        yield line(LEFT, bottom, axis_x, bottom, PALE)
        first, last = cycles[0].number, cycles[-1].number
        x = Scale(first - 0.5, last + 0.5, LEFT, end)
        if self.cut:
            for value in x.ticks(10):
                yield text(x(value), bottom + 17, f"{value:g}", GREY, CENTER)
            yield text(LEFT - 12, bottom + 17, "cycle", GREY, ALIGN_RIGHT)
        lines = {
            "accuracy": (COLORS["train"], [cycle.accuracy for cycle in cycles]),
            "loss": (COLORS["fetch shards"], [cycle.loss for cycle in cycles]),
        }
        ends: list[tuple[float, float, str, str]] = []
        for name, (color, values) in lines.items():
            pairs = zip(cycles, values, strict=True)
            points = [(x(cycle.number), v) for cycle, v in pairs if isfinite(v)]
            if points:
                y = _range(name, [v for _, v in points], top, bottom)
                yield from _curve(points, y, color)
                yield from _score_axis(name, y, color, LEFT if name == "accuracy" else axis_x)
                last_x, last_value = points[-1]
                label = f"{last_value:.1%}" if name == "accuracy" else f"{last_value:.3g}"
                # Beside the last point, or past the loss axis where the label would cross it.
                fits = last_x + 8 + BOLD_LETTER_WIDTH * len(label) < axis_x
                label_x = last_x + 8 if fits else axis_x + LOSS_LABEL_OFFSET
                ends.append((label_x, y(last_value) + 4, label, color))
        yield from _end_labels(ends, top + 4, bottom + 4)

    def notes(self) -> list[str]:
        """Return notes on the time before the first cycle and on parts that are not drawn."""
        report, notes = self.report, list[str]()
        if report.cycles:
            before_s = report.cycles[0].began_s - report.began_s
            notes.append(f"{before_s:.3g} s passed before the first cycle")
        if any("carried" in cycle.counts for cycle in self.cycles):
            notes.append("pale bars are late updates that joined the average of a later cycle")
        if any(self.is_cut(cycle) for cycle in self.cycles):
            notes.append("a bar that reaches the right edge of its cycle ended later")
        if self.cut:
            notes.append(f"the last {MAX_CYCLES} of {len(report.cycles)} cycles are drawn above")
        if len(report.names) > MAX_LEARNERS:
            notes.append(f"the first {MAX_LEARNERS} of {len(report.names)} learners are drawn")
        return notes

    def failure(self) -> list[str]:
        """Return the reason of a failed or cancelled run, in lines."""
        report = self.report
        ended = report.outcome in ("failed", "cancelled")
        return wrap(replace_unprintable(f"{report.outcome}: {report.reason}"), 115) if ended else []

    def scale(self, index: int, cycle: Cycle) -> Scale:
        """Return the scale from instants of a cycle to pixels in its panel."""
        start = LEFT + self.pitch * index
        end = start + self.pitch - self.gap
        return Scale(cycle.began_s, cycle.began_s + self.span_s, start, end)

    def length_s(self, cycle: Cycle) -> float:
        """Return the seconds to draw: the deadline, or longer if work ended after it."""
        closed_s = cycle.closed_s if isfinite(cycle.closed_s) else self.report.ended_s
        work = cycle.assignments
        ended_s = np.where(np.isfinite(work.ended_s), work.ended_s, self.report.ended_s)
        cycle_s = max(cycle.deadline_s, float(ended_s.max(initial=closed_s)) - cycle.began_s)
        arrived_s = float(np.nan_to_num(work.arrived_s).max(initial=0.0)) - cycle.began_s
        return min(max(cycle_s, arrived_s), MAX_LATE_STRETCH * cycle_s)

    def is_cut(self, cycle: Cycle) -> bool:
        """Return whether an update of the cycle arrived after the time that is drawn."""
        work = cycle.assignments
        arrived_s = work.arrived_s[: int(np.searchsorted(work.learner, len(self.names)))]
        return bool(np.any(arrived_s - cycle.began_s > self.span_s))

    def bar_end_s(self, assignment: Assignment) -> float:
        """Return the instant of the arrival; without it, when the work ended otherwise."""
        known_s = (assignment.arrived_s, assignment.ended_s, self.report.ended_s)
        return next(at_s for at_s in known_s if isfinite(at_s))


def _score(cycle: Cycle) -> tuple[str, ...]:
    """Return the score after a cycle in forms from long to short."""
    if isfinite(cycle.accuracy):
        return (f"{cycle.accuracy:.1%}",)
    return (f"loss {cycle.loss:.3g}", f"{cycle.loss:.3g}") if isfinite(cycle.loss) else ("",)


def _lost_shares(shares: tuple[float, ...]) -> str:
    """Return the shares of capacity that a learner lost, largest first."""
    lost = sorted(zip(shares, LOSSES, strict=True), reverse=True)
    return (
        ", ".join(f"{cause} {share:.1%}" for share, cause in lost if share >= MIN_LOSS) or "nothing"
    )


def _phases(assignment: Assignment, x: Scale, y: float, high: float) -> Iterable[str]:
    """Draw phases back from the arrival, compressed if they exceed the time since dispatch."""
    phases = [seconds if isfinite(seconds) else 0.0 for seconds in assignment.phases]
    busy_s, span_s = sum(phases[1:]), assignment.arrived_s - assignment.dispatched_s
    compression = min(1.0, span_s / busy_s) if busy_s > 0 else 1.0
    at_s = assignment.arrived_s - busy_s * compression
    yield _bar_part(x, assignment.dispatched_s, at_s, y, high, COLORS["wait"])
    for name, seconds in zip(PHASES[1:], phases[1:], strict=True):
        yield _bar_part(x, at_s, at_s + seconds * compression, y, high, COLORS[name])
        at_s += seconds * compression


def _bar_part(x: Scale, from_s: float, to_s: float, y: float, high: float, fill: str) -> str:
    """Return the part of a bar that lies within its panel."""
    start, end = (min(x(at_s), x.end) for at_s in (from_s, to_s))
    return rect(start, y, end - start, high, fill)


def _range(name: str, values: list[float], top: float, bottom: float) -> Scale:
    """Return the scale of a curve: loss from 0 or below, accuracy in tenths around its values."""
    if name == "loss":
        low, high = min([*values, 0.0]), max([*values, 1e-9])
        return Scale(-round_up(-low) if low < 0 else 0.0, round_up(high), bottom, top)
    low, high = floor(min(values) * 10) / 10, -floor(-max(values) * 10) / 10
    return Scale(low, max(high, low + 0.1), bottom, top)


def _curve(points: list[tuple[float, float]], y: Scale, color: str) -> Iterable[str]:
    path = " ".join(f"{x:.1f},{y(value):.1f}" for x, value in points)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>'
    radius = 2.6 if len(points) <= 40 else 0.0
    for x, value in points:
        yield (
            f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="{radius}" fill="{color}">'
            f"<title>{value:.4g}</title></circle>"
        )


def _score_axis(name: str, y: Scale, color: str, x: float) -> Iterable[str]:
    """Draw the axis of one curve: that of accuracy at the left, that of loss at the right."""
    left = name == "accuracy"
    label_x, style = (x - 12, ALIGN_RIGHT) if left else (x + 8, "")
    yield line(x, y.end, x, y.start, PALE)
    for value in (y.low, y.high):
        label = f"{value:.0%}" if left else f"{value:.3g}"
        yield text(label_x, y(value) + 4, label, color, style)
    yield text(label_x, (y.start + y.end) / 2 + 4, name, color, style)


def _end_labels(
    labels: list[tuple[float, float, str, str]], low: float, high: float
) -> Iterable[str]:
    """Write the last value of each curve beside its last point, and no label over another."""
    positions = space_out([y for _, y, _, _ in labels], LABEL_GAP, low, high)
    for (x, _, label, color), y in zip(labels, positions, strict=True):
        yield text(x, y, label, color, BOLD)

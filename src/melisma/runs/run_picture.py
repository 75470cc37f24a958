"""A run as a picture: who was at what in each cycle, and how good the model became. SVG, by hand.

One panel a cycle, side by side, all with the same scale: seconds since work was given out, one row
a learner, and the deadline. Work ends where its update arrived and is drawn back from there by the
phases that the learner measured; before it, the learner waited. Only so much is drawn as can be
read: the last `CYCLES` cycles and the first `LEARNERS` learners, and a note says so; accuracy and
loss are always those of all cycles.
"""

from collections.abc import Iterable
from math import floor, isfinite
from textwrap import wrap
from xml.sax.saxutils import escape

import numpy as np

from melisma.cycle.events import PHASES
from melisma.runs.assignments import Assignment
from melisma.runs.report import Cycle, Report
from melisma.runs.svg import (
    BAND,
    GREY,
    INK,
    LETTER_WIDTH,
    PALE,
    RED,
    WIDTH,
    Picture,
    Scale,
    dashed_line,
    line,
    rect,
    replace_unprintable,
    round_up,
    space_out,
    text,
    truncate,
)

MAX_CYCLES, MAX_LEARNERS = 12, 40
LEFT, RIGHT = 150, 108
TOP, HEADER, SCORES = 92, 52, 96
ROW, SMALL_ROW, MANY = 26, 16, 16
NAME = 20
ROOM = 1.05  # of the longest cycle or the deadline, so that its end is seen
TICK = 34  # pixels
LOSS_LABEL_OFFSET = 54  # pixels from the loss axis to labels past its tick labels
LABEL_GAP = 14  # pixels from one label to the next below it
COLORS = dict(
    zip(PHASES, ("#e6e9ed", "#9ecae1", "#4a90c2", "#b39ddb", "#2a9d6f", "#f0a04b"), strict=True)
)
HATCH = (
    '<defs><pattern id="dropped" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fbe3e3"/>'
    f'<rect width="2.5" height="6" fill="{RED}"/></pattern></defs>'
)


def draw_run(report: Report) -> Picture:
    """The picture of a run, whole or not."""
    return Picture(_Drawing(report).drawn())


class _Drawing:
    """The parts of one picture, from top to bottom."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.cycles = report.cycles[-MAX_CYCLES:]
        self.names = report.names[:MAX_LEARNERS]
        self.row = SMALL_ROW if len(self.names) > MANY else ROW
        self.rows_y = TOP + HEADER
        self.axis_y = self.rows_y + self.row * max(len(self.names), 1) + 4
        self.cut = len(report.cycles) > MAX_CYCLES
        self.pitch = (WIDTH - RIGHT - LEFT) / max(len(self.cycles), 1)
        self.gap = 6 if len(self.cycles) > 8 else 12
        self.span_s = ROOM * max([self.length_s(cycle) for cycle in self.cycles], default=1.0)

    def drawn(self) -> str:
        parts, bottom = [*self.head()], TOP - 16
        if self.cycles:
            parts += [*self.legend(), *self.rows()]
            for place, cycle in enumerate(self.cycles):
                parts += self.panel(cycle, self.scale(place, cycle))
            bottom = self.axis_y + 44
        if any(isfinite(each.accuracy) or isfinite(each.loss) for each in self.report.cycles):
            parts += self.scores(bottom)
            bottom += SCORES + (44 if self.cut else 28)
        notes = [(note, GREY) for note in self.notes()] + [(line, RED) for line in self.failure()]
        left = LEFT if self.cycles else 24
        parts += [text(left, bottom + 16 * k, *note) for k, note in enumerate(notes)]
        height = bottom + 16 * len(notes)
        body = "\n".join(parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
            f'font-size="12">\n{HATCH}\n{rect(0, 0, WIDTH, height, "#ffffff")}\n{body}\n</svg>\n'
        )

    def head(self) -> Iterable[str]:
        task, count = self.report.task, len(self.report.names)
        learners = f"{count} learner" + "s" * (count != 1)
        title = replace_unprintable(f"{task.name}: {task.scheme}, {learners}")
        yield text(24, 32, truncate(title, 90), INK, 'font-size="17" font-weight="600"', title)
        yield text(24, 52, self.report.deadline_summary, GREY)

    def legend(self) -> Iterable[str]:
        x, y = LEFT, TOP - 20
        shown = [*COLORS.items(), ("not counted", "url(#dropped)")]
        for name, color in shown:
            yield rect(x, y, 12, 10, color)
            yield text(x + 17, y + 9, name, GREY)
            x += 34 + round(6.3 * len(name))
        yield dashed_line(x + 6, y - 1, y + 12)
        yield text(x + 14, y + 9, "deadline", GREY)

    def rows(self) -> Iterable[str]:
        for place, name in enumerate(self.names):
            y, whole = self.rows_y + self.row * (place + 0.5) + 4, replace_unprintable(name) or "-"
            yield text(LEFT - 12, y, truncate(whole, NAME), INK, 'text-anchor="end"', whole)
        yield text(LEFT - 12, self.axis_y + 17, "seconds", GREY, 'text-anchor="end"')

    def panel(self, cycle: Cycle, x: Scale) -> Iterable[str]:
        """One cycle: its head, a row a learner, the deadline and the axis."""
        yield from self.panel_head(cycle, x)
        top, wide = self.rows_y - 4, x.end - x.start
        yield rect(x.start, top, wide, self.axis_y - top, BAND)
        for place in range(1, len(self.names)):
            y = self.rows_y + self.row * place
            yield line(x.start, y, x.end, y, "#e9edf1")
        work = cycle.assignments
        for each in work[: int(np.searchsorted(work.learner, len(self.names)))]:
            yield from self.bars(each, x)
        yield dashed_line(x(cycle.began_s + cycle.deadline_s), top, self.axis_y)
        yield line(x.start, self.axis_y, x.end, self.axis_y, PALE)
        yield from self.axis(Scale(0, self.span_s, x.start, x.end))

    def axis(self, x: Scale) -> Iterable[str]:
        """Seconds below a panel; none of them runs into the next."""
        for value in x.ticks(max(2, int((x.end - x.start) / TICK))):
            place, said = x(value), f"{value:g}"
            yield line(place, self.axis_y, place, self.axis_y + 4, GREY)
            half = LETTER_WIDTH * len(said) / 2
            inner = min(max(place, x.start + half - 1), x.end - half + 1)
            yield text(inner, self.axis_y + 17, said, GREY, 'text-anchor="middle"')

    def panel_head(self, cycle: Cycle, x: Scale) -> Iterable[str]:
        """Its number, seconds and accuracy, as far as they are known, and as there is room."""
        said = f"{cycle.waited_s:.4g} s" if cycle.ending == "aggregated" else cycle.ending
        wrong = not cycle.met_deadline and cycle.ending != "running"
        lines = (
            ((f"cycle {cycle.number}", str(cycle.number)), INK, 'font-weight="600"'),
            ((said, "!" * wrong), RED if wrong else GREY, ""),
            (_score(cycle), COLORS["train"], ""),
        )
        for row, (forms, color, style) in enumerate(lines):
            fits = [form for form in forms if LETTER_WIDTH * len(form) < self.pitch]
            y = self.rows_y - 40 + 14 * row
            shown = fits[0] if fits else forms[-1]
            yield text(x.start + 1, y, shown, color, style, forms[0])

    def bars(self, each: Assignment, x: Scale) -> Iterable[str]:
        y = self.rows_y + self.row * each.learner + self.row * 0.2
        high = self.row * 0.6
        start, end = x(each.dispatched_s), x(self.ended_s(each))
        name, samples = replace_unprintable(each.name), each.counted_visits
        said = f"{name}, cycle {each.cycle}: {each.status}, {samples} samples"
        yield f"<g><title>{escape(said)}</title>"
        if each.status != "counted":
            fill = PALE if each.status == "training" else "url(#dropped)"
            yield rect(start, y, end - start, high, fill)
        else:
            yield from _phases(each, x, y, high)
        yield "</g>"

    def scores(self, top: float) -> Iterable[str]:
        """Accuracy and loss after each cycle: below its panel, or by number where all are more."""
        every, bottom, end = self.report.cycles, top + SCORES, WIDTH - RIGHT
        axis_x = end - self.gap
        yield line(LEFT, bottom, axis_x, bottom, PALE)
        first, last = every[0].number, every[-1].number
        x = Scale(first - 0.5, last + 0.5, LEFT, end)
        if self.cut:
            for value in x.ticks(10):
                yield text(x(value), bottom + 17, f"{value:g}", GREY, 'text-anchor="middle"')
            yield text(LEFT - 12, bottom + 17, "cycle", GREY, 'text-anchor="end"')
        lines = {
            "accuracy": (COLORS["train"], [each.accuracy for each in every]),
            "loss": (COLORS["fetch shards"], [each.loss for each in every]),
        }
        ends: list[tuple[float, float, str, str]] = []
        for name, (color, values) in lines.items():
            pairs = zip(every, values, strict=True)
            points = [(x(each.number), v) for each, v in pairs if isfinite(v)]
            if points:
                y = _range(name, [v for _, v in points], top, bottom)
                yield from _curve(points, y, color)
                yield from _score_axis(name, y, color, LEFT if name == "accuracy" else axis_x)
                last_x, last_value = points[-1]
                label = f"{last_value:.1%}" if name == "accuracy" else f"{last_value:.3g}"
                # Beside the last point, or past the loss axis where the label would cross it.
                fits = last_x + 8 + LETTER_WIDTH * len(label) < axis_x
                label_x = last_x + 8 if fits else axis_x + LOSS_LABEL_OFFSET
                ends.append((label_x, y(last_value) + 4, label, color))
        yield from _end_labels(ends, top + 4, bottom + 4)

    def notes(self) -> list[str]:
        """What is not drawn."""
        report, said = self.report, []
        if report.cycles:
            before_s = report.cycles[0].began_s - report.began_s
            said.append(f"{before_s:.3g} s passed before the first cycle")
        if self.cut:
            said.append(f"the last {MAX_CYCLES} of {len(report.cycles)} cycles are drawn above")
        if len(report.names) > MAX_LEARNERS:
            said.append(f"the first {MAX_LEARNERS} of {len(report.names)} learners are drawn")
        return said

    def failure(self) -> list[str]:
        """How it ended, if not as planned."""
        report = self.report
        ended = report.outcome in ("failed", "cancelled")
        return wrap(replace_unprintable(f"{report.outcome}: {report.reason}"), 115) if ended else []

    def scale(self, place: int, cycle: Cycle) -> Scale:
        """Instants of a cycle to places in its panel."""
        start = LEFT + self.pitch * place
        end = start + self.pitch - self.gap
        return Scale(cycle.began_s, cycle.began_s + self.span_s, start, end)

    def length_s(self, cycle: Cycle) -> float:
        """The deadline, or longer where somebody was at work or waited for past it."""
        closed_s = cycle.closed_s if isfinite(cycle.closed_s) else self.report.ended_s
        ended_s = cycle.assignments.ended_s
        told_s = np.where(np.isfinite(ended_s), ended_s, self.report.ended_s)
        last_s = float(told_s.max(initial=closed_s))
        return max(cycle.deadline_s, last_s - cycle.began_s)

    def ended_s(self, each: Assignment) -> float:
        return each.ended_s if isfinite(each.ended_s) else self.report.ended_s


def _score(cycle: Cycle) -> tuple[str, ...]:
    """How good the model was after it, in forms from long to short."""
    if isfinite(cycle.accuracy):
        return (f"{cycle.accuracy:.1%}",)
    return (f"loss {cycle.loss:.3g}", f"{cycle.loss:.3g}") if isfinite(cycle.loss) else ("",)


def _phases(each: Assignment, x: Scale, y: float, high: float) -> Iterable[str]:
    """Back from its arrival; squeezed where a learner measured more than there was."""
    told = [seconds if isfinite(seconds) else 0.0 for seconds in each.phases]
    busy_s, span_s = sum(told[1:]), each.arrived_s - each.dispatched_s
    squeeze = min(1.0, span_s / busy_s) if busy_s > 0 else 1.0
    at_s = each.arrived_s - busy_s * squeeze
    yield rect(x(each.dispatched_s), y, x(at_s) - x(each.dispatched_s), high, COLORS["wait"])
    for name, seconds in zip(PHASES[1:], told[1:], strict=True):
        yield rect(x(at_s), y, x(at_s + seconds * squeeze) - x(at_s), high, COLORS[name])
        at_s += seconds * squeeze


def _range(name: str, values: list[float], top: float, bottom: float) -> Scale:
    """Loss from 0, or below; accuracy by tenths around what it was, so that its rise is seen."""
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
    place, style = (x - 12, 'text-anchor="end"') if left else (x + 8, "")
    yield line(x, y.end, x, y.start, PALE)
    for value in (y.low, y.high):
        said = f"{value:.0%}" if left else f"{value:.3g}"
        yield text(place, y(value) + 4, said, color, style)
    yield text(place, (y.start + y.end) / 2 + 4, name, color, style)


def _end_labels(
    labels: list[tuple[float, float, str, str]], low: float, high: float
) -> Iterable[str]:
    """Write the last value of each curve beside its last point, and no label over another."""
    positions = space_out([y for _, y, _, _ in labels], LABEL_GAP, low, high)
    for (x, _, label, color), y in zip(labels, positions, strict=True):
        yield text(x, y, label, color, 'font-weight="600"')

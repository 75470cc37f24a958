"""A comparison as a picture: how accuracy rose by each scheme, and bars of all else. SVG, by hand.

The bold line of a scheme is the mean of its runs that ended well, cycle by cycle, as far as all of
them came; the thin ones are its seeds. Bars are means with 95 % confidence intervals; a figure that
is zero for all, or not known, has none.
"""

from collections.abc import Iterable
from math import floor, isfinite, isnan
from statistics import fmean

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
    line,
    rect,
    replace_unprintable,
    text,
    truncate,
)
from melisma.simulation.comparison.comparison import Comparison, Interval
from melisma.simulation.comparison.figures import TIME_FIGURES, WORK_FIGURES, format_interval

Points = list[tuple[float, float]]

COLORS = ("#2a9d6f", "#4a90c2", "#f0a04b", "#8f6fc9", "#c2578c", "#17858f", "#8d6e4f")
LEFT, RIGHT, TOP, CURVES = 132, 24, 96, 250
ACROSS, GAP, ROW, TITLE, AXIS, VALUE = 3, 18, 24, 26, 40, 110  # pixels, but for the first
LONG = {
    "accuracy_s": "time to the accuracy",
    "training_s": "training time",
    "run_s": "time of the run",
    "deadline_misses": "cycles past the deadline",
    "max_staleness": "largest staleness",
    "average_staleness": "average staleness",
    "samples_trained": "samples trained",
    "samples_dropped": "samples dropped",
    "bytes": "bytes carried",
    "joules": "energy",
    "cost": "cost",
}


def draw_comparison(found: Comparison) -> Picture:
    """The picture of a comparison."""
    return Picture(_Drawing(found).drawn())


class _Drawing:
    """The parts of it, from top to bottom."""

    def __init__(self, found: Comparison) -> None:
        self.found = found
        names = found.schemes
        self.colors = {name: COLORS[k % len(COLORS)] for k, name in enumerate(names)}
        self.figures = [name for name in LONG if self.has_bars(name)]
        self.panel = TITLE + ROW * len(names) + GAP
        self.pitch = (WIDTH - LEFT - RIGHT + GAP) / ACROSS

    def drawn(self) -> str:
        parts, bottom = [*self.head()], TOP
        if any(each.curve for each in self.found.runs):
            parts += [*self.curves(bottom)]
            bottom += CURVES + AXIS
        for place, figure in enumerate(self.figures):
            parts += self.bars(figure, place % ACROSS, bottom + self.panel * (place // ACROSS))
        bottom += self.panel * -(-len(self.figures) // ACROSS)
        notes = self.notes()
        parts += [text(24, bottom + 4 + 16 * k, note, RED) for k, note in enumerate(notes)]
        return _svg(parts, bottom + 16 * len(notes))

    def has_bars(self, figure: str) -> bool:
        means = [self.found.interval(scheme, figure).mean for scheme in self.found.schemes]
        return any(isfinite(each) and each > 0 for each in means)

    def head(self) -> Iterable[str]:
        task, count = self.found.task, len(self.found.seeds)
        seeds = (
            f"means of {count} seeds, 95 % confidence" if count > 1 else "one seed, no intervals"
        )
        title = replace_unprintable(f"{task.name}: {len(self.found.schemes)} schemes compared")
        yield text(24, 32, truncate(title, 90), INK, 'font-size="17" font-weight="600"', title)
        yield text(24, 52, f"{task.cycles} cycles of {task.deadline_s:g} s, {seeds}", GREY)
        x = 24.0
        for name, color in self.colors.items():
            yield rect(x, 66, 12, 10, color)
            yield text(x + 17, 75, name, GREY)
            x += 38 + LETTER_WIDTH * len(name)

    def curves(self, top: float) -> Iterable[str]:
        """Accuracy over virtual seconds."""
        points = [point for each in self.found.runs for point in each.curve]
        x = Scale(0, 1.02 * max(at_s for at_s, _ in points), LEFT, WIDTH - RIGHT)
        y = _accuracies([found for _, found in points], self.found.target.accuracy, top)
        yield rect(LEFT, top, x.end - x.start, CURVES, BAND)
        yield from _axes(x, y)
        for name, color in self.colors.items():
            for each in self.found.runs_of(name):
                yield _polyline([*each.curve], x, y, f'stroke="{color}" stroke-opacity="0.3"')
        for name, color in self.colors.items():
            middle = self.mean_curve(name)
            yield _polyline(middle, x, y, f'stroke="{color}" stroke-width="2.2"')
            yield from _dots(middle, x, y, color)
        yield from self.goal(x, y)

    def mean_curve(self, scheme: str) -> Points:
        """Cycle by cycle, as far as all that ended well came."""
        curves = [each.curve for each in self.found.runs_of(scheme) if each.ended_well]
        cycles = zip(*curves, strict=False)
        return [(fmean(s for s, _ in some), fmean(a for _, a in some)) for some in cycles]

    def goal(self, x: Scale, y: Scale) -> Iterable[str]:
        """The accuracy whose time is taken."""
        accuracy = self.found.target.accuracy
        if not isfinite(accuracy):
            return
        ends = f'x1="{x.start}" y1="{y(accuracy):.1f}" x2="{x.end}" y2="{y(accuracy):.1f}"'
        yield f'<line {ends} stroke="{RED}" stroke-width="1.3" stroke-dasharray="4 3"/>'
        said = f"{accuracy:.4g}" if accuracy == 1 else f"{accuracy:.2%}"
        yield text(x.start + 6, y(accuracy) - 5, said, RED, 'font-weight="600"')

    def bars(self, figure: str, column: int, top: float) -> Iterable[str]:
        """One figure, a row a scheme."""
        start = LEFT + self.pitch * column
        wide = self.pitch - GAP
        intervals = [self.found.interval(name, figure) for name in self.found.schemes]
        x = Scale(0, max(_reach(each) for each in intervals), start, start + wide - VALUE)
        largest = max(each.mean for each in intervals if each.known)
        yield text(start, top + 14, LONG[figure], INK, 'font-weight="600"')
        yield rect(start, top + TITLE - 4, wide, ROW * len(intervals) + 4, BAND)
        for place, (name, each) in enumerate(zip(self.found.schemes, intervals, strict=True)):
            y = top + TITLE + ROW * place
            if column == 0:
                yield text(LEFT - 12, y + 14, truncate(name, 18), INK, 'text-anchor="end"', name)
            yield from _bar(each, x, y, self.colors[name])
            said = self.value(figure, name, largest)
            yield text(start + wide - 4, y + 14, said, GREY, 'text-anchor="end" font-size="11"')

    def value(self, figure: str, scheme: str, largest: float) -> str:
        """In figures; a star where runs are left out of a time, and the notes tell which."""
        interval = self.found.interval(scheme, figure)
        said = format_interval(interval, (TIME_FIGURES | WORK_FIGURES)[figure][1], largest).replace(
            " ± ?", ""
        )
        if figure != "accuracy_s" or interval.known == interval.count:
            return said
        failed = len(self.found.failed_runs(scheme)) == interval.count
        return f"{said} *" if interval.known else "-" if failed else "never"

    def notes(self) -> list[str]:
        """What the bars leave out."""
        said = []
        for name in self.found.schemes:
            runs, count = self.found.failed_runs(name), len(self.found.seeds)
            late = sum(e.ended_well and isnan(e.accuracy_s) for e in self.found.runs_of(name))
            if runs:
                said.append(f"{name}: {len(runs)} of {count} failed: {runs[0].reason}")
            if late and self.found.target:
                goal = f"{self.found.target.accuracy:.2%}"
                said.append(f"{name}: {late} of {count} never reached {goal}")
        return [truncate(replace_unprintable(each), 140) for each in said]


def _svg(parts: list[str], height: float) -> str:
    body, high = "\n".join(parts), f"{height:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" '
        f'width="{WIDTH}" height="{high}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        f'font-size="12">\n{rect(0, 0, WIDTH, height, "#ffffff")}\n{body}\n</svg>\n'
    )


def _accuracies(values: list[float], goal: float, top: float) -> Scale:
    """By twentieths around what it was, so that its rise is seen."""
    every = [*values, goal] if isfinite(goal) else values
    low, high = floor(min(every) * 20) / 20, -floor(-max(every) * 20) / 20
    return Scale(low, max(high, low + 0.05), top + CURVES, top)


def _axes(x: Scale, y: Scale) -> Iterable[str]:
    for value in y.ticks(5):
        yield line(x.start, y(value), x.end, y(value), "#e9edf1")
        said = f"{100 * value:.3g} %"
        yield text(x.start - 12, y(value) + 4, said, GREY, 'text-anchor="end"')
    yield line(x.start, y.start, x.end, y.start, PALE)
    for value in x.ticks(10):
        yield line(x(value), y.start, x(value), y.start + 4, GREY)
        yield text(x(value), y.start + 17, f"{value:g}", GREY, 'text-anchor="middle"')
    yield text(x.start - 12, y.start + 17, "seconds", GREY, 'text-anchor="end"')
    yield text(x.start + 6, y.end + 16, "accuracy", GREY)


def _polyline(points: Points, x: Scale, y: Scale, style: str) -> str:
    path = " ".join(f"{x(at_s):.1f},{y(found):.1f}" for at_s, found in points)
    return f'<polyline points="{path}" fill="none" {style}/>'


def _dots(points: Points, x: Scale, y: Scale, color: str) -> Iterable[str]:
    for at_s, found in points if len(points) <= 40 else []:
        place = f'cx="{x(at_s):.1f}" cy="{y(found):.1f}"'
        said = f"<title>{found:.2%} after {at_s:.4g} s</title>"
        yield f'<circle {place} r="2.6" fill="{color}">{said}</circle>'


def _bar(interval: Interval, x: Scale, y: float, color: str) -> Iterable[str]:
    """A mean, and the interval around it."""
    if not interval.known:
        return
    yield rect(x.start, y + 3, x(interval.mean) - x.start, ROW - 10, color)
    if interval.half_width > 0:
        low, high = (
            x(max(0.0, interval.mean - interval.half_width)),
            x(interval.mean + interval.half_width),
        )
        middle = y + 3 + (ROW - 10) / 2
        yield line(low, middle, high, middle, INK)
        yield from (line(end, middle - 4, end, middle + 4, INK) for end in (low, high))


def _reach(interval: Interval) -> float:
    """How far its bar and whisker go."""
    if not interval.known:
        return 0.0
    return interval.mean + (interval.half_width if isfinite(interval.half_width) else 0.0)

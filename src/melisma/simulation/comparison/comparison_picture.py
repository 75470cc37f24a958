"""A comparison as an SVG picture: accuracy over time by scheme, and a bar chart of each figure.

The bold line of a scheme is the mean of its completed runs, cycle by cycle, up to the last cycle of
the shortest; thin lines are single seeds. Bars are means with 95 % confidence intervals. A figure
that is unknown, or zero for all schemes, has no bars.
"""

from collections.abc import Iterable
from math import floor, isfinite, isnan
from statistics import fmean

from melisma.runs.svg import (
    ALIGN_RIGHT,
    BAND,
    BOLD,
    CENTER,
    GREY,
    INK,
    LETTER_WIDTH,
    MARGIN,
    PALE,
    RED,
    SERIES,
    TITLE,
    WIDTH,
    Picture,
    Scale,
    document,
    line,
    rect,
    replace_unprintable,
    text,
    truncate,
)
from melisma.simulation.comparison.comparison import Comparison
from melisma.simulation.comparison.figures import TIME_FIGURES, WORK_FIGURES, format_interval
from melisma.simulation.comparison.interval import Interval

Points = list[tuple[float, float]]

# In pixels.
LEFT, RIGHT, TOP, CURVES_HEIGHT = 132, 24, 96, 250
GAP, ROW_HEIGHT, TITLE_HEIGHT, AXIS_HEIGHT, VALUE_WIDTH = 18, 24, 26, 40, 110
PANELS_PER_ROW = 3
MAX_DOTS = 40  # more cycles have no dots
TITLES = {
    "accuracy_s": "time to the accuracy",
    "training_s": "training time",
    "run_s": "time of the run",
    "deadline_misses": "cycles past the deadline",
    "max_staleness": "largest staleness",
    "average_staleness": "average staleness",
    "visits_counted": "visits counted",
    "visits_dropped": "visits dropped",
    "bytes": "bytes carried",
    "joules": "energy",
    "cost": "cost",
}


def draw_comparison(comparison: Comparison) -> Picture:
    """Draw a comparison."""
    return Picture(_Drawing(comparison).draw())


class _Drawing:
    """The parts of the picture, from top to bottom."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        names = comparison.schemes
        self.colors = {name: SERIES[k % len(SERIES)] for k, name in enumerate(names)}
        self.figures = [name for name in TITLES if self.has_bars(name)]
        self.panel = TITLE_HEIGHT + ROW_HEIGHT * len(names) + GAP
        self.pitch = (WIDTH - LEFT - RIGHT + GAP) / PANELS_PER_ROW

    def draw(self) -> str:
        parts, bottom = [*self.head()], TOP
        if any(run.curve for run in self.comparison.runs):
            parts += [*self.curves(bottom)]
            bottom += CURVES_HEIGHT + AXIS_HEIGHT
        for index, figure in enumerate(self.figures):
            parts += self.bars(
                figure, index % PANELS_PER_ROW, bottom + self.panel * (index // PANELS_PER_ROW)
            )
        bottom += self.panel * -(-len(self.figures) // PANELS_PER_ROW)
        notes = self.notes()
        parts += [text(MARGIN, bottom + 4 + 16 * k, note, RED) for k, note in enumerate(notes)]
        return document(parts, bottom + 16 * len(notes))

    def has_bars(self, figure: str) -> bool:
        if figure == "cost" and not self.comparison.has_prices:
            return False
        means = [
            self.comparison.interval(scheme, figure).mean for scheme in self.comparison.schemes
        ]
        return any(isfinite(mean) and mean > 0 for mean in means)

    def head(self) -> Iterable[str]:
        task, count = self.comparison.task, len(self.comparison.seeds)
        seeds = (
            f"means of {count} seeds, 95 % confidence" if count > 1 else "one seed, no intervals"
        )
        title = replace_unprintable(f"{task.name}: {len(self.comparison.schemes)} schemes compared")
        yield text(MARGIN, 32, truncate(title, 90), INK, TITLE, title)
        yield text(MARGIN, 52, f"{task.describe_cycles()}, {seeds}", GREY)
        x = 24.0
        for name, color in self.colors.items():
            yield rect(x, 66, 12, 10, color)
            yield text(x + 17, 75, name, GREY)
            x += 38 + LETTER_WIDTH * len(name)

    def curves(self, top: float) -> Iterable[str]:
        """Draw accuracy over virtual time."""
        points = [point for run in self.comparison.runs for point in run.curve]
        x = Scale(0, 1.02 * max(at_s for at_s, _ in points), LEFT, WIDTH - RIGHT)
        y = _accuracy_scale(
            [accuracy for _, accuracy in points], self.comparison.target.accuracy, top
        )
        yield rect(LEFT, top, x.end - x.start, CURVES_HEIGHT, BAND)
        yield from _axes(x, y)
        for name, color in self.colors.items():
            for run in self.comparison.runs_of(name):
                yield _polyline([*run.curve], x, y, f'stroke="{color}" stroke-opacity="0.3"')
        for name, color in self.colors.items():
            mean = self.mean_curve(name)
            yield _polyline(mean, x, y, f'stroke="{color}" stroke-width="2.2"')
            yield from _dots(mean, x, y, color)
        yield from self.target(x, y)

    def mean_curve(self, scheme: str) -> Points:
        """Return the mean of completed runs, up to the last cycle of the shortest."""
        curves = [run.curve for run in self.comparison.runs_of(scheme) if run.completed]
        cycles = zip(*curves, strict=False)
        return [(fmean(s for s, _ in points), fmean(a for _, a in points)) for points in cycles]

    def target(self, x: Scale, y: Scale) -> Iterable[str]:
        """Draw the accuracy to which time is measured."""
        accuracy = self.comparison.target.accuracy
        if not isfinite(accuracy):
            return
        ends = f'x1="{x.start}" y1="{y(accuracy):.1f}" x2="{x.end}" y2="{y(accuracy):.1f}"'
        yield f'<line {ends} stroke="{RED}" stroke-width="1.3" stroke-dasharray="4 3"/>'
        label = f"{accuracy:.4g}" if accuracy == 1 else f"{accuracy:.2%}"
        yield text(x.start + 6, y(accuracy) - 5, label, RED, BOLD)

    def bars(self, figure: str, column: int, top: float) -> Iterable[str]:
        """Draw one figure, with a row for each scheme."""
        start = LEFT + self.pitch * column
        width = self.pitch - GAP
        intervals = [self.comparison.interval(name, figure) for name in self.comparison.schemes]
        x = Scale(
            0, max(_reach(interval) for interval in intervals), start, start + width - VALUE_WIDTH
        )
        largest = max(interval.mean for interval in intervals if interval.known)
        yield text(start, top + 14, TITLES[figure], INK, BOLD)
        yield rect(start, top + TITLE_HEIGHT - 4, width, ROW_HEIGHT * len(intervals) + 4, BAND)
        for row, (name, interval) in enumerate(
            zip(self.comparison.schemes, intervals, strict=True)
        ):
            y = top + TITLE_HEIGHT + ROW_HEIGHT * row
            if column == 0:
                yield text(LEFT - 12, y + 14, truncate(name, 18), INK, ALIGN_RIGHT, name)
            yield from _bar(interval, x, y, self.colors[name])
            value = self.value(figure, name, largest)
            yield text(start + width - 4, y + 14, value, GREY, f'{ALIGN_RIGHT} font-size="11"')

    def value(self, figure: str, scheme: str, largest: float) -> str:
        """Return a value as text, with a star where the notes list runs that are left out."""
        interval = self.comparison.interval(scheme, figure)
        value = format_interval(
            interval, (TIME_FIGURES | WORK_FIGURES)[figure][1], largest
        ).replace(" ± ?", "")
        if figure != "accuracy_s" or interval.known == interval.count:
            return value
        failed = len(self.comparison.failures(scheme)) == interval.count
        return f"{value} *" if interval.known else "-" if failed else "never"

    def notes(self) -> list[str]:
        """Return notes on runs that the bars leave out."""
        notes = []
        for name in self.comparison.schemes:
            failed, count = self.comparison.failures(name), len(self.comparison.seeds)
            runs = self.comparison.runs_of(name)
            unreached = sum(run.completed and isnan(run.accuracy_s) for run in runs)
            if failed:
                notes.append(f"{name}: {len(failed)} of {count} failed: {failed[0].reason}")
            if unreached and self.comparison.target:
                target = f"{self.comparison.target.accuracy:.2%}"
                notes.append(f"{name}: {unreached} of {count} never reached {target}")
        return [truncate(replace_unprintable(note), 140) for note in notes]


def _accuracy_scale(values: list[float], target: float, top: float) -> Scale:
    """Return a scale in steps of 5 % around the values, so that their rise is visible."""
    shown = [*values, target] if isfinite(target) else values
    low, high = floor(min(shown) * 20) / 20, -floor(-max(shown) * 20) / 20
    return Scale(low, max(high, low + 0.05), top + CURVES_HEIGHT, top)


def _axes(x: Scale, y: Scale) -> Iterable[str]:
    for value in y.ticks(5):
        yield line(x.start, y(value), x.end, y(value), "#e9edf1")
        label = f"{100 * value:.3g} %"
        yield text(x.start - 12, y(value) + 4, label, GREY, ALIGN_RIGHT)
    yield line(x.start, y.start, x.end, y.start, PALE)
    for value in x.ticks(10):
        yield line(x(value), y.start, x(value), y.start + 4, GREY)
        yield text(x(value), y.start + 17, f"{value:g}", GREY, CENTER)
    yield text(x.start - 12, y.start + 17, "seconds", GREY, ALIGN_RIGHT)
    yield text(x.start + 6, y.end + 16, "accuracy", GREY)


def _polyline(points: Points, x: Scale, y: Scale, style: str) -> str:
    path = " ".join(f"{x(at_s):.1f},{y(accuracy):.1f}" for at_s, accuracy in points)
    return f'<polyline points="{path}" fill="none" {style}/>'


def _dots(points: Points, x: Scale, y: Scale, color: str) -> Iterable[str]:
    for at_s, accuracy in points if len(points) <= MAX_DOTS else []:
        center = f'cx="{x(at_s):.1f}" cy="{y(accuracy):.1f}"'
        title = f"<title>{accuracy:.2%} after {at_s:.4g} s</title>"
        yield f'<circle {center} r="2.6" fill="{color}">{title}</circle>'


def _bar(interval: Interval, x: Scale, y: float, color: str) -> Iterable[str]:
    """Draw a mean, and the interval around it."""
    if not interval.known:
        return
    yield rect(x.start, y + 3, x(interval.mean) - x.start, ROW_HEIGHT - 10, color)
    if interval.half_width > 0:
        low, high = (
            x(max(0.0, interval.mean - interval.half_width)),
            x(interval.mean + interval.half_width),
        )
        middle = y + 3 + (ROW_HEIGHT - 10) / 2
        yield line(low, middle, high, middle, INK)
        yield from (line(end, middle - 4, end, middle + 4, INK) for end in (low, high))


def _reach(interval: Interval) -> float:
    """Return the end of its bar and whisker."""
    if not interval.known:
        return 0.0
    return interval.mean + (interval.half_width if isfinite(interval.half_width) else 0.0)

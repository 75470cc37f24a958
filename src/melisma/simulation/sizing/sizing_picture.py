"""A sizing as an SVG picture: what each candidate reached, and the goal as a line.

Both axes are logarithmic where their values differ by more than a factor of ten. Candidates that
hold are green, others red; runs that never reached the accuracy are drawn at the top.
"""

from collections.abc import Iterable
from math import isfinite, log10

from melisma.runs.svg import (
    ALIGN_RIGHT,
    BOLD,
    CENTER,
    GREEN,
    GREY,
    INK,
    MARGIN,
    PALE,
    RED,
    TITLE,
    WIDTH,
    Picture,
    Scale,
    document,
    line,
    rect,
    text,
)
from melisma.simulation.sizing.sizing import Candidate, Sizing

LEFT, RIGHT, TOP, HEIGHT, BOTTOM, DOT = 96, 32, 84, 280, 56, 7  # pixels
LABELS = {
    "deadline": "seconds of a cycle",
    "devices": "number of devices",
    "budget": "number of devices, the cheapest first",
    "model": "size of the model, as a factor",
}


class _Axis:
    """A linear or logarithmic axis over the given values."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.is_log = low > 0 and high > 10 * low
        if self.is_log:
            low, high = log10(low), log10(high)
        elif low == high:
            low, high = low - 0.5, high + 0.5
        margin = 0.05 * (high - low)
        self._scale = Scale(low - margin, high + margin, start, end)

    def __call__(self, value: float) -> float:
        return self._scale(log10(value) if self.is_log and value > 0 else value)

    def ticks(self) -> list[float]:
        """Return round values of the axis."""
        low, high = self._scale.low, self._scale.high
        if not self.is_log:
            return self._scale.ticks(6)
        powers = range(int(low) - 1, int(high) + 2)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in values if low <= log10(value) <= high]


def draw_sizing(sizing: Sizing) -> Picture:
    """Draw a sizing."""
    return Picture(document(_shapes(sizing), TOP + HEIGHT + BOTTOM))


def _shapes(sizing: Sizing) -> Iterable[str]:
    goal = sizing.goal.visits or sizing.goal.within_s
    heights = [c.reached for c in sizing.candidates if isfinite(c.reached)]
    x = _Axis([c.value for c in sizing.candidates], LEFT, WIDTH - RIGHT)
    y = _Axis([*heights, goal], TOP + HEIGHT, TOP)
    yield text(MARGIN, 32, answer_line(sizing), INK, TITLE)
    figure = "samples trained" if sizing.goal.visits else "seconds to the accuracy"
    yield text(MARGIN, 54, f"{figure}, by candidate; the line is the goal", GREY)
    for tick in x.ticks():
        yield line(x(tick), TOP, x(tick), TOP + HEIGHT, PALE)
        yield text(x(tick), TOP + HEIGHT + 18, f"{tick:g}", GREY, CENTER)
    for tick in y.ticks():
        yield line(LEFT, y(tick), WIDTH - RIGHT, y(tick), PALE)
        yield text(LEFT - 8, y(tick) + 4, f"{tick:,g}", GREY, ALIGN_RIGHT)
    yield line(LEFT, y(goal), WIDTH - RIGHT, y(goal), RED)
    label = LABELS[sizing.find]
    yield text((LEFT + WIDTH - RIGHT) / 2, TOP + HEIGHT + 40, label, GREY, CENTER)
    for candidate in sizing.candidates:
        yield from _dot(candidate, x, y, is_answer=candidate == sizing.chosen)


def _dot(candidate: Candidate, x: _Axis, y: _Axis, *, is_answer: bool) -> Iterable[str]:
    top = y(candidate.reached) if isfinite(candidate.reached) else TOP
    color = GREEN if candidate.holds else RED
    yield rect(x(candidate.value) - DOT / 2, top - DOT / 2, DOT, DOT, color)
    if is_answer:
        yield text(x(candidate.value), top - 10, f"{candidate.value:g}", INK, f"{CENTER} {BOLD}")


def answer_line(sizing: Sizing) -> str:
    """Return the answer as a sentence."""
    goal, chosen = sizing.goal.text, sizing.chosen
    if chosen is None:
        return f"{goal}: no candidate reaches it"
    if sizing.at_limit and sizing.find == "deadline":
        return f"{goal}: already the shortest tried, {chosen.value:g} s, reaches the goal"
    if sizing.at_limit:
        return f"{goal}: already the largest tried, {chosen.value:g} times, reaches the goal"
    if sizing.find == "deadline":
        return f"{goal}: deadline_s >= {chosen.value:g}"
    if sizing.find == "devices":
        return f"{goal}: {chosen.value:g} {sizing.unit}"
    if sizing.find == "budget":
        return f"{goal}: budget {chosen.cost:,.6g}, with the {chosen.value:g} cheapest devices"
    return f"{goal}: a model up to {chosen.value:g} times as large"

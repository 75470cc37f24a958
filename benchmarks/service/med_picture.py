"""The picture of the MED study: training time over learners, with 95 % intervals."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from benchmarks.service.med_study import LEARNERS, SCHEMES
from melisma.runs.svg import (
    ALIGN_RIGHT,
    BOLD,
    CENTER,
    GREY,
    INK,
    MARGIN,
    PALE,
    SERIES,
    WIDTH,
    Scale,
    document,
    line,
    rect,
    round_up,
    text,
)

PANELS: Final = {
    "learners": "training time, devices of examples/med",
    "thesis_learners": "training time, 2.4 times slower devices that halt late",
}
TOP, HEIGHT, LEFT, GAP = 66, 240, 60, 70
"""Pixels: above the panels, of a panel, and beside and between the panels."""
PANEL = (WIDTH - LEFT - GAP - MARGIN) / 2
SHIFT, CAP = 5, 3
"""Pixels between the points of two schemes, and half the width of the ends of an interval."""


def picture(parts: Mapping[str, Any]) -> str:
    """Return the picture; `parts` are the results of the study by part."""
    shown = [name for name in PANELS if name in parts]
    return document(_shapes({name: parts[name]["rows"] for name in shown}), TOP + HEIGHT + 54)


def _shapes(panels: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    highest = max(sum(_training(rows, count, scheme)) for rows, count, scheme in _points(panels))
    for number, (scheme, color) in enumerate(zip(SCHEMES, SERIES, strict=False)):
        yield rect(LEFT + number * 130, 14, 12, 12, color)
        yield text(LEFT + number * 130 + 18, 24, scheme, INK)
    for number, (name, rows) in enumerate(panels.items()):
        x = LEFT + number * (PANEL + GAP)
        up = Scale(0.0, round_up(highest), TOP + HEIGHT, TOP)
        yield text(x, TOP - 14, PANELS[name], INK, BOLD)
        yield from _axes(x, up)
        yield from _curves(rows, x, up)


def _points(panels: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Any, int, str]]:
    for rows in panels.values():
        for count in LEARNERS:
            for scheme in SCHEMES:
                yield rows, count, scheme


def _training(rows: Mapping[str, Any], count: int, scheme: str) -> tuple[float, float]:
    """Return the mean training time and the half width of its interval."""
    middle, half_width = rows[f"{count} learners, `{scheme}`"]["training s"]
    return middle, half_width


def _across(x: float) -> Scale:
    return Scale(LEARNERS[0] - 0.4, LEARNERS[-1] + 0.4, x, x + PANEL)


def _axes(x: float, up: Scale) -> Iterator[str]:
    for value in up.ticks(6):
        yield line(x, up(value), x + PANEL, up(value), PALE)
        yield text(x - 8, up(value) + 4, f"{value:g} s", GREY, ALIGN_RIGHT)
    for count in LEARNERS:
        yield text(_across(x)(count), TOP + HEIGHT + 18, str(count), GREY, CENTER)
    yield text(x + PANEL / 2, TOP + HEIGHT + 38, "learners", GREY, CENTER)


def _curves(rows: Mapping[str, Any], x: float, up: Scale) -> Iterator[str]:
    for number, (scheme, color) in enumerate(zip(SCHEMES, SERIES, strict=False)):
        shift = SHIFT * (number - (len(SCHEMES) - 1) / 2)
        points = []
        for count in LEARNERS:
            middle, half_width = _training(rows, count, scheme)
            at = _across(x)(count) + shift
            low, high = up(middle - half_width), up(middle + half_width)
            points.append((at, up(middle)))
            yield line(at, low, at, high, color)
            yield line(at - CAP, low, at + CAP, low, color)
            yield line(at - CAP, high, at + CAP, high, color)
            yield rect(at - 2.5, up(middle) - 2.5, 5, 5, color)
        for (from_x, from_y), (to_x, to_y) in pairwise(points):
            yield line(from_x, from_y, to_x, to_y, color)

"""The picture of goodput with kills: a group of bars for each mean time between them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.live.goodput import BETWEEN
from melisma.runs.svg import (
    ALIGN_RIGHT,
    CENTER,
    GREY,
    INK,
    PALE,
    SERIES,
    document,
    line,
    rect,
    text,
)

TITLES: Final = {
    "goodput": "live",
    "simulated_goodput": "simulated",
    "flower_goodput": "Flower",
}
LEFT, TOP, BAR, GAP, FULL = 60, 70, 30, 60, 200
"""Pixels: the margins, the width of a bar, the space between groups, and the height of 100 %."""
LABEL, LABELS = 250, 3
"""The pixels of a label of the key, and the labels in a row."""


def picture(parts: Mapping[str, Any]) -> str:
    """Return the picture; `parts` are the results of the benchmark by part."""
    series = {
        f"{row}, {title}": figures
        for part, title in TITLES.items()
        if part in parts
        for row, figures in parts[part]["rows"].items()
    }
    return document(_shapes(series), TOP + FULL + 50)


def _shapes(series: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    bottom, group = TOP + FULL, len(series) * BAR + GAP
    width = len(BETWEEN) * group
    for percent in range(0, 101, 25):
        y = bottom - FULL * percent / 100
        yield line(LEFT, y, LEFT + width, y, PALE)
        yield text(LEFT - 8, y + 4, f"{percent} %", GREY, ALIGN_RIGHT)
    for number, (name, mean) in enumerate(BETWEEN.items()):
        x = LEFT + GAP / 2 + number * group
        for column, (figures, color) in enumerate(zip(series.values(), SERIES, strict=False)):
            share = figures[f"{name} %"]
            top = bottom - FULL * share / 100
            yield rect(x + column * BAR, top, BAR - 4, bottom - top, color)
            yield text(x + column * BAR + BAR / 2 - 2, top - 4, f"{share:.0f}", INK, CENTER)
        cycles = "cycle" if mean == 1 else "cycles"
        label = f"a kill after {mean} {cycles} on average"
        yield text(x + (group - GAP) / 2, bottom + 20, label, INK, CENTER)
    for number, (name, color) in enumerate(zip(series, SERIES, strict=False)):
        x, y = LEFT + number % LABELS * LABEL, 14 + number // LABELS * 20
        yield rect(x, y, 12, 12, color)
        yield text(x + 18, y + 10, name, INK)

"""SVG by hand: the few shapes that pictures here are made of, and their colours."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from pathlib import Path
from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

from melisma.atomic import write_atomic
from melisma.errors import MelismaWarning

WIDTH, LETTER_WIDTH = 960, 6.4  # pixels, of a picture and of a letter in it
RED, INK, GREY, PALE, BAND = "#c92a2a", "#1f2933", "#6b7785", "#d5dae0", "#f5f7f9"


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A filled rectangle."""
    size = f'width="{max(width, 0):.2f}" height="{height:.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}"/>'


def line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    """From one point to another."""
    ends = f'x1="{x:.2f}" y1="{y:.2f}" x2="{to_x:.2f}" y2="{to_y:.2f}"'
    return f'<line {ends} stroke="{color}"/>'


def dashed_line(x: float, top: float, bottom: float) -> str:
    """Upright, for what is not to be passed."""
    ends = f'x1="{x:.2f}" y1="{top:.2f}" x2="{x:.2f}" y2="{bottom:.2f}"'
    return f'<line {ends} stroke="{RED}" stroke-width="1.3" stroke-dasharray="4 3"/>'


def text(x: float, y: float, said: str, color: str, style: str = "", title: str = "") -> str:
    """Words at a point, with more of them where the pointer rests."""
    whole = f"<title>{escape(title)}</title>" if title else ""
    start = f'<text x="{x:.1f}" y="{y:.1f}" fill={quoteattr(color)} {style}'.rstrip()
    return f"{start}>{whole}{escape(said)}</text>"


def replace_unprintable(said: str) -> str:
    """Without what XML cannot hold."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in said)


def truncate(said: str, most: int) -> str:
    """Cut to so many letters; wide ones count twice."""
    room = most
    for place, letter in enumerate(said):
        room -= 2 if east_asian_width(letter) in "WF" else 1
        if room < 0:
            return said[: max(place - 1, 0)].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    return said


def space_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels so that neighbours are at least `gap` apart and all are from `low` to `high`.

    Labels keep their order; where two begin at the same place, the first stays above. Without
    room for all of them they are closer than `gap`.
    """
    count = len(places)
    gap = min(gap, (high - low) / max(count - 1, 1))
    spaced = [0.0] * count
    least = low
    order = sorted(range(count), key=places.__getitem__)
    for rank, index in enumerate(order):
        ceiling = high - gap * (count - 1 - rank)
        spaced[index] = min(max(places[index], least), ceiling)
        least = spaced[index] + gap
    return spaced


@dataclass(frozen=True)
class Picture:
    """A picture that notebooks show and files keep."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path | str) -> Path:
        """Write it to a file, atomically, and return the path."""
        return write_atomic(path, self.svg)


def save_picture(draw: Callable[[], Picture], path: Path) -> Path | None:
    """Draw a picture and save it; return its path, or None if that failed.

    A failure, whatever its cause, becomes a `MelismaWarning`: no result of a run is lost because
    its picture could not be drawn.
    """
    try:
        return draw().save(path)
    except Exception as error:  # noqa: BLE001 - a picture is never worth a result
        said = f"cannot draw {path}: {type(error).__name__}: {error}; all other results are kept"
        warnings.warn(said, MelismaWarning, stacklevel=2)
        return None


@dataclass(frozen=True)
class Scale:
    """From quantities to places, from end to end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        # Halves, because the distance of two floats may be larger than any float.
        span = self.high / 2 - self.low / 2
        part = (value / 2 - self.low / 2) / span if span > 0 else 0.0
        return self.start + part * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Round values, about so many."""
        step = _round_step((self.high - self.low) / about)
        first = floor(self.low / step) + (self.low % step > 0)
        return [step * k for k in range(first, floor(self.high / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, not below."""
    power = 10.0 ** floor(log10(max(least, 1e-12)))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))


def round_up(value: float) -> float:
    """Return a round number that is at least `value`, which is positive, and close to it."""
    step = _round_step(value / 10)
    rounded = step * ceil(value / step - 1e-9)
    return rounded if isfinite(rounded) else value

"""The shapes, colours and text styles that all SVG pictures share."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from pathlib import Path
from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

from melisma.atomic import write_atomic
from melisma.errors import MelismaWarning, SettingError

WIDTH, MARGIN, LETTER_WIDTH = 960, 24, 6.4  # pixels, of a picture and of a letter in it
RED, INK, GREY, PALE, BAND = "#c92a2a", "#1f2933", "#6b7785", "#d5dae0", "#f5f7f9"
GREEN, BLUE, ORANGE = "#2a9d6f", "#4a90c2", "#f0a04b"
SERIES = (GREEN, BLUE, ORANGE, "#8f6fc9", "#c2578c", "#17858f", "#8d6e4f")  # of curves and bars
FONTS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
TITLE, BOLD = 'font-size="17" font-weight="600"', 'font-weight="600"'
ALIGN_RIGHT, CENTER = 'text-anchor="end"', 'text-anchor="middle"'


def document(shapes: Iterable[str], height: float, definitions: str = "") -> str:
    """Return a whole picture on a white background."""
    body = "\n".join([definitions, rect(0, 0, WIDTH, height, "#ffffff"), *shapes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" font-family="{FONTS}" font-size="12">\n'
        f"{body}\n</svg>\n"
    )


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a filled rectangle."""
    size = f'width="{max(width, 0):.2f}" height="{height:.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}"/>'


def line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    """Return a line from one point to another."""
    ends = f'x1="{x:.2f}" y1="{y:.2f}" x2="{to_x:.2f}" y2="{to_y:.2f}"'
    return f'<line {ends} stroke="{color}"/>'


def dashed_line(x: float, top: float, bottom: float) -> str:
    """Return a vertical dashed line, for a deadline."""
    ends = f'x1="{x:.2f}" y1="{top:.2f}" x2="{x:.2f}" y2="{bottom:.2f}"'
    return f'<line {ends} stroke="{RED}" stroke-width="1.3" stroke-dasharray="4 3"/>'


def text(x: float, y: float, content: str, color: str, style: str = "", title: str = "") -> str:
    """Return a text at a point; `title` is shown under the mouse pointer."""
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    start = f'<text x="{x:.1f}" y="{y:.1f}" fill={quoteattr(color)} {style}'.rstrip()
    return f"{start}>{tooltip}{escape(content)}</text>"


def replace_unprintable(name: str) -> str:
    """Replace characters that XML cannot hold."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def truncate(name: str, letters: int) -> str:
    """Cut a name to a number of letters; wide ones count twice."""
    room = letters
    for index, letter in enumerate(name):
        room -= 2 if east_asian_width(letter) in "WF" else 1
        if room < 0:
            return name[: max(index - 1, 0)].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    return name


def space_out(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels so that neighbours are at least `gap` apart and all are from `low` to `high`.

    Labels keep their order; where two begin at the same position, the first stays above. Without
    room for all of them they are closer than `gap`.
    """
    count = len(positions)
    gap = min(gap, (high - low) / max(count - 1, 1))
    spaced = [0.0] * count
    least = low
    order = sorted(range(count), key=positions.__getitem__)
    for rank, index in enumerate(order):
        ceiling = high - gap * (count - 1 - rank)
        spaced[index] = min(max(positions[index], least), ceiling)
        least = spaced[index] + gap
    return spaced


@dataclass(frozen=True)
class Picture:
    """An SVG picture; notebooks display it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path | str) -> Path:
        """Write it to a file whose name ends with .svg, atomically, and return the path."""
        if Path(path).suffix.lower() != ".svg":
            raise SettingError(f"picture is {path}; expected a name that ends with .svg")
        return write_atomic(path, self.svg)


def save_picture(draw: Callable[[], Picture], path: Path) -> Path | None:
    """Draw a picture and save it; return its path, or None if that failed.

    A failure, whatever its cause, becomes a `MelismaWarning`: no result of a run is lost because
    its picture could not be drawn.
    """
    try:
        return write_atomic(path, draw().svg, mode=0o600)
    except Exception as error:  # noqa: BLE001 - a picture is never worth a result
        problem = f"cannot draw {path}: {type(error).__name__}: {error}"
        warnings.warn(f"{problem}; all other results are kept", MelismaWarning, stacklevel=2)
        return None


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` linearly to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        # Halves, because the distance of two floats may be larger than any float.
        span = self.high / 2 - self.low / 2
        part = (value / 2 - self.low / 2) / span if span > 0 else 0.0
        return self.start + part * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Return round values in the range, about as many as asked for."""
        step = _round_step((self.high - self.low) / about)
        first = floor(self.low / step) + (self.low % step > 0)
        return [step * k for k in range(first, floor(self.high / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    """Return the least of 1, 2 or 5 times a power of ten that is not below `least`."""
    power = 10.0 ** floor(log10(max(least, 1e-12)))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))


def round_up(value: float) -> float:
    """Return a round number that is at least `value`, which is positive, and close to it."""
    step = _round_step(value / 10)
    rounded = step * ceil(value / step - 1e-9)
    return rounded if isfinite(rounded) else value

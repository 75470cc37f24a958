"""SVG by hand: the few shapes that pictures here are made of, and their colours."""

from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

RED, INK, GREY, PALE, BAND = "#c92a2a", "#1f2933", "#6b7785", "#d5dae0", "#f5f7f9"


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A filled rectangle."""
    size = f'width="{max(width, 0):.2f}" height="{height:.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}"/>'


def line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    """From one point to another."""
    ends = f'x1="{x:.2f}" y1="{y:.2f}" x2="{to_x:.2f}" y2="{to_y:.2f}"'
    return f'<line {ends} stroke="{color}"/>'


def dashes(x: float, top: float, bottom: float) -> str:
    """Upright, for what is not to be passed."""
    ends = f'x1="{x:.2f}" y1="{top:.2f}" x2="{x:.2f}" y2="{bottom:.2f}"'
    return f'<line {ends} stroke="{RED}" stroke-width="1.3" stroke-dasharray="4 3"/>'


def text(x: float, y: float, said: str, color: str, style: str = "", title: str = "") -> str:
    """Words at a point, with more of them where the pointer rests."""
    whole = f"<title>{escape(title)}</title>" if title else ""
    start = f'<text x="{x:.1f}" y="{y:.1f}" fill={quoteattr(color)} {style}'.rstrip()
    return f"{start}>{whole}{escape(said)}</text>"


def clean(said: str) -> str:
    """Without what XML cannot hold."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in said)


def short(said: str, most: int) -> str:
    """Cut to so many letters; wide ones count twice."""
    room = most
    for place, letter in enumerate(said):
        room -= 2 if east_asian_width(letter) in "WF" else 1
        if room < 0:
            return said[: max(place - 1, 0)].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    return said

"""A run of nodes as a picture: who computed and who waited, and how accuracy rose. SVG, by hand.

One lane a node: dark where it computed, pale where it waited for its neighbours; what is shorter
than a point is drawn together. Only the first `NODES` are drawn, and a note says so.
"""

from collections.abc import Iterable, Iterator
from math import isfinite

from melisma.runs.peer_report import NodeReport, PeerReport
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

NODES, NAME = 40, 18
LEFT, RIGHT, TOP, ROW, CURVES = 150, 120, 64, 22, 170
COMPUTED, END = "#2a9d6f", 'text-anchor="end"'
COLORS = ("#2a9d6f", "#4a90c2", "#f0a04b", "#b39ddb", "#c92a2a", "#6b7785")


def picture_of(report: PeerReport) -> Picture:
    """The picture of a run."""
    nodes = report.nodes[:NODES]
    lanes = TOP + ROW * len(nodes)
    curves = [(place, node) for place, node in enumerate(nodes) if len(node.scores) > 1]
    height = lanes + 44 + (CURVES + 30 if curves else 0)
    span_s = report.seconds if isfinite(report.seconds) and report.seconds > 0 else 1.0
    began_s = report.started_s if isfinite(report.started_s) else 0.0
    x = Scale(began_s, began_s + span_s, LEFT, WIDTH - RIGHT)
    shapes = [
        *_head(report, len(nodes)),
        *(shape for place, node in enumerate(nodes) for shape in _lane(node, place, x)),
        *_axis(x, lanes),
        *(_curves(curves, x, lanes + 44) if curves else ()),
    ]
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    whole = "".join(shapes)
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
        f'<rect width="100%" height="100%" fill="white"/>{whole}</svg>'
    )


def _head(report: PeerReport, drawn: int) -> Iterator[str]:
    what = f"{report.algorithm}, {report.topology}, {len(report.nodes)} nodes"
    yield text(16, 26, replace_unprintable(what), INK, 'font-size="16" font-weight="600"')
    said = f"{report.model} on {report.data}, {report.total('updates'):,.0f} updates, "
    said += f"{report.total('sent_bytes') / 1e6:,.1f} MB sent"
    said += f"; the first {drawn} are drawn" if drawn < len(report.nodes) else ""
    yield text(16, 46, replace_unprintable(said), GREY)
    yield rect(WIDTH - 250, 16, 12, 12, COMPUTED)
    yield text(WIDTH - 233, 26, "computes", GREY)
    yield rect(WIDTH - 160, 16, 12, 12, PALE)
    yield text(WIDTH - 143, 26, "waits", GREY)


def _lane(node: NodeReport, place: int, x: Scale) -> Iterator[str]:
    top = TOP + ROW * place
    color = INK if node.outcome == "done" else RED
    name = replace_unprintable(node.name)
    yield text(LEFT - 8, top + 14, truncate(name, NAME), color, END, title=name)
    spans = node.compute_spans_s
    if spans:
        first, last = x(spans[0][0]), x(spans[-1][1])
        yield rect(first, top + 3, last - first, ROW - 8, PALE)
    for start, end in _joined(spans, x):
        yield rect(start, top + 3, end - start, ROW - 8, COMPUTED)
    said = node.outcome if node.accuracy is None else f"{100 * node.accuracy:.2f} %"
    yield text(WIDTH - RIGHT + 10, top + 14, said, color, title=node.reason)
    if len(node.scores) > 1:
        yield rect(WIDTH - 40, top + 5, 10, 10, COLORS[place % len(COLORS)])


def _joined(spans: list[tuple[float, float]], x: Scale) -> Iterator[tuple[float, float]]:
    """Places from and to; gaps that nobody could see are closed."""
    start = end = None
    for from_s, to_s in spans:
        if end is not None and start is not None and x(from_s) - end < 0.4:
            end = x(to_s)
            continue
        if start is not None and end is not None:
            yield start, end
        start, end = x(from_s), x(to_s)
    if start is not None and end is not None:
        yield start, end


def _axis(x: Scale, top: float) -> Iterator[str]:
    yield line(x.start, top, x.end, top, GREY)
    # Seconds since the first node began.
    since = Scale(0.0, x.high - x.low, x.start, x.end)
    for tick in since.ticks(8):
        yield line(since(tick), top, since(tick), top + 4, GREY)
        yield text(since(tick), top + 17, f"{tick:g} s", GREY, 'text-anchor="middle"')


def _curves(nodes: list[tuple[int, NodeReport]], x: Scale, top: float) -> Iterable[str]:
    known = [
        each.accuracy for _, node in nodes for each in node.scores if each.accuracy is not None
    ]
    if not known:
        return
    bottom = top + CURVES
    y = Scale(min(known), max(*known, min(known) + 0.01), bottom, top + 8)
    yield rect(x.start, top, x.end - x.start, CURVES, BAND)
    for tick in y.ticks(4):
        yield line(x.start, y(tick), x.end, y(tick), PALE)
        yield text(LEFT - 8, y(tick) + 4, f"{100 * tick:.4g} %", GREY, END)
    for place, node in nodes:
        points = [
            (x(each.at_s), y(each.accuracy)) for each in node.scores if each.accuracy is not None
        ]
        color = COLORS[place % len(COLORS)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    yield text(x.start + LETTER_WIDTH, top + 16, "accuracy of each node", GREY)

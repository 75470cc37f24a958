"""A run without an orchestrator as an SVG picture: computing, waiting, and accuracy.

Each node has one lane: dark where it computed, pale where it waited for its neighbours; gaps
shorter than a point are closed. Only the first `MAX_LANES` nodes are drawn, and a note says so.
"""

from collections.abc import Iterable, Iterator
from math import isfinite

from melisma.runs.peer_report import NodeReport, PeerReport
from melisma.runs.svg import (
    ALIGN_RIGHT,
    BAND,
    CENTER,
    GREEN,
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

MAX_LANES, NAME_LETTERS = 40, 18
LEFT, RIGHT, TOP, LANE, CURVES = 150, 120, 64, 22, 170


def draw_peers(report: PeerReport) -> Picture:
    """Draw a run."""
    nodes = report.nodes[:MAX_LANES]
    lanes_end = TOP + LANE * len(nodes)
    curves = [(index, node) for index, node in enumerate(nodes) if len(node.scores) > 1]
    height = lanes_end + 44 + (CURVES + 30 if curves else 0)
    span_s = report.seconds if isfinite(report.seconds) and report.seconds > 0 else 1.0
    start_s = report.started_s if isfinite(report.started_s) else 0.0
    x = Scale(start_s, start_s + span_s, LEFT, WIDTH - RIGHT)
    shapes = [
        *_head(report, len(nodes)),
        *(shape for index, node in enumerate(nodes) for shape in _lane(node, index, x)),
        *_axis(x, lanes_end),
        *(_curves(curves, x, lanes_end + 44) if curves else ()),
    ]
    return Picture(document(shapes, height))


def _head(report: PeerReport, drawn: int) -> Iterator[str]:
    title = f"{report.algorithm}, {report.topology}, {len(report.nodes)} nodes"
    yield text(MARGIN, 26, replace_unprintable(title), INK, TITLE)
    summary = f"{report.model} on {report.data}, {report.total('updates'):,.0f} updates, "
    summary += f"{report.total('sent_bytes') / 1e6:,.1f} MB sent"
    summary += f"; the first {drawn} are drawn" if drawn < len(report.nodes) else ""
    yield text(MARGIN, 46, replace_unprintable(summary), GREY)
    yield rect(WIDTH - 250, 16, 12, 12, GREEN)
    yield text(WIDTH - 233, 26, "computes", GREY)
    yield rect(WIDTH - 160, 16, 12, 12, PALE)
    yield text(WIDTH - 143, 26, "waits", GREY)


def _lane(node: NodeReport, index: int, x: Scale) -> Iterator[str]:
    top = TOP + LANE * index
    color = INK if node.outcome == "finished" else RED
    name = replace_unprintable(node.name)
    yield text(LEFT - 8, top + 14, truncate(name, NAME_LETTERS), color, ALIGN_RIGHT, title=name)
    spans = node.compute_spans_s
    if spans:
        first, last = x(spans[0][0]), x(spans[-1][1])
        yield rect(first, top + 3, last - first, LANE - 8, PALE)
    for start, end in _close_gaps(spans, x):
        yield rect(start, top + 3, end - start, LANE - 8, GREEN)
    result = node.outcome if node.accuracy is None else f"{100 * node.accuracy:.2f} %"
    yield text(WIDTH - RIGHT + 10, top + 14, result, color, title=node.reason)
    if len(node.scores) > 1:
        yield rect(WIDTH - 40, top + 5, 10, 10, SERIES[index % len(SERIES)])


def _close_gaps(spans: list[tuple[float, float]], x: Scale) -> Iterator[tuple[float, float]]:
    """Yield spans on the x axis; gaps that are too small to be seen are closed."""
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
    # Seconds since the first node started.
    since = Scale(0.0, x.high - x.low, x.start, x.end)
    for tick in since.ticks(8):
        yield line(since(tick), top, since(tick), top + 4, GREY)
        yield text(since(tick), top + 17, f"{tick:g} s", GREY, CENTER)


def _curves(nodes: list[tuple[int, NodeReport]], x: Scale, top: float) -> Iterable[str]:
    known = [
        point.accuracy for _, node in nodes for point in node.scores if point.accuracy is not None
    ]
    if not known:
        return
    bottom = top + CURVES
    y = Scale(min(known), max(*known, min(known) + 0.01), bottom, top + 8)
    yield rect(x.start, top, x.end - x.start, CURVES, BAND)
    for tick in y.ticks(4):
        yield line(x.start, y(tick), x.end, y(tick), PALE)
        yield text(LEFT - 8, y(tick) + 4, f"{100 * tick:.4g} %", GREY, ALIGN_RIGHT)
    for index, node in nodes:
        points = [
            (x(point.at_s), y(point.accuracy))
            for point in node.scores
            if point.accuracy is not None
        ]
        color = SERIES[index % len(SERIES)]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    yield text(x.start + LETTER_WIDTH, top + 16, "accuracy of each node", GREY)

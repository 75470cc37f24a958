"""Lines on the progress of nodes, and the table of a finished run of `melisma peers`."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.table_view import FigureTable
from melisma.runs.peer_report import NodeReport, PeerReport

MAX_NODES, MAX_NOTICES = 20, 10
TITLES = (
    "node",
    "accuracy",
    "loss",
    "steps",
    "samples",
    "updates",
    "messages",
    "MB sent",
    "waited s",
    "",
)


def progress_line(progress: Mapping[str, Mapping[str, float]]) -> str:
    """Return the progress of all nodes in one line."""
    parts = [
        f"{name} {node['steps'] / node['iterations']:.0%}{' waiting' if node['waiting'] else ''}"
        for name, node in sorted(progress.items())[:MAX_NODES]
    ]
    more = len(progress) - len(parts)
    return "  ".join(parts) + (f"  and {more} more" if more > 0 else "")


def peers_view(report: PeerReport) -> RenderableType:
    """Return the table of a finished run."""
    first = report.nodes[:MAX_NODES]
    more = len(report.nodes) - len(first)
    lines = [f"and {more} more nodes"] if more else []
    lines += _lag_lines(report)
    lines += [line for node in report.nodes for line in _notice_lines(node)][:MAX_NOTICES]
    if len(report.parts) > 1:
        parts = "; ".join(", ".join(part) for part in report.parts)
        lines.append(f"the topology split into {len(report.parts)} parts: {parts}")
    if report.folder is not None:
        lines.append(f"results in {report.folder}")
    return Group(
        Text(_heading(report), style="bold"),
        FigureTable(TITLES, [_row(node) for node in first]),
        *map(Text, lines),
    )


def _heading(report: PeerReport) -> str:
    finished = sum(node.outcome == "finished" for node in report.nodes)
    heading = f"{finished} of {len(report.nodes)} nodes finished"
    if len(report.nodes) == 1:
        (node,) = report.nodes
        heading = f"{node.name}, {report.topology}: {node.outcome}"
    if finished and report.accuracy == report.accuracy:
        heading += f", mean accuracy {report.accuracy:.2%}"
    sent_mb, updates = report.total("sent_bytes") / 1e6, report.total("updates")
    time = "simulated seconds" if report.simulated else "s"
    return f"{heading}: {report.seconds:.1f} {time}, {updates:,.0f} updates, {sent_mb:,.1f} MB"


def _row(node: NodeReport) -> tuple[str, ...]:
    return (
        node.name,
        "-" if node.accuracy is None else f"{node.accuracy:.2%}",
        "-" if node.loss is None else f"{node.loss:.4f}",
        f"{node.steps:,}",
        f"{node.samples:,}",
        f"{node.updates:,}",
        f"{node.messages:,}",
        f"{node.sent_bytes / 1e6:.2f}",
        f"{node.waiting_s:.2f}",
        "" if node.outcome == "finished" else node.outcome,
    )


def _lag_lines(report: PeerReport) -> list[str]:
    chosen = [lag for node in report.nodes for lag in node.chosen_lags]
    if not chosen:
        return []
    allowed = [lag for node in report.nodes for lag in node.allowed_lags]
    mean = sum(chosen) / len(chosen)
    limits = f"the analysis allows {min(allowed)} to {max(allowed)}"
    return [f"lag chosen: {min(chosen)} to {max(chosen)}, average {mean:.1f}; {limits}"]


def _notice_lines(node: NodeReport) -> list[str]:
    reason = [f"{node.name}: {node.reason.removeprefix(f'{node.name}: ')}"] if node.reason else []
    return [*reason, *(f"{node.name} at {line}" for line in node.notices)]

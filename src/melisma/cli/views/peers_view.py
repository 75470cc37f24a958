"""What the terminal shows of nodes: how far each is, and at the end what became of them."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from melisma.cli.views.plan_table import Rows
from melisma.runs.peer_report import NodeReport, PeerReport

SHOWN, TOLD = 20, 10
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
    """All nodes in one line."""
    parts = [
        f"{name} {each['steps'] / each['iterations']:.0%}{' waits' if each['waiting'] else ''}"
        for name, each in sorted(progress.items())[:SHOWN]
    ]
    more = len(progress) - len(parts)
    return "  ".join(parts) + (f"  and {more} more" if more > 0 else "")


def screen(report: PeerReport) -> RenderableType:
    """A run that is over."""
    first = report.nodes[:SHOWN]
    more = len(report.nodes) - len(first)
    lines = [f"and {more} more nodes"] if more else []
    lines += _lags(report)
    lines += [line for node in report.nodes for line in _told(node)][:TOLD]
    if len(report.parts) > 1:
        parts = "; ".join(", ".join(part) for part in report.parts)
        lines.append(f"the topology fell into {len(report.parts)} parts: {parts}")
    if report.folder is not None:
        lines.append(f"what is kept is in {report.folder}")
    return Group(
        Text(_verdict(report), style="bold"),
        Rows(TITLES, [_row(node) for node in first]),
        *map(Text, lines),
    )


def _verdict(report: PeerReport) -> str:
    ended = sum(node.outcome == "done" for node in report.nodes)
    said = f"{ended} of {len(report.nodes)} nodes trained to the end"
    if len(report.nodes) == 1:
        (node,) = report.nodes
        said = f"{node.name}, {report.topology}: {node.outcome}"
    if ended and report.accuracy == report.accuracy:
        said += f", mean accuracy {report.accuracy:.2%}"
    sent_mb, updates = report.total("sent_bytes") / 1e6, report.total("updates")
    time = "simulated seconds" if report.simulated else "s"
    return f"{said}: {report.seconds:.1f} {time}, {updates:,.0f} updates, {sent_mb:,.1f} MB"


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
        "" if node.outcome == "done" else node.outcome,
    )


def _lags(report: PeerReport) -> list[str]:
    chosen = [lag for node in report.nodes for lag in node.chosen_lags]
    if not chosen:
        return []
    allowed = [lag for node in report.nodes for lag in node.allowed_lags]
    mean = sum(chosen) / len(chosen)
    most = f"theory allows {min(allowed)} to {max(allowed)}"
    return [f"lag chosen: {min(chosen)} to {max(chosen)}, {mean:.1f} on average; {most}"]


def _told(node: NodeReport) -> list[str]:
    why = [f"{node.name}: {node.reason.removeprefix(f'{node.name}: ')}"] if node.reason else []
    return [*why, *(f"{node.name} at {line}" for line in node.notices)]

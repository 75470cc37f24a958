"""Turns the figures of the last runs into the tables and the picture of the docs.

`python -m benchmarks.harness.page` reads benchmarks/results and writes the figures folders of docs.
"""

import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.allocation import feel, med, staleness
from benchmarks.axon import http_stack, rpc
from benchmarks.harness import machine, table, targets
from benchmarks.harness.parts import Benchmark
from benchmarks.live import deadline, live
from benchmarks.peer import decentralised
from benchmarks.simulation import simulation

RESULTS = Path(__file__).parents[1] / "results"
DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "axon" / "figures"
PANELS = [
    ("median µs", "small call, median µs (less is better)"),
    ("64 callers/s", "64 callers, calls/s (more is better)"),
    ("10 MB", "echo of 10 MB, MB/s (more is better)"),
    ("100 MB", "echo of 100 MB, MB/s (more is better)"),
]
SHOWN = [
    "melisma.axon, inline",
    "melisma.axon, threads",
    "gRPC sync",
    "gRPC aio",
    "aiohttp alone",
    "Ray actor",
    "axon-ECRG 0.2.4, Flask 2.2",
]
PANEL_PX, LABEL_PX, BAR_PX, ROW_PX = 440, 170, 190, 19


def main() -> None:
    """Write all that the docs show of the benchmarks."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    calls = json.loads((RESULTS / "rpc.json").read_text())
    stacks = json.loads((RESULTS / "http_stack.json").read_text())
    _write("rpc.md", calls["machine"], [table.render(rpc.COLUMNS, calls["peers"])])
    _write("targets.md", calls["machine"], [_targets(calls["targets"])])
    servers = table.render(http_stack.SERVER_COLUMNS, stacks["servers"])
    clients = table.render(http_stack.CLIENT_COLUMNS, stacks["clients"])
    _write("http_stack.md", stacks["machine"], [servers, clients])
    (FIGURES / "rpc.svg").write_text(_picture(calls["peers"]))
    _write_allocation()
    _write_live()
    _write_parts(simulation.BENCHMARK, "simulation")
    _write_parts(decentralised.BENCHMARK, "peer")


def _write_allocation() -> None:
    folder = DOCS / "allocation" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    every = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ALLOCATION}
    for name, tables in ALLOCATION.items():
        _write(f"{name}.md", every[name]["machine"], tables(every[name]), folder)
    (folder / "wanted.md").write_text(targets.table(every) + "\n")


def _write_live() -> None:
    folder = DOCS / "live" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads((RESULTS / "live.json").read_text())
    rows = ["| target | measured | wanted | |", "|---|--:|--:|---|"]
    for name, measured in found["parts"].items():
        part = live.PARTS[name]
        rows += [target.row(measured) for target in part.wanted]
        said = [table.render(part.columns, measured["rows"])]
        said += [
            f"Flower's / ours, {what}: {ratio(measured):.2g}."
            for what, ratio in part.ratios.items()
        ]
        said.append(f"Others used {measured['others_share']} of a core meanwhile.")
        _write(f"{name}.md", found["machine"], said, folder)
    (folder / "wanted.md").write_text("\n".join(rows) + "\n")
    if "deadline" in found["parts"]:
        learners = found["parts"]["deadline"]["learners"]
        shown = table.render(deadline.LEARNER_COLUMNS, learners)
        (folder / "learners.md").write_text(shown + "\n")


def _write_parts(benchmark: Benchmark, part: str) -> None:
    folder = DOCS / part / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads((RESULTS / f"{benchmark.name}.json").read_text())
    for name, measured in found["parts"].items():
        _write(f"{name}.md", found["machine"], benchmark.told(name, measured), folder)


def _staleness(found: dict[str, Any]) -> list[str]:
    parts = []
    for kind, rows in found["kinds"].items():
        parts += [f"{kind.capitalize()}:", table.render(staleness.COLUMNS, rows)]
    return [*parts, f"Peak memory of the whole process: {found['process_peak_mb']} MB."]


def _feel(found: dict[str, Any]) -> list[str]:
    return [table.render(feel.COLUMNS, found["sizes"])]


def _med(found: dict[str, Any]) -> list[str]:
    parts = [table.render(med.COLUMNS, found["melisma"])]
    for size, rows in found["peers"].items():
        count = rows["melisma"]["problems"]
        parts += [f"{size}, mean budget, {count:g} problems:", table.render(med.COLUMNS, rows)]
    return [*parts, f"Solvers: {', '.join(found['pinned'])}."]


ALLOCATION: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "staleness": _staleness,
    "feel": _feel,
    "med": _med,
}


def _write(name: str, described: dict[str, Any], tables: list[str], folder: Path = FIGURES) -> None:
    text = "\n\n".join([machine.summary(described) + ".", *tables])
    (folder / name).write_text(text + "\n")


def _targets(compared: list[dict[str, Any]]) -> str:
    rows = ["| target | ours | ratio or figure | wanted | |", "|---|---|--:|---|---|"]
    for each in compared:
        ratio = "-" if each["ratio"] is None else f"{each['ratio']:.2f}"
        reached = rpc.REACHED[each["reached"]]
        rows.append(
            f"| {each['target']} | {each['ours']} | {ratio} | {each['bound']} | {reached} |"
        )
    return "\n".join(rows)


def _picture(peers: Mapping[str, Mapping[str, float]]) -> str:
    height = 20 + 2 * (len(SHOWN) * ROW_PX + 50) - 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * PANEL_PX} {height}">',
        "<style>text { font: 11px sans-serif } .title { font-weight: bold }</style>",
        f'<rect width="{2 * PANEL_PX}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (column, title) in enumerate(PANELS):
        x, y = 10 + number % 2 * PANEL_PX, 20 + number // 2 * (len(SHOWN) * ROW_PX + 50)
        parts.append(f'<text x="{x}" y="{y}" class="title">{escape(title)}</text>')
        parts += _bars({name: peers[name].get(column) for name in SHOWN if name in peers}, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _bars(figures: Mapping[str, float | None], x: int, y: int) -> list[str]:
    longest = max(figure for figure in figures.values() if figure is not None)
    parts = []
    for row, (name, figure) in enumerate(figures.items()):
        top = y + 10 + row * ROW_PX
        middle, colour = top + 11, "#2f6f4f" if name.startswith("melisma") else "#b8bec4"
        width = BAR_PX * (figure or 0) / longest
        text = "fails" if figure is None else f"{figure:,.0f}"
        box = f'x="{x + LABEL_PX + 6}" y="{top}" width="{width:.1f}" height="14"'
        parts += [
            f'<text x="{x + LABEL_PX}" y="{middle}" text-anchor="end">{escape(name)}</text>',
            f'<rect {box} fill="{colour}"/>',
            f'<text x="{x + LABEL_PX + 12 + width:.1f}" y="{middle}">{text}</text>',
        ]
    return parts


if __name__ == "__main__":
    main()

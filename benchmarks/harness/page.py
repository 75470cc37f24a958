"""Write the tables and the picture of the docs from the results of the last runs.

`python -m benchmarks.harness.page` reads benchmarks/results and writes docs/*/figures.
"""

import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.allocation import feel, med, med_gaps, staleness
from benchmarks.axon import http_stack, rpc
from benchmarks.harness import machine, table, targets
from benchmarks.harness.parts import Benchmark
from benchmarks.learning import greedy, non_iid, repeatability
from benchmarks.live import deadline, durability, goodput_picture, guard, live
from benchmarks.peer import decentralised
from benchmarks.service import med_picture, service
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
PICTURE_ROWS = [
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
    """Write all tables and the picture."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    calls = json.loads((RESULTS / "rpc.json").read_text())
    stacks = json.loads((RESULTS / "http_stack.json").read_text())
    _write("rpc.md", calls["machine"], [table.render(rpc.COLUMNS, calls["competitors"])])
    _write("targets.md", calls["machine"], [_targets(calls["targets"])])
    servers = table.render(http_stack.SERVER_COLUMNS, stacks["servers"])
    clients = table.render(http_stack.CLIENT_COLUMNS, stacks["clients"])
    _write("http_stack.md", stacks["machine"], [servers, clients])
    (FIGURES / "rpc.svg").write_text(_picture(calls["competitors"]))
    _write_allocation()
    _write_live()
    _write_parts(simulation.BENCHMARK, "simulation")
    _write_parts(guard.BENCHMARK, "cycle")
    _write_durability()
    _write_parts(non_iid.BENCHMARK, "learning")
    _write_parts(greedy.BENCHMARK, "learning")
    _write_parts(repeatability.BENCHMARK, "learning")
    _write_parts(decentralised.BENCHMARK, "peer")
    _write_parts(med_gaps.BENCHMARK, "allocation")
    _write_service()


def _write_allocation() -> None:
    folder = DOCS / "allocation" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ALLOCATION}
    for name, tables in ALLOCATION.items():
        _write(f"{name}.md", results[name]["machine"], tables(results[name]), folder)
    (folder / "targets.md").write_text(targets.table(results) + "\n")


def _write_live() -> None:
    folder = DOCS / "live" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    results = json.loads((RESULTS / "live.json").read_text())
    rows = ["| figure | measured | target | |", "|---|--:|--:|---|"]
    for name, measured in results["parts"].items():
        part = live.PARTS[name]
        rows += [target.row(measured) for target in part.targets]
        _write(f"{name}.md", measured["machine"], part.sections(measured), folder)
    (folder / "targets.md").write_text("\n".join(rows) + "\n")
    if "deadline" in results["parts"]:
        learners = results["parts"]["deadline"]["learners"]
        learner_table = table.render(deadline.LEARNER_COLUMNS, learners)
        (folder / "learners.md").write_text(learner_table + "\n")


def _write_durability() -> None:
    if not (RESULTS / "durability.json").exists():
        return
    _write_parts(durability.BENCHMARK, "live")
    parts = json.loads((RESULTS / "durability.json").read_text())["parts"]
    (DOCS / "live" / "figures" / "goodput.svg").write_text(goodput_picture.picture(parts))


def _write_service() -> None:
    _write_parts(service.BENCHMARK, "service")
    parts = json.loads((RESULTS / "service.json").read_text())["parts"]
    folder = DOCS / "service" / "figures"
    for name, measured in parts.items():
        if measured.get("relations"):
            compared = service.relations_table(measured)
            (folder / f"{name}_compared.md").write_text(compared + "\n")
    (folder / "training.svg").write_text(med_picture.picture(parts))


def _write_parts(benchmark: Benchmark, part: str) -> None:
    folder = DOCS / part / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    results = json.loads((RESULTS / f"{benchmark.name}.json").read_text())
    for name, measured in results["parts"].items():
        _write(f"{name}.md", measured["machine"], benchmark.sections(name, measured), folder)


def _staleness(results: dict[str, Any]) -> list[str]:
    parts = []
    for kind, rows in results["kinds"].items():
        parts += [f"{kind.capitalize()}:", table.render(staleness.COLUMNS, rows)]
    return [*parts, f"Peak memory of the whole process: {results['process_peak_mb']} MB."]


def _feel(results: dict[str, Any]) -> list[str]:
    return [table.render(feel.COLUMNS, results["sizes"])]


def _med(results: dict[str, Any]) -> list[str]:
    parts = [table.render(med.COLUMNS, results["melisma"])]
    for size, rows in results["competitors"].items():
        count = rows["melisma"]["problems"]
        parts += [f"{size}, mean budget, {count:g} problems:", table.render(med.COLUMNS, rows)]
    return [*parts, f"Solvers: {', '.join(results['pinned'])}."]


ALLOCATION: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "staleness": _staleness,
    "feel": _feel,
    "med": _med,
}


def _write(name: str, described: dict[str, Any], tables: list[str], folder: Path = FIGURES) -> None:
    text = "\n\n".join([machine.summary(described) + ".", *tables])
    (folder / name).write_text(text + "\n")


def _targets(compared: list[dict[str, Any]]) -> str:
    rows = ["| figure | system | measured | target | |", "|---|---|--:|---|---|"]
    for target in compared:
        ratio = "-" if target["ratio"] is None else f"{target['ratio']:.2f}"
        reached = rpc.REACHED[target["reached"]]
        rows.append(
            f"| {target['title']} | {target['system']} | {ratio} | {target['bound']} | {reached} |"
        )
    return "\n".join(rows)


def _picture(figures: Mapping[str, Mapping[str, float]]) -> str:
    height = 20 + 2 * (len(PICTURE_ROWS) * ROW_PX + 50) - 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * PANEL_PX} {height}">',
        "<style>text { font: 11px sans-serif } .title { font-weight: bold }</style>",
        f'<rect width="{2 * PANEL_PX}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (column, title) in enumerate(PANELS):
        x, y = 10 + number % 2 * PANEL_PX, 20 + number // 2 * (len(PICTURE_ROWS) * ROW_PX + 50)
        parts.append(f'<text x="{x}" y="{y}" class="title">{escape(title)}</text>')
        parts += _bars(
            {name: figures[name].get(column) for name in PICTURE_ROWS if name in figures}, x, y
        )
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

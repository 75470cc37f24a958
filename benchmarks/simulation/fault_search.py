"""Ten thousand schedules of faults, over schemes, both modes and fleets of several sizes.

Each schedule is drawn by its seed; after each step of each run all that must hold is checked. What
breaks is printed as the command that does it again, and is in the table of the docs.
"""

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.fault_search import replay_command, search_faults
from melisma.simulation.scenario import Scenario, with_random_faults
from melisma.simulation.simulation import SimulationOptions, prepare

FOLDER = Path("examples/faults")
PAGE = Path("docs/simulation/figures/faults.md")
MODES = ("parallelized", "federated")
SCHEMES = ("equal", "proportional", "synchronous", "staleness", "dab")
LEARNERS = (2, 3, 5, 8)
ALL = 10_000


class Cell(NamedTuple):
    """Schedules of one mode, scheme and size of the fleet."""

    mode: str
    scheme: str
    learners: int
    seeds: range


class Found(NamedTuple):
    """What became of a cell: failures as commands, and how work and runs ended."""

    mode: str
    scheme: str
    schedules: int
    broken: tuple[str, ...]
    ends: Counter[str]


def search(cell: Cell) -> Found:
    """All schedules of a cell."""
    files = FOLDER / f"{cell.mode}.toml", FOLDER / "fleet.toml"
    options = SimulationOptions(scheme=cell.scheme, learners=cell.learners)
    found = search_faults(
        lambda seed: prepare(*files, replace(options, seed=seed)).scenario, cell.seeds
    )
    broken = tuple(
        f"{each.violation}: {replay_command(files, options, each)}" for each in found if each
    )
    ends: Counter[str] = Counter()
    for seed in cell.seeds[:: max(1, len(cell.seeds) // 20)]:
        ends += _ends(prepare(*files, replace(options, seed=seed)).scenario, seed)
    return Found(cell.mode, cell.scheme, len(cell.seeds), broken, ends)


def _ends(scene: Scenario, seed: int) -> Counter[str]:
    """How the work of a run ended: that faults do something at all."""
    steps: list[Step] = []
    Driver(with_random_faults(scene, seed), TimingOnly(), steps.append).run()
    report = Report.of(steps)
    return Counter(each.status for cycle in report.cycles for each in cycle.assignments)


def page(found: list[Found], seconds: float) -> str:
    """A row for each mode and scheme."""
    lines = [
        "| mode | scheme | schedules | broke something | in | late | left | dropped | refused |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for mode, scheme in product(MODES, SCHEMES):
        some = [each for each in found if (each.mode, each.scheme) == (mode, scheme)]
        ends = sum((each.ends for each in some), Counter[str]())
        parts = [
            ends[end] / max(ends.total(), 1) for end in ("in", "late", "left", "dropped", "refused")
        ]
        shown = " | ".join(f"{part:.1%}" for part in parts)
        schedules, broken = (
            sum(each.schedules for each in some),
            sum(len(each.broken) for each in some),
        )
        lines.append(f"| {mode} | {scheme} | {schedules:,} | {broken} | {shown} |")
    total, broken = sum(each.schedules for each in found), sum(len(each.broken) for each in found)
    took = f"{seconds / 60:.0f} min"
    said = f"{total:,} schedules of up to 12 faults in {took}; {broken} broke what must hold."
    note = "How work ended is from every twelfth schedule or so."
    return "\n".join([f"{said} {note}", "", *lines, ""])


def main(schedules: int = ALL) -> int:
    """Try them, show what broke, and write the table if it was all of them."""
    cells = list(product(MODES, SCHEMES, LEARNERS))
    each = -(-schedules // len(cells))
    began, found = time.monotonic(), list[Found]()
    with ProcessPoolExecutor(2) as pool:
        work = [Cell(*cell, range(n * each, (n + 1) * each)) for n, cell in enumerate(cells)]
        for result in pool.map(search, work):
            found.append(result)
            sys.stdout.write("".join(f"{one}\n" for one in result.broken))
    text = page(found, time.monotonic() - began)
    if schedules == ALL:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if any(result.broken for result in found) else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

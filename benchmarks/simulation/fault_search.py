"""Run ten thousand random fault schedules over schemes, both modes, several fleets and rules.

Half of the schedules follow the default rules within a cycle, the others the rules of the papers or
a mixture; some have few shards, some many, and some devices are noisy. The files of all variants
are written to `build/fault-search`. Each schedule is drawn from its seed, and the invariants are
checked after each step of each run. A violation is printed as the command that runs it again, and
counted in the table of the docs.
"""

import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from melisma.atomic import write_atomic
from melisma.fleet.task import PAPER_RULES
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.fault_search import replay_command, search_faults
from melisma.simulation.scenario import Scenario, with_random_faults
from melisma.simulation.simulation import SimulationOptions, prepare

FOLDER = Path("examples/faults")
VARIANTS = Path("build/fault-search")
PAGE = Path("docs/simulation/figures/faults.md")
MODES = ("parallelized", "federated")
SCHEMES = ("equal", "proportional", "synchronous", "staleness", "dab")
LEARNERS = (2, 3, 5, 8)
# Variants take turns: the default rules in every second one, once with a total time.
RULES: tuple[dict[str, object], ...] = (
    {},
    PAPER_RULES | {"extension": True},
    {},
    PAPER_RULES | {"late": "carry", "quorum": 0.6},
    {"total_s": 45.0},
    PAPER_RULES | {"extension": True, "overlap": True, "quorum": 0.8},
    {},
    PAPER_RULES,
    {},
    {"max_shards": 30, "overlap": False},
)
SAMPLES = (6000, 1500, 20000)  # enough for a cycle, too few, and more than are wanted
NOISES = ("", "", "noise = { compute = 0.3, bandwidth = 0.3, cold_start_s = 0.5 }\n")
SCHEDULES = 10_000
STATUSES = ("counted", "carried", "late", "left", "dropped", "refused")
VARIANT_COUNT = 10
STATUS_EVERY = 12


class Cell(NamedTuple):
    """Schedules of one mode, scheme, fleet size and variant of the files."""

    mode: str
    scheme: str
    learners: int
    variant: int
    seeds: range


class CellResult(NamedTuple):
    """The violations of a cell as commands, and the status of its assignments."""

    mode: str
    scheme: str
    schedules: int
    violations: tuple[str, ...]
    statuses: Counter[str]


def write_variant(mode: str, number: int) -> tuple[Path, Path]:
    """Write the task and the fleet of a variant; return their files."""
    rules, samples = RULES[number % len(RULES)], SAMPLES[number % len(SAMPLES)]
    task = (FOLDER / f"{mode}.toml").read_text(encoding="utf-8")
    task = task.replace("samples = 6000", f"samples = {samples}")
    task += "".join(f"{key} = {json.dumps(value)}\n" for key, value in rules.items())
    noise = NOISES[number // len(SAMPLES) % len(NOISES)]
    fleet = (FOLDER / "fleet.toml").read_text(encoding="utf-8")
    fleet = fleet.replace("[[fleet.group]]\n", f"[[fleet.group]]\n{noise}")
    VARIANTS.mkdir(parents=True, exist_ok=True)
    files = VARIANTS / f"{mode}-{number}.toml", VARIANTS / f"fleet-{number}.toml"
    for file, text in zip(files, (task, fleet), strict=True):
        write_atomic(file, text.encode())
    return files


def search(cell: Cell) -> CellResult:
    """Run all schedules of a cell."""
    files = write_variant(cell.mode, cell.variant)
    options = SimulationOptions(scheme=cell.scheme, learners=cell.learners)
    failures = search_faults(
        lambda seed: prepare(*files, replace(options, seed=seed)).scenario, cell.seeds
    )
    violations = tuple(
        f"{each.violation}: {replay_command(files, options, each)}" for each in failures if each
    )
    statuses: Counter[str] = Counter()
    for seed in cell.seeds[::STATUS_EVERY]:
        statuses += _count_statuses(prepare(*files, replace(options, seed=seed)).scenario, seed)
    return CellResult(cell.mode, cell.scheme, len(cell.seeds), violations, statuses)


def _count_statuses(scenario: Scenario, seed: int) -> Counter[str]:
    """Count the status of assignments, which shows that faults have an effect."""
    steps: list[Step] = []
    Driver(with_random_faults(scenario, seed), TimingOnly(), steps.append).run()
    report = Report.from_trace(steps)
    return Counter(each.status for cycle in report.cycles for each in cycle.assignments)


def page(results: list[CellResult], seconds: float) -> str:
    """Return the table, with a row for each mode and scheme."""
    lines = [
        f"| mode | scheme | schedules | violations | {' | '.join(STATUSES)} |",
        f"|---|---|--:|--:|{'--:|' * len(STATUSES)}",
    ]
    for mode, scheme in product(MODES, SCHEMES):
        rows = [each for each in results if (each.mode, each.scheme) == (mode, scheme)]
        statuses = sum((each.statuses for each in rows), Counter[str]())
        parts = [statuses[status] / max(statuses.total(), 1) for status in STATUSES]
        shown = " | ".join(f"{part:.1%}" for part in parts)
        schedules, violations = (
            sum(each.schedules for each in rows),
            sum(len(each.violations) for each in rows),
        )
        lines.append(f"| {mode} | {scheme} | {schedules:,} | {violations} | {shown} |")
    total, violations = (
        sum(each.schedules for each in results),
        sum(len(each.violations) for each in results),
    )
    took = f"{seconds / 60:.0f} min"
    summary = f"{total:,} schedules of up to 12 faults in {took}; {violations} violations."
    note = "The status of assignments is from every twelfth schedule."
    return "\n".join([f"{summary} {note}", "", *lines, ""])


def main(schedules: int = SCHEDULES) -> int:
    """Run the schedules, print violations, and write the table if all schedules ran."""
    cells = list(product(MODES, SCHEMES, LEARNERS, range(VARIANT_COUNT)))
    each = -(-schedules // len(cells))
    began, results = time.monotonic(), list[CellResult]()
    with ProcessPoolExecutor(2) as pool:
        work = [Cell(*cell, range(n * each, (n + 1) * each)) for n, cell in enumerate(cells)]
        for result in pool.map(search, work):
            results.append(result)
            sys.stdout.write("".join(f"{violation}\n" for violation in result.violations))
    text = page(results, time.monotonic() - began)
    if schedules == SCHEDULES:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if any(result.violations for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

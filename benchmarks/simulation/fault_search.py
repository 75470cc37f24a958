"""Run ten thousand random fault schedules over schemes, both modes, several fleets and rules.

Half of the schedules follow the default rules within a cycle, the others the rules of the papers or
a mixture; some have few shards, some many, and some devices are noisy. Most of them stop the
orchestrator up to four times, by a crash or a power cut, and many damage or fill its disk. The
files of all variants are written to `build/fault-search`. Each schedule is drawn from its seed, and
the invariants are checked after each step of each run. A violation, of safety or of liveness, is
printed as the command that runs it again, and counted in the table of the docs.
"""

import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from melisma.atomic import write_atomic
from melisma.errors import DataError
from melisma.fleet.task import PAPER_RULES
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.fault_search import HAS_APSW, Law, replay_command, search_faults
from melisma.simulation.scenario import Scenario, with_mixed_faults
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
PROGRESS_EVERY = 20  # cells


class Cell(NamedTuple):
    """Schedules of one mode, scheme, fleet size and variant of the files."""

    mode: str
    scheme: str
    learners: int
    variant: int
    seeds: range


class Found(NamedTuple):
    """A violation, and the command that runs it again."""

    law: Law
    violation: str
    command: str


class CellResult(NamedTuple):
    """The violations of a cell; of some runs the status of assignments, and the restarts."""

    mode: str
    scheme: str
    schedules: int
    violations: tuple[Found, ...]
    statuses: Counter[str]
    sampled: int
    restarts: int


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
        Found(each.law, each.violation, replay_command(files, options, each))
        for each in failures
        if each
    )
    statuses, sampled, restarts = Counter[str](), 0, 0
    for seed in cell.seeds[::STATUS_EVERY]:
        report = _run(prepare(*files, replace(options, seed=seed)).scenario, seed)
        sampled, restarts = sampled + 1, restarts + report.restarts
        statuses += Counter(each.status for cycle in report.cycles for each in cycle.assignments)
    schedules = len(cell.seeds)
    return CellResult(cell.mode, cell.scheme, schedules, violations, statuses, sampled, restarts)


def _run(scenario: Scenario, seed: int) -> Report:
    """Run a schedule; its report shows that faults have an effect."""
    steps: list[Step] = []
    # A run whose journal is damaged ends there.
    with suppress(DataError):
        scenario = with_mixed_faults(scenario, seed, disk=HAS_APSW)
        with closing(Driver(scenario, TimingOnly(), steps.append)) as driver:
            driver.run()
    return Report.from_trace(steps)


def page(results: list[CellResult], seconds: float) -> str:
    """Return the table, with a row for each mode and scheme."""
    lines = [
        f"| mode | scheme | schedules | safety | liveness | restarts | {' | '.join(STATUSES)} |",
        f"|---|---|--:|--:|--:|--:|{'--:|' * len(STATUSES)}",
    ]
    for mode, scheme in product(MODES, SCHEMES):
        rows = [each for each in results if (each.mode, each.scheme) == (mode, scheme)]
        statuses = sum((each.statuses for each in rows), Counter[str]())
        parts = [statuses[status] / max(statuses.total(), 1) for status in STATUSES]
        shown = " | ".join(f"{part:.1%}" for part in parts)
        schedules = sum(each.schedules for each in rows)
        broken = _count_laws(rows)
        restarts = sum(each.restarts for each in rows) / max(sum(each.sampled for each in rows), 1)
        laws = f"{broken['safety']} | {broken['liveness']} | {restarts:.1f}"
        lines.append(f"| {mode} | {scheme} | {schedules:,} | {laws} | {shown} |")
    note = (
        "Safety and liveness are violations; restarts for each run and the status of assignments "
        "are from every twelfth schedule."
    )
    return "\n".join([f"{summary(results, seconds)}. {note}", "", *lines, ""])


def summary(results: list[CellResult], seconds: float) -> str:
    """Return one line: the schedules, the time and the violations."""
    total, broken = sum(each.schedules for each in results), _count_laws(results)
    return (
        f"{total:,} schedules in {seconds / 60:.0f} min; "
        f"{broken['safety']} violations of safety, {broken['liveness']} of liveness"
    )


def _count_laws(results: list[CellResult]) -> Counter[str]:
    return Counter(found.law for each in results for found in each.violations)


def main(schedules: int = SCHEDULES) -> int:
    """Run the schedules, print progress and violations, and write the table if all ran."""
    if not HAS_APSW:
        sys.stderr.write("without the package apsw no faults of disks are drawn\n")
    cells = list(product(MODES, SCHEMES, LEARNERS, range(VARIANT_COUNT)))
    each = -(-schedules // len(cells))
    began, results = time.monotonic(), list[CellResult]()
    with ProcessPoolExecutor(2) as pool:
        work = [Cell(*cell, range(n * each, (n + 1) * each)) for n, cell in enumerate(cells)]
        for result in pool.map(search, work):
            results.append(result)
            for found in result.violations:
                sys.stdout.write(f"{found.law}: {found.violation}:\n  {found.command}\n")
            sys.stdout.flush()
            if len(results) % PROGRESS_EVERY == 0:
                sys.stderr.write(f"{summary(results, time.monotonic() - began)}\n")
    text = page(results, time.monotonic() - began)
    if schedules == SCHEDULES:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{text}\n{summary(results, time.monotonic() - began)}\n")
    return 1 if any(result.violations for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

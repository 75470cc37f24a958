"""Cost of training with processes over HTTP, compared with Flower on the same machine.

Each part measures Melisma and its competitor one after the other. A part that is measured alone
replaces the same part in the results of the last run. Each part records when it was measured and
how much of a core other processes used.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.harness import environments, machine, parts, table
from benchmarks.harness.parts import cell
from benchmarks.harness.targets import Target
from benchmarks.live import (
    accuracy,
    aggregation,
    capacity,
    cifar,
    cycle,
    deadline,
    disturbed,
    emulation,
    flower_deployment,
    footprint,
    idle_learners,
    killed_device,
    machines,
    predictions,
    waiting_device,
)

PACKAGES = ["melisma", "numpy", "torch"]
Results = Mapping[str, Any]


class Part(NamedTuple):
    """One measurement: its function, columns and targets, and ratios of Flower to Melisma."""

    title: str
    measure: Callable[[bool], dict[str, Any]]
    columns: list[str]
    targets: tuple[Target, ...]
    ratios: Mapping[str, Callable[[Results], float]] = MappingProxyType({})
    tables: Mapping[str, list[str]] = MappingProxyType({})
    """Further tables of the results, with their columns."""

    def sections(self, results: Results) -> list[str]:
        """Return the tables and ratios as Markdown; leave out ratios of missing figures."""
        sections = [table.render(self.columns, results["rows"])]
        sections += [table.render(columns, results[key]) for key, columns in self.tables.items()]
        for title, ratio_of in self.ratios.items():
            with suppress(KeyError, TypeError):
                sections.append(f"Flower / Melisma, {title}: {ratio_of(results):.2g}.")
        return sections + parts.remarks(results)


def ratio(row: str, column: str, base: str) -> Callable[[Results], float]:
    """Return a function that divides the figure of `row` by that of `base`."""
    return lambda part: float(part["rows"][row][column] / part["rows"][base][column])


def _at_two_cycles(part: Results) -> float:
    """Return the ratio for two cycles each; the actual number of cycles depends on the seed."""
    first, each = "before the first cycle s", "cycle s"
    whole = {name: row[first] + 2 * row[each] for name, row in part["rows"].items()}
    return float(whole["Flower"] / whole["melisma"])


def largest(kind: str) -> Callable[[Results], float]:
    """Return a function that finds the largest error of a rate, in rows of one kind."""

    def figure(part: Results) -> float:
        rows = part["rows"].items()
        return max(abs(float(row["error %"])) for name, row in rows if name.endswith(kind))

    return figure


def _capacity(scheme: str) -> tuple[Target, ...]:
    """Return the targets of a scheme."""
    least = 90 if scheme == "proportional" else 92
    return (
        Target(
            f"capacity from cycle 3, {scheme}", cell(scheme, capacity.REST), least=least, unit="%"
        ),
        Target(
            f"capacity in cycles 1 and 2, {scheme}",
            cell(scheme, capacity.FIRST),
            least=80,
            unit="%",
        ),
        Target(
            f"cycles at most 3 % late, {scheme}",
            cell(scheme, capacity.PUNCTUAL),
            least=95,
            unit="%",
        ),
    )


MEDIAN, TO_TARGET = "median ms", "to 90 % s"
AGENT, SUPERNODE = (
    "Melisma agent, before its framework is loaded",
    "Flower SuperNode, idle (with its SuperExec)",
)
PARTS = {
    "empty": Part(
        "An empty cycle",
        cycle.measure,
        cycle.COLUMNS,
        (
            Target("empty cycle, 4 KB", cell("melisma, 4 KB", MEDIAN), 100, unit="ms"),
            Target("empty cycle, 40 MB", cell("melisma, 40 MB", MEDIAN), 3000, unit="ms"),
        ),
        {
            "4 KB": ratio("Flower, 4 KB", MEDIAN, "melisma, 4 KB"),
            "40 MB, 1 client to 4 learners": ratio("Flower, 40 MB", MEDIAN, "melisma, 40 MB"),
        },
    ),
    "memory": Part(
        "Memory of an agent",
        footprint.memory,
        footprint.MEMORY_COLUMNS,
        (Target("agent before training", cell(AGENT, "resident MB"), 60, unit="MB"),),
        {"idle": ratio(SUPERNODE, "resident MB", AGENT)},
    ),
    "idle": Part(
        "Learners that wait",
        idle_learners.measure,
        idle_learners.COLUMNS,
        (
            Target(
                "memory for a learner that waits",
                cell("200 learners", idle_learners.EACH),
                200,
                unit="KB",
            ),
            Target(
                "processor for 200 learners that wait",
                cell("200 learners", idle_learners.PROCESSOR),
                5,
                unit="%",
            ),
        ),
    ),
    "waiting": Part(
        "Memory of a device that waits",
        waiting_device.measure,
        waiting_device.COLUMNS,
        (
            Target(
                "melisma join, waiting",
                cell(waiting_device.WAITING, waiting_device.RESIDENT),
                60,
                unit="MB",
            ),
        ),
    ),
    "size": Part(
        "Size of an install",
        footprint.size,
        footprint.SIZE_COLUMNS,
        (Target("core install", cell("melisma, core", "MB"), 120, unit="MB"),),
        {"without PyTorch": ratio(footprint.FLWR, "MB", "melisma, core")},
    ),
    "accuracy": Part(
        "Time to 90 % on MNIST",
        accuracy.measure,
        accuracy.COLUMNS,
        (
            Target(
                "90 % sooner than Flower", ratio("Flower", TO_TARGET, "melisma"), least=3, unit="x"
            ),
        ),
        {"if both had taken two cycles": _at_two_cycles},
    ),
    "deadline": Part(
        "Punctual cycles",
        deadline.measure,
        deadline.COLUMNS,
        (
            Target(
                "cycles at most 3 % late",
                cell(f"DAB, {deadline.DEADLINE_S:g} s", "within 3 % %"),
                least=95,
                unit="%",
            ),
        ),
    ),
    "capacity": Part(
        "Capacity used by `melisma run`",
        capacity.measure,
        capacity.COLUMNS,
        tuple(target for scheme in capacity.RUNS for target in _capacity(scheme)),
    ),
    "disturbed": Part(
        "Capacity while devices slow down and die",
        disturbed.measure,
        disturbed.COLUMNS,
        (
            Target(
                "capacity of those present, one slow, one killed",
                cell(disturbed.ALL, disturbed.CAPACITY),
                least=88,
                unit="%",
            ),
            Target(
                "cycles at most 3 % late, one slow, one killed",
                cell(disturbed.ALL, capacity.PUNCTUAL),
                least=95,
                unit="%",
            ),
        ),
        tables={"killed": disturbed.KILL_COLUMNS},
    ),
    "machines": Part(
        "Capacity used on several machines",
        machines.measure,
        machines.COLUMNS,
        tuple(
            Target(
                f"points less than on one machine, {name}",
                partial(machines.difference, name),
                5,
                unit="points",
            )
            for name in machines.DATA
        ),
    ),
    "killed": Part(
        "A device that is killed",
        killed_device.measure,
        killed_device.COLUMNS,
        (
            Target(
                "a killed device's work is handed on",
                cell("melisma", killed_device.HANDED_ON),
                5,
                unit="s",
            ),
        ),
        {
            "until a killed device is noticed": ratio("Flower", killed_device.NOTICED, "melisma"),
            "from joining to the first training": ratio("Flower", killed_device.FIRST, "melisma"),
        },
    ),
    "cifar": Part(
        "Time to 45 % on CIFAR-10",
        cifar.measure,
        cifar.COLUMNS,
        (),
        {
            "equal shares": ratio(cifar.EQUAL, cifar.TO_TARGET, cifar.MELISMA),
            "shares by speed": ratio(cifar.PROPORTIONAL, cifar.TO_TARGET, cifar.MELISMA),
            "shares by speed, from the first cycle": ratio(
                cifar.PROPORTIONAL, cifar.FROM_FIRST, cifar.MELISMA
            ),
        },
        tables={"curves": cifar.CURVE_COLUMNS},
    ),
    "predictions": Part(
        "Predictions from 8 shards",
        predictions.measure,
        predictions.COLUMNS,
        (
            Target(
                "training, median over devices",
                cell("median over devices", "subset, training %"),
                5,
                unit="%",
            ),
            Target(
                "download, median over devices",
                cell("median over devices", "subset, download %"),
                10,
                unit="%",
            ),
        ),
    ),
    "aggregation": Part(
        "Averaging",
        aggregation.measure,
        aggregation.COLUMNS,
        tuple(
            Target(
                f"compared with `a += w * b`, {shape}",
                cell(f"melisma, {shape}", "of plain %"),
                least=70,
                unit="%",
            )
            for shape in aggregation.SHAPES
        ),
    ),
    "emulation": Part(
        "Emulated devices",
        emulation.measure,
        emulation.COLUMNS,
        tuple(
            Target(f"largest error of a rate, {load}", largest(load), 5, unit="%")
            for load in ("idle", "one busy process", "every core busy")
        ),
    ),
}


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    if unknown := set(only) - PARTS.keys():
        raise SystemExit(f"unknown parts {', '.join(sorted(unknown))}; use {', '.join(PARTS)}")
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    results = {} if quick or not only else parts.last_parts("live")
    for name, part in PARTS.items():
        if not only or name in only:
            print(f"  {name}", file=sys.stderr)
            results[name] = parts.measure(part.measure, quick, described)
            report(name, results[name])
    return {
        "pinned": environments.pinned_packages(flower_deployment.REQUIREMENTS),
        "parts": {name: results[name] for name in PARTS if name in results},
    }


def report(name: str, results: Results) -> None:
    """Print the figures of one part, its targets, and the load of other processes."""
    print(f"\n{PARTS[name].title}")
    for target in PARTS[name].targets:
        print(target.row(results))
    print("\n\n".join(["", *PARTS[name].sections(results)]))

"""Cost of training with processes over HTTP, compared with Flower on the same machine.

Each part stands alone and measures ours and its peer one after the other. A part that is run by
itself takes the place of the same part in the figures of the last run; each says when it was
measured and how much of a core others used meanwhile.
"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.harness import environments, machine, quiet, table
from benchmarks.harness.targets import Target
from benchmarks.live import (
    accuracy,
    aggregation,
    cycle,
    deadline,
    emulation,
    flower_deployment,
    footprint,
    predictions,
)

PACKAGES = ["melisma", "numpy", "torch"]
LAST = Path(__file__).parents[1] / "results" / "live.json"
Found = Mapping[str, Any]


class Part(NamedTuple):
    """One thing to measure: how, what to show, what was to be reached, and Flower's beside ours."""

    title: str
    measure: Callable[[bool], dict[str, Any]]
    columns: list[str]
    wanted: tuple[Target, ...]
    ratios: Mapping[str, Callable[[Found], float]] = MappingProxyType({})


def cell(row: str, column: str) -> Callable[[Found], float]:
    """A figure of a part."""
    return lambda part: float(part["rows"][row][column])


def times(row: str, column: str, ours: str) -> Callable[[Found], float]:
    """How many times ours another's figure is."""
    return lambda part: float(part["rows"][row][column] / part["rows"][ours][column])


def _at_two_cycles(part: Found) -> float:
    """The ratio if both had taken two cycles, whatever chance gave each."""
    first, each = "before the first cycle s", "a cycle s"
    whole = {name: row[first] + 2 * row[each] for name, row in part["rows"].items()}
    return float(whole["Flower"] / whole["melisma"])


def largest(kind: str) -> Callable[[Found], float]:
    """The largest error of rates, of the rows whose names end so."""

    def figure(part: Found) -> float:
        rows = part["rows"].items()
        return max(abs(float(row["error %"])) for name, row in rows if name.endswith(kind))

    return figure


MEDIAN, CYCLE = "median ms", "to 90 % s"
BEFORE, IDLE = (
    "our agent, before its framework is loaded",
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
            "4 KB": times("Flower, 4 KB", MEDIAN, "melisma, 4 KB"),
            "40 MB, 1 client beside our 4": times("Flower, 40 MB", MEDIAN, "melisma, 40 MB"),
        },
    ),
    "memory": Part(
        "Memory of an agent",
        footprint.memory,
        footprint.MEMORY_COLUMNS,
        (Target("agent before training", cell(BEFORE, "resident MB"), 60, unit="MB"),),
        {"idle": times(IDLE, "resident MB", BEFORE)},
    ),
    "size": Part(
        "Size of an install",
        footprint.size,
        footprint.SIZE_COLUMNS,
        (Target("core install", cell("melisma, core", "MB"), 120, unit="MB"),),
        {"without PyTorch": times(footprint.FLWR, "MB", "melisma, core")},
    ),
    "accuracy": Part(
        "Time to 90 % on MNIST",
        accuracy.measure,
        accuracy.COLUMNS,
        (Target("90 % sooner than Flower", times("Flower", CYCLE, "melisma"), least=3, unit="x"),),
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
                f"beside `a += w * b`, {shape}",
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
    """Measure the parts; print them; return what goes to the JSON file."""
    if unknown := set(only) - PARTS.keys():
        raise SystemExit(f"no {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    parts: dict[str, Any] = {} if quick or not only else _last(described)
    for name, part in PARTS.items():
        if not only or name in only:
            print(f"  {name}", file=sys.stderr)
            parts[name] = _measured(part, quick)
            report(name, parts[name])
    return {
        "machine": described,
        "pinned": environments.pinned(flower_deployment.REQUIREMENTS),
        "parts": {name: parts[name] for name in PARTS if name in parts},
    }


def report(name: str, found: Found) -> None:
    """Print the figures of one part, what was to be reached, and what ran beside."""
    print(f"\n{PARTS[name].title}")
    print(table.render(PARTS[name].columns, found["rows"]))
    for wanted in PARTS[name].wanted:
        print(wanted.row(found))
    for what, ratio in PARTS[name].ratios.items():
        print(f"Flower's / ours, {what}: {ratio(found):.2g}")
    print(f"others used {found['others_share']} of a core meanwhile")


def _measured(part: Part, quick: bool) -> dict[str, Any]:
    quiet.wait()
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    watch = quiet.Watch()
    found = part.measure(quick)
    others_share = round(watch.others_share(found.pop("own_s")), 2)
    return {"at": at, "others_share": others_share, **found}


def _last(described: dict[str, object]) -> dict[str, Any]:
    """The parts of the last run, if it was on this machine."""
    if not LAST.exists():
        return {}
    last = json.loads(LAST.read_text())
    same = all(last["machine"][key] == described[key] for key in ("cpu", "cores", "python"))
    return dict(last["parts"]) if same else {}

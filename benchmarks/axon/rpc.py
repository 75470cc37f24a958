"""Cost of a call in melisma.axon and in its competitors.

Every server runs in its own process on one core and its client in another process on the other
core, over loopback. All competitors are measured in each of several rounds and the medians over the
rounds are kept, so that a slow minute of the machine affects all alike. Compare ratios within one
run: absolute figures vary from run to run.
"""

import sys
from dataclasses import asdict
from typing import Any

from benchmarks.axon import rpc_targets
from benchmarks.axon.trial import Trial, run_trial
from benchmarks.competitors import COMPETITORS
from benchmarks.harness import environments, machine, processes, quiet, table, timing
from benchmarks.harness.selection import select

COLUMNS = [
    "median µs",
    "p99 µs",
    "8 callers/s",
    "64 callers/s",
    "10 MB",
    "100 MB",
    "idle MB",
    "peak MB",
    "import ms",
]
PACKAGES = ["melisma", "httptools", "msgspec", "numpy"]
ROUNDS = 3
REACHED = {True: "reached", False: "MISSED", None: "not measured"}


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure every competitor, print the figures and return the results for the JSON file."""
    chosen = select(COMPETITORS, only)
    pythons = {
        name: environments.python(competitor.requirements) for name, competitor in chosen.items()
    }
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    trials: dict[str, list[Trial]] = {name: [] for name in chosen}
    for number in range(1 if quick else ROUNDS):
        for name, competitor in chosen.items():
            print(f"  round {number + 1}: {name}", file=sys.stderr)
            trials[name].append(run_trial(competitor, pythons[name], quick))
    rows = {name: timing.medians([v.figures for v in trials[name]]) for name in chosen}
    quiet.wait()
    for name, competitor in chosen.items():
        rows[name]["import ms"] = round(processes.import_ms(competitor.imports, pythons[name]), 1)
    result: dict[str, Any] = {
        "machine": described,
        "pinned": {
            name: environments.pinned_packages(competitor.requirements)
            for name, competitor in chosen.items()
        },
        "competitors": rows,
        "callers": {name: max(v.callers or "" for v in trials[name]) for name in chosen},
        "errors": {name: _errors(trials[name]) for name in chosen},
        "targets": rpc_targets.compare(rows),
        "trials": {name: [asdict(each) for each in trials[name]] for name in chosen},
    }
    report(result)
    return result


def _errors(trials: list[Trial]) -> dict[str, str]:
    """Return the last error of each column over all rounds."""
    return {column: error for each in trials for column, error in each.errors.items()}


def report(result: dict[str, Any]) -> None:
    """Print the figures, the errors and the targets."""
    print("\nSmall call and concurrent callers; echoes of float32 arrays in MB/s, both ways")
    print(table.render(COLUMNS, result["competitors"]))
    for kind in ("threads", "tasks"):
        names = [name for name, each in result["callers"].items() if each == kind]
        print(f"concurrent callers are {kind}: {'; '.join(names)}")
    busiest = max(v["others_share"] for each in result["trials"].values() for v in each)
    print(f"other processes used at most {busiest} of a core during any trial")
    for name, errors in result["errors"].items():
        for column, error in errors.items():
            print(f"failed: {name}, {column}: {error}")
    print("\nTargets")
    for target in result["targets"]:
        ratio = "-" if target["ratio"] is None else f"{target['ratio']:.2f}"
        reached = REACHED[target["reached"]]
        print(
            f"{target['title']:38} {target['system']:22} {ratio:>8}  {target['bound']:13} {reached}"
        )

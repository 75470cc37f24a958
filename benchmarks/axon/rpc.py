"""What a call costs in melisma.axon and beside it.

Every peer's server runs in a process of its own on one core and its client in another on the
other core, over loopback. All peers are visited in each of several rounds and the medians over
the rounds are kept, so that a slow minute of the machine hits all alike. Ratios within one run
are what counts: absolute figures move from run to run.
"""

import sys
from dataclasses import asdict
from typing import Any

from benchmarks.axon import rpc_targets
from benchmarks.axon.visits import Visit, visit
from benchmarks.competitors import PEERS
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
    """Measure every peer; print the table and the targets; return what goes to the JSON file."""
    chosen = select(PEERS, only)
    pythons = {name: environments.python(peer.requirements) for name, peer in chosen.items()}
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    visits: dict[str, list[Visit]] = {name: [] for name in chosen}
    for number in range(1 if quick else ROUNDS):
        for name, peer in chosen.items():
            print(f"  round {number + 1}: {name}", file=sys.stderr)
            visits[name].append(visit(peer, pythons[name], quick))
    rows = {name: timing.over_rounds([v.figures for v in visits[name]]) for name in chosen}
    quiet.wait()
    for name, peer in chosen.items():
        rows[name]["import ms"] = round(processes.import_ms(peer.imports, pythons[name]), 1)
    result: dict[str, Any] = {
        "machine": described,
        "pinned": {name: environments.pinned(peer.requirements) for name, peer in chosen.items()},
        "peers": rows,
        "callers": {name: max(v.callers or "" for v in visits[name]) for name in chosen},
        "errors": {name: _errors(visits[name]) for name in chosen},
        "targets": rpc_targets.compare(rows),
        "visits": {name: [asdict(each) for each in visits[name]] for name in chosen},
    }
    report(result)
    return result


def _errors(visits: list[Visit]) -> dict[str, str]:
    """The last error of each column, whichever round it happened in."""
    return {column: error for each in visits for column, error in each.errors.items()}


def report(result: dict[str, Any]) -> None:
    """Print the figures, what failed, and the targets."""
    print("\nSmall call and concurrent callers; echoes of float32 arrays in MB/s, both ways")
    print(table.render(COLUMNS, result["peers"]))
    for kind in ("threads", "tasks"):
        names = [name for name, each in result["callers"].items() if each == kind]
        print(f"concurrent callers are {kind}: {'; '.join(names)}")
    busiest = max(v["others_share"] for each in result["visits"].values() for v in each)
    print(f"the rest of the machine used at most {busiest} of a core during any visit")
    for name, errors in result["errors"].items():
        for column, error in errors.items():
            print(f"failed: {name}, {column}: {error}")
    print("\nTargets")
    for each in result["targets"]:
        ratio = "-" if each["ratio"] is None else f"{each['ratio']:.2f}"
        reached = REACHED[each["reached"]]
        print(f"{each['target']:38} {each['ours']:22} {ratio:>8}  {each['bound']:13} {reached}")

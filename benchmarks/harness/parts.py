"""A benchmark of several parts, each measured alone or together with the others.

A part that is measured alone replaces the same part in the results of earlier runs. Each part
records the machine, when it was measured, and how much of a core other processes used meanwhile.
"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import machine, quiet, table
from benchmarks.harness.targets import Target

RESULTS = Path(__file__).parents[1] / "results"
MAX_OTHERS_SHARE = 0.2
"""Share of a core that other processes may use: above it, threads of competitors wait for each
other, and ratios favour Melisma."""
Results = Mapping[str, Any]


class Part(NamedTuple):
    """One measurement: its function, the columns to show, and its targets."""

    title: str
    measure: Callable[[bool], dict[str, Any]]
    columns: list[str]
    targets: tuple[Target, ...] = ()
    timed: bool = True
    """Whether the load of other processes matters; in virtual time it does not."""


class Benchmark(NamedTuple):
    """The parts of one benchmark, and the packages whose versions it records."""

    name: str
    parts: Mapping[str, Part]
    packages: list[str]

    def run(self, quick: bool, only: tuple[str, ...]) -> dict[str, Any]:
        """Measure the parts, print them and return the results for the JSON file."""
        if unknown := set(only) - self.parts.keys():
            names = ", ".join(self.parts)
            raise SystemExit(f"unknown parts {', '.join(sorted(unknown))}; use {names}")
        described = machine.describe(self.packages)
        print(machine.summary(described))
        results = {} if quick or not only else last_parts(self.name)
        for name, part in self.parts.items():
            if not only or name in only:
                print(f"  {name}", file=sys.stderr)
                results[name] = measure(part.measure, quick, described, timed=part.timed)
                print("\n\n".join([f"\n{part.title}", *self.sections(name, results[name])]))
        return {"parts": {name: results[name] for name in self.parts if name in results}}

    def target_rows(self, name: str, results: Results) -> list[str]:
        """Return a table row for each target; a quick run may lack some of the figures."""
        rows = []
        for target in self.parts[name].targets:
            try:
                rows.append(target.row(results))
            except KeyError:
                if not results["quick"]:
                    raise
        return rows

    def sections(self, name: str, results: Results) -> list[str]:
        """Return the results of a part as Markdown, with a warning if they are unreliable."""
        rows = self.target_rows(name, results)
        sections = [table.render(self.parts[name].columns, results["rows"])]
        head = ["| figure | measured | target | |", "|---|--:|--:|---|"]
        sections += ["\n".join([*head, *rows])] if rows else []
        return sections + remarks(results, timed=self.parts[name].timed)


def last_parts(benchmark: str) -> dict[str, Any]:
    """Return the parts of earlier runs of a benchmark, each as measured last, on any machine."""
    path = RESULTS / f"{benchmark}.json"
    return dict(json.loads(path.read_text())["parts"]) if path.exists() else {}


def remarks(results: Results, *, timed: bool = True) -> list[str]:
    """Return the load of other processes, and a warning if the results are unreliable."""
    share = results["others_share"]
    doubts = ["this was a quick run"] * results.get("quick", False)
    doubts += ["other processes were busy"] * (timed and share > MAX_OTHERS_SHARE)
    load = [f"Other processes used {share} of a core."] if timed else []
    return load + ([f"**Measure again: {' and '.join(doubts)}.**"] if doubts else [])


def measure(
    part: Callable[[bool], dict[str, Any]],
    quick: bool,
    described: dict[str, object],
    *,
    timed: bool = True,
) -> dict[str, Any]:
    """Run the function of a part; add the machine, the time and the load of other processes."""
    if timed:
        quiet.wait()
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    watch = quiet.Watch()
    results = part(quick)
    others_share = round(watch.others_share(results.pop("own_s")), 2)
    about = {"machine": described, "at": at, "others_share": others_share, "quick": quick}
    return {**about, **results}


def cell(row: str, column: str) -> Callable[[Results], float]:
    """Return a function that reads one figure of a part."""
    return lambda part: float(part["rows"][row][column])

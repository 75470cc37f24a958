"""A benchmark of several parts, each measured alone or together with the others.

A part that is run by itself takes the place of the same part in the figures of the last run; each
says when it was measured and how much of a core others used meanwhile.
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
MOST_OTHERS = 0.2
"""Of a core: with more than that threads of peers wait for each other, and ratios flatter us."""
Found = Mapping[str, Any]


class Part(NamedTuple):
    """One thing to measure: how, what to show, and what was to be reached."""

    title: str
    measure: Callable[[bool], dict[str, Any]]
    columns: list[str]
    wanted: tuple[Target, ...] = ()
    timed: bool = True
    """Whether what others do meanwhile matters; in virtual time it does not."""


class Benchmark(NamedTuple):
    """The parts of one benchmark, and the packages that matter to it."""

    name: str
    parts: Mapping[str, Part]
    packages: list[str]

    def run(self, quick: bool, only: tuple[str, ...]) -> dict[str, Any]:
        """Measure the parts; print them; return what goes to the JSON file."""
        if unknown := set(only) - self.parts.keys():
            names = ", ".join(self.parts)
            raise SystemExit(f"no {', '.join(sorted(unknown))}; there are: {names}")
        described = machine.describe(self.packages)
        print(machine.summary(described))
        found: dict[str, Any] = {} if quick or not only else self._last(described)
        for name, part in self.parts.items():
            if not only or name in only:
                print(f"  {name}", file=sys.stderr)
                found[name] = _measured(part, quick)
                print("\n\n".join([f"\n{part.title}", *self.told(name, found[name])]))
        return {
            "machine": described,
            "parts": {name: found[name] for name in self.parts if name in found},
        }

    def reached(self, name: str, found: Found) -> list[str]:
        """Rows of what was wanted of a part; of a first look only what it has."""
        rows = []
        for wanted in self.parts[name].wanted:
            try:
                rows.append(wanted.row(found))
            except KeyError:
                if not found["quick"]:
                    raise
        return rows

    def told(self, name: str, found: Found) -> list[str]:
        """The figures of a part as text, and whether they are to be relied on."""
        share, rows = found["others_share"], self.reached(name, found)
        said = [table.render(self.parts[name].columns, found["rows"])]
        head = ["| target | measured | wanted | |", "|---|--:|--:|---|"]
        said += ["\n".join([*head, *rows])] if rows else []
        timed = self.parts[name].timed
        said += [f"Others used {share} of a core meanwhile."] if timed else []
        doubts = ["a first look"] * found["quick"]
        doubts += ["others were at work"] * (timed and share > MOST_OTHERS)
        return said + ([f"**To be measured again: {' and '.join(doubts)}.**"] if doubts else [])

    def _last(self, described: dict[str, object]) -> dict[str, Any]:
        """The parts of the last run, if it was on this machine."""
        path = RESULTS / f"{self.name}.json"
        if not path.exists():
            return {}
        last = json.loads(path.read_text())
        same = all(last["machine"][key] == described[key] for key in ("cpu", "cores", "python"))
        return dict(last["parts"]) if same else {}


def cell(row: str, column: str) -> Callable[[Found], float]:
    """One figure of a part."""
    return lambda part: float(part["rows"][row][column])


def _measured(part: Part, quick: bool) -> dict[str, Any]:
    if part.timed:
        quiet.wait()
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    watch = quiet.Watch()
    found = part.measure(quick)
    others_share = round(watch.others_share(found.pop("own_s")), 2)
    return {"at": at, "others_share": others_share, "quick": quick, **found}

"""What a simulation costs and how true it is, beside Flower's, pfl-research and a plain loop.

Each part stands alone. A part that is run by itself takes the place of the same part in the figures
of the last run; each says when it was measured and how much of a core others used meanwhile.
"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    environments,
    machine,
    quiet,
    simulation_live,
    simulation_million,
    simulation_updates,
    table,
)
from benchmarks.wanted import Wanted

PACKAGES = ["melisma", "numpy", "torch"]
LAST = Path(__file__).parent / "results" / "simulation.json"
MOST_OTHERS = 0.2
"""Of a core: with more than that threads of peers wait for each other, and ratios flatter us."""
Found = Mapping[str, Any]


class Part(NamedTuple):
    """One thing to measure: how, what to show, and what was to be reached."""

    title: str
    measure: Callable[[bool], dict[str, Any]]
    columns: list[str]
    wanted: tuple[Wanted, ...]


def _beside(peer: str, setting: tuple[str, int]) -> Callable[[Found], float]:
    """Times as many updates of ours as of a peer, in the fastest way that it was run."""

    def figure(part: Found) -> float:
        among = simulation_updates.LOOKED_AT if part["quick"] else simulation_updates.CONTESTANTS
        ways = [way for way in among if way.startswith(peer)]
        rows = [part["rows"][simulation_updates.name_of(way, setting)] for way in ways]
        return min(float(row["ours / theirs"]) for row in rows)

    return figure


def _cell(row: str, column: str) -> Callable[[Found], float]:
    return lambda part: float(part["rows"][row][column])


def _grown(kind: str) -> Callable[[Found], float]:
    return lambda part: simulation_million.growth(kind, part)


def _updates() -> tuple[Wanted, ...]:
    return tuple(
        Wanted(
            simulation_updates.name_of(f"beside {peer}", setting),
            _beside(peer, setting),
            least=least,
            unit="x",
        )
        for setting in simulation_updates.settings()
        for peer, least in simulation_updates.WANTED.items()
    )


def _million() -> tuple[Wanted, ...]:
    found: list[Wanted] = []
    for kind in simulation_million.KINDS:
        row = simulation_million.name_of(kind, simulation_million.SIZES[-1])
        found += [
            Wanted(f"{row} learners", _cell(row, "seconds"), 60, unit="s"),
            Wanted(f"{row} learners, memory", _cell(row, "peak GB"), 4, unit="GB"),
            Wanted(f"{kind}, seconds a learner, 10⁶ beside 10⁵", _grown(kind), 1.5, unit="x"),
        ]
    return tuple(found)


def _live() -> tuple[Wanted, ...]:
    settings = simulation_live.SETTINGS
    times = (
        Wanted(f"cycle times of {name}, median error", _cell(name, "median error %"), 5, unit="%")
        for name in settings
    )
    plans = (
        Wanted(
            f"cycles of {name} with the same plans",
            _cell(name, "same plans"),
            least=simulation_live.CYCLES,
        )
        for name, setting in settings.items()
        if not setting.fine
    )
    return (*times, *plans)


PARTS = {
    "updates": Part(
        "Learner updates a second",
        simulation_updates.measure,
        simulation_updates.COLUMNS,
        _updates(),
    ),
    "million": Part(
        "Up to a million learners",
        simulation_million.measure,
        simulation_million.COLUMNS,
        _million(),
    ),
    "live": Part(
        "Live beside simulated",
        simulation_live.measure,
        simulation_live.COLUMNS,
        _live(),
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
            print("\n\n".join([f"\n{part.title}", *told(name, parts[name])]))
    return {
        "machine": described,
        "pinned": {
            "Flower": environments.pinned(simulation_updates.FLOWER),
            "pfl-research": environments.pinned(simulation_updates.PFL),
        },
        "parts": {name: parts[name] for name in PARTS if name in parts},
    }


def reached(name: str, found: Found) -> list[str]:
    """Rows of what was wanted of a part; of a first look only what it has."""
    rows = []
    for wanted in PARTS[name].wanted:
        try:
            rows.append(wanted.row(found))
        except KeyError:
            if not found["quick"]:
                raise
    return rows


def told(name: str, found: Found) -> list[str]:
    """The figures of a part as text, and whether they are to be relied on."""
    share, rows = found["others_share"], reached(name, found)
    said = [table.render(PARTS[name].columns, found["rows"])]
    said += ["\n".join(["| target | measured | wanted | |", "|---|--:|--:|---|", *rows])] * bool(
        rows
    )
    said.append(f"Others used {share} of a core meanwhile.")
    doubts = ["a first look"] * found["quick"] + ["others were at work"] * (share > MOST_OTHERS)
    return said + ([f"**To be measured again: {' and '.join(doubts)}.**"] if doubts else [])


def _measured(part: Part, quick: bool) -> dict[str, Any]:
    quiet.wait()
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    watch = quiet.Watch()
    found = part.measure(quick)
    others_share = round(watch.others_share(found.pop("own_s")), 2)
    return {"at": at, "others_share": others_share, "quick": quick, **found}


def _last(described: dict[str, object]) -> dict[str, Any]:
    """The parts of the last run, if it was on this machine."""
    if not LAST.exists():
        return {}
    last = json.loads(LAST.read_text())
    same = all(last["machine"][key] == described[key] for key in ("cpu", "cores", "python"))
    return dict(last["parts"]) if same else {}

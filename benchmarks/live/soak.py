"""Live runs that are killed, and whose machine loses power, until they end nevertheless.

`python -m benchmarks.live.soak [SCHEDULES [KILLS [CUTS]]]` checks simulated schedules of faults
first. It exits with 1 if any run did not end, if its trace breaks an invariant, or if its
parameters are not those of a run that was left alone.
"""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import numpy as np

from benchmarks.harness import table
from benchmarks.harness.quiet import own_s
from benchmarks.harness.targets import Target
from benchmarks.live.killed_orchestrator import SAVING, KilledRun
from benchmarks.live.power_cuts.cut_run import CutRun
from benchmarks.live.power_cuts.recorder import Recorder

SCHEDULES, KILLS, CUTS = 10_000, 200, 50
SEARCH: Final = "benchmarks.simulation.fault_search"
KILLS_EACH, CUTS_EACH = 10, 5
"""The most kills of one run."""
KILLED, CUT = "orchestrator killed", "power cut"
MEDIAN, WORST = "median s to resume", "worst s to resume"
COLUMNS: Final = ["runs", "kills", "while saving", "broken", MEDIAN, WORST]
Make = Callable[[Path, np.random.Generator], KilledRun]


@dataclass
class Tally:
    """Counts over disturbed runs, and the reason of each that is broken."""

    runs: int = 0
    kills: int = 0
    saving: int = 0
    resumed_s: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, run: KilledRun) -> None:
        """Add the counts of a run."""
        self.runs += 1
        self.kills += run.kill_count
        self.saving += sum(run.kills[name] for name in SAVING)
        self.resumed_s += run.resumed_s

    @property
    def row(self) -> dict[str, float]:
        """The row of the table."""
        taken_s = self.resumed_s or [0.0]
        counts = (self.runs, self.kills, self.saving, len(self.broken))
        figures = (*counts, statistics.median(taken_s), max(taken_s))
        return dict(zip(COLUMNS, (round(figure, 2) for figure in figures), strict=True))


def disturb(make: Make, kills: int, each: int, folder: Path, undisturbed: KilledRun) -> Tally:
    """Disturb runs until there were this many kills; the folders of broken runs are kept."""
    tally, number = Tally(), 0
    while tally.kills < kills:
        run = make(folder / str(number), np.random.default_rng([kills, number]))
        try:
            run.run(min(each, kills - tally.kills))
            run.check()
            run.check_parameters(undisturbed)
        except Exception as error:  # noqa: BLE001 - reported at the end, with all others
            tally.broken.append(f"{run.folder}: {type(error).__name__}: {error}")
            # One that did not begin would be repeated for ever.
            tally.kills += not run.kill_count
        else:
            shutil.rmtree(run.folder)
        tally.add(run)
        number += 1
    return tally


def soak(folder: Path, kills: int, cuts: int) -> dict[str, Tally]:
    """Kill runs and cut the power of others; return what came of each kind."""
    undisturbed = KilledRun(folder / "undisturbed", np.random.default_rng(0))
    undisturbed.run(0)
    undisturbed.check()
    tallies = {}
    if kills:
        killed = folder / "killed"
        tallies[KILLED] = disturb(KilledRun, kills, KILLS_EACH, killed, undisturbed)
    if cuts:
        recorder = Recorder(folder / "recorder")
        recorder.compile()

        def make(path: Path, rng: np.random.Generator) -> CutRun:
            return CutRun(path, rng, recorder=recorder)

        tallies[CUT] = disturb(make, cuts, CUTS_EACH, folder / "cut", undisturbed)
    return tallies


def measure(quick: bool) -> dict[str, Any]:
    """Return a row for each kind of disturbance."""
    return _measure(3 if quick else KILLS, 2 if quick else CUTS)


def _measure(kills: int, cuts: int) -> dict[str, Any]:
    folder, began_s = Path(mkdtemp(prefix="soak-")), own_s()
    tallies = soak(folder, kills, cuts)
    broken = [line for tally in tallies.values() for line in tally.broken]
    if not broken:
        shutil.rmtree(folder)
    rows = {name: tally.row for name, tally in tallies.items()}
    resumed_s = {name: [round(s, 2) for s in tally.resumed_s] for name, tally in tallies.items()}
    # Descendants of killed processes are not children of this one: their time is not known.
    return {"rows": rows, "resumed_s": resumed_s, "broken": broken, "own_s": own_s() - began_s}


def _broken(results: Any) -> float:
    return float(sum(row["broken"] for row in results["rows"].values()))


TARGETS = (Target("runs that a kill or a power cut broke", _broken, 0),)


def main(arguments: Sequence[str]) -> None:
    """Print the table, and each broken run."""
    began = time.monotonic()
    numbers = [*map(int, arguments)]
    schedules, kills, cuts = numbers + [SCHEDULES, KILLS, CUTS][len(numbers) :]
    search = [sys.executable, "-m", SEARCH, str(schedules)]
    broken = ["the search of faults failed"] * (schedules > 0 and subprocess.call(search) != 0)
    results = _measure(kills, cuts)
    print(table.render(COLUMNS, results["rows"]))
    print(f"{time.monotonic() - began:.0f} s in all")
    if broken := broken + results["broken"]:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main(sys.argv[1:])

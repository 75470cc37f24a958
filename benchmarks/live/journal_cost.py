"""Cost of the journal: cycles without training, with it and with one in memory.

Runs with and without alternate, so that both have the same load of the machine. The time of a cycle
is that from one dispatch to the next, as in `cycle`; a ratio is the median over pairs of runs of
the ratio of their medians.
"""

import statistics
from itertools import pairwise
from typing import Any, Final

from benchmarks.harness.parts import cell
from benchmarks.harness.targets import Target
from benchmarks.live import cycle, melisma_run

# Bytes of the model, cycles of a run, and pairs of runs.
SIZES: Final = {"4 KB": (4_096, 50, 7), "160 KB": (160_000, 50, 7), "40 MB": (40_000_000, 12, 5)}
WITH, WITHOUT, RATIO, LEAST, MOST = (
    "with ms",
    "without ms",
    "ratio",
    "least ratio",
    "largest ratio",
)
COLUMNS: Final = ["pairs", WITH, WITHOUT, RATIO, LEAST, MOST]
QUICK_CYCLES, QUICK_PAIRS = 8, 1


def measure(quick: bool) -> dict[str, Any]:
    """Return a row for each size of the model."""
    rows, raw = {}, {}
    for name, (model_bytes, cycles, pairs) in SIZES.items():
        task = cycle.task(model_bytes, QUICK_CYCLES if quick else cycles)
        taken_ms = [
            (_cycle_ms(task, journal=True), _cycle_ms(task, journal=False))
            for _ in range(QUICK_PAIRS if quick else pairs)
        ]
        ratios = [with_ms / without_ms for with_ms, without_ms in taken_ms]
        rows[name] = {
            "pairs": len(ratios),
            WITH: round(statistics.median(pair[0] for pair in taken_ms), 1),
            WITHOUT: round(statistics.median(pair[1] for pair in taken_ms), 1),
            RATIO: round(statistics.median(ratios), 3),
            LEAST: round(min(ratios), 3),
            MOST: round(max(ratios), 3),
        }
        raw[name] = taken_ms
    return {"rows": rows, "raw": raw, "own_s": 0.0}


def _cycle_ms(task: dict[str, Any], *, journal: bool) -> float:
    """Return the median time of the cycles of one run."""
    run = melisma_run.run(task, cycle.LEARNERS, cycle.LIMIT_S, journal=journal)
    began_s = [each["began_s"] for each in run["cycles"]]
    return 1e3 * float(statistics.median(after - before for before, after in pairwise(began_s)))


TARGETS: Final = (
    Target("empty cycle with and without a journal, 4 KB", cell("4 KB", RATIO), 1.3, unit="x"),
    Target("the same, 160 KB", cell("160 KB", RATIO), 1.3, unit="x"),
    Target("the same, 40 MB", cell("40 MB", RATIO), 1.1, unit="x"),
)

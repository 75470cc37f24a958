"""What a run survives, and what that costs."""

from functools import partial

from benchmarks.harness.parts import Benchmark, Part
from benchmarks.live import flower_run, goodput, joined_run, journal_cost, soak
from benchmarks.simulation import goodput as simulated_goodput

BENCHMARK = Benchmark(
    "durability",
    {
        "soak": Part("Kills and power cuts", soak.measure, soak.COLUMNS, soak.TARGETS),
        "journal_cost": Part(
            "Cost of the journal", journal_cost.measure, journal_cost.COLUMNS, journal_cost.TARGETS
        ),
        "goodput": Part(
            "Goodput with kills", partial(goodput.measure, joined_run.start), goodput.COLUMNS
        ),
        "flower_goodput": Part(
            "Goodput of Flower with the same kills",
            partial(goodput.measure, flower_run.start, seeds=goodput.SEEDS[:1]),
            goodput.COLUMNS,
        ),
        "simulated_goodput": Part(
            "Goodput with simulated crashes",
            simulated_goodput.measure,
            goodput.COLUMNS,
            timed=False,
        ),
    },
    ["melisma", "numpy"],
)
run = BENCHMARK.run

"""Training without an orchestrator: accuracy, the effect of the lag d, growth, and live nodes."""

from collections.abc import Callable

from benchmarks.harness import environments
from benchmarks.harness.parts import Benchmark, Part, Results, cell
from benchmarks.harness.targets import Target
from benchmarks.peer import live_nodes, simulated_nodes
from benchmarks.peer.simulated_nodes import KINDS, LAGS, SIZES

AET, EVENT, BATCH_1 = "AET-SGD", "event-triggered", "batch 1"


def _points_below(row: str, reference: str) -> Callable[[Results], float]:
    """Return a function that subtracts the accuracy of `row` from that of `reference`."""
    return lambda part: cell(reference, "accuracy %")(part) - cell(row, "accuracy %")(part)


def _times_fewer(row: str, reference: str, column: str) -> Callable[[Results], float]:
    return lambda part: cell(reference, column)(part) / cell(row, column)(part)


def _slowdown(kind: str) -> Callable[[Results], float]:
    """Return a function that finds the largest slowdown in percent from a d to a larger one."""

    def figure(part: Results) -> float:
        seconds = [cell(f"{kind}, d = {d}", "seconds")(part) for d in LAGS]
        best, worst = seconds[0], 0.0
        for time_s in seconds[1:]:
            worst, best = max(worst, 100 * (time_s / best - 1)), min(best, time_s)
        return worst

    return figure


def _growth(shape: str) -> Callable[[Results], float]:
    """Return a function that divides the unit cost of the largest size by that of the smallest."""
    column = "us per round, node and edge"
    return lambda part: (
        cell(f"{shape}, {SIZES[-1]:,}", column)(part) / cell(f"{shape}, {SIZES[0]:,}", column)(part)
    )


PARTS = {
    "accuracy": Part(
        "The same number of samples, ring of five",
        simulated_nodes.accuracy,
        simulated_nodes.ACCURACY,
        (
            Target("points below event-triggered SGD", _points_below(AET, EVENT), 0.5),
            Target(
                "the same, batch 1", _points_below(f"{AET}, {BATCH_1}", f"{EVENT}, {BATCH_1}"), 0.5
            ),
            Target(
                "8 bits: bytes fewer", _times_fewer(f"{AET}, 8 bits", AET, "MB sent"), least=3.5
            ),
            Target("8 bits: points lost", _points_below(f"{AET}, 8 bits", AET), 0.2),
        ),
        timed=False,
    ),
    "lag": Part(
        "d from 0 to 10",
        simulated_nodes.lag,
        simulated_nodes.LAG,
        tuple(
            Target(f"{kind}: slower for a larger d", _slowdown(kind), 0, unit="%") for kind in KINDS
        ),
        timed=False,
    ),
    "growth": Part(
        "Simulated nodes",
        simulated_nodes.growth,
        simulated_nodes.GROWTH,
        tuple(
            Target(f"{shape}: 1,000 / 125 nodes", _growth(shape), 1.25, unit="x")
            for shape in simulated_nodes.GRAPHS
        ),
    ),
    "live": Part("Five live nodes", live_nodes.measure, live_nodes.COLUMNS),
}
BENCHMARK = Benchmark("decentralised", PARTS, ["melisma", "numpy", "torch"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    pinned = {"p2pfl": environments.pinned_packages(live_nodes.P2PFL)}
    return {**BENCHMARK.run(quick, only), "pinned": pinned}

"""Training without an orchestrator: what it comes to, what d brings, how it grows, live."""

from collections.abc import Callable

from benchmarks.harness import environments
from benchmarks.harness.parts import Benchmark, Found, Part, cell
from benchmarks.harness.targets import Target
from benchmarks.peer import live_nodes, simulated_nodes
from benchmarks.peer.simulated_nodes import KINDS, LAGS, SIZES

AET, EVENT, ONE = "AET-SGD", "event-triggered", "batch 1"


def _apart(one: str, other: str) -> Callable[[Found], float]:
    """By how many points the first is below the other."""
    return lambda part: cell(other, "accuracy %")(part) - cell(one, "accuracy %")(part)


def _fewer(one: str, other: str, column: str) -> Callable[[Found], float]:
    return lambda part: cell(other, column)(part) / cell(one, column)(part)


def _slower(kind: str) -> Callable[[Found], float]:
    """How much slower any d is than a smaller one, at most, in percent."""

    def figure(part: Found) -> float:
        seconds = [cell(f"{kind}, d = {d}", "seconds")(part) for d in LAGS]
        best, worst = seconds[0], 0.0
        for each in seconds[1:]:
            worst, best = max(worst, 100 * (each / best - 1)), min(best, each)
        return worst

    return figure


def _grown(shape: str) -> Callable[[Found], float]:
    """What a round costs for each node and edge, largest by smallest."""
    column = "us a round, node and edge"
    return lambda part: (
        cell(f"{shape}, {SIZES[-1]:,}", column)(part) / cell(f"{shape}, {SIZES[0]:,}", column)(part)
    )


PARTS = {
    "accuracy": Part(
        "The same number of samples, ring of five",
        simulated_nodes.accuracy,
        simulated_nodes.ACCURACY,
        (
            Target("points below event-triggered SGD", _apart(AET, EVENT), 0.5),
            Target("the same, batch 1", _apart(f"{AET}, {ONE}", f"{EVENT}, {ONE}"), 0.5),
            Target("8 bits: bytes fewer", _fewer(f"{AET}, 8 bits", AET, "MB sent"), least=3.5),
            Target("8 bits: points lost", _apart(f"{AET}, 8 bits", AET), 0.2),
        ),
        timed=False,
    ),
    "lag": Part(
        "d from 0 to 10",
        simulated_nodes.lag,
        simulated_nodes.LAG,
        tuple(
            Target(f"{kind}: slower for a larger d", _slower(kind), 0, unit="%") for kind in KINDS
        ),
        timed=False,
    ),
    "growth": Part(
        "Simulated nodes",
        simulated_nodes.growth,
        simulated_nodes.GROWTH,
        tuple(
            Target(f"{shape}: 1,000 nodes by 125", _grown(shape), 1.25, unit="x")
            for shape in simulated_nodes.GRAPHS
        ),
    ),
    "live": Part("Five live nodes", live_nodes.measure, live_nodes.COLUMNS),
}
BENCHMARK = Benchmark("decentralised", PARTS, ["melisma", "numpy", "torch"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts; print them; return what goes to the JSON file."""
    pinned = {"p2pfl": environments.pinned(live_nodes.P2PFL)}
    return {**BENCHMARK.run(quick, only), "pinned": pinned}

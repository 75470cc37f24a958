"""What a simulation costs and how true it is, beside Flower's, pfl-research and a plain loop."""

from collections.abc import Callable

from benchmarks import environments, simulation_live, simulation_million, simulation_updates
from benchmarks.parts import Benchmark, Found, Part, cell
from benchmarks.wanted import Wanted


def _beside(peer: str, setting: tuple[str, int]) -> Callable[[Found], float]:
    """Times as many updates of ours as of a peer, in the fastest way that it was run."""

    def figure(part: Found) -> float:
        among = simulation_updates.LOOKED_AT if part["quick"] else simulation_updates.CONTESTANTS
        ways = [way for way in among if way.startswith(peer)]
        rows = [part["rows"][simulation_updates.name_of(way, setting)] for way in ways]
        return min(float(row["ours / theirs"]) for row in rows)

    return figure


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
            Wanted(f"{row} learners", cell(row, "seconds"), 60, unit="s"),
            Wanted(f"{row} learners, memory", cell(row, "peak GB"), 4, unit="GB"),
            Wanted(f"{kind}, seconds a learner, 10⁶ beside 10⁵", _grown(kind), 1.5, unit="x"),
        ]
    return tuple(found)


def _live() -> tuple[Wanted, ...]:
    settings = simulation_live.SETTINGS
    times = (
        Wanted(f"cycle times of {name}, median error", cell(name, "median error %"), 5, unit="%")
        for name in settings
    )
    plans = (
        Wanted(
            f"cycles of {name} with the same plans",
            cell(name, "same plans"),
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
BENCHMARK = Benchmark("simulation", PARTS, ["melisma", "numpy", "torch"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts; print them; return what goes to the JSON file."""
    pinned = {
        "Flower": environments.pinned(simulation_updates.FLOWER),
        "pfl-research": environments.pinned(simulation_updates.PFL),
    }
    return {**BENCHMARK.run(quick, only), "pinned": pinned}

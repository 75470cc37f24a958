"""What a simulation costs and how true it is, beside Flower's, pfl-research and a plain loop."""

from collections.abc import Callable

from benchmarks.harness import environments
from benchmarks.harness.parts import Benchmark, Found, Part, cell
from benchmarks.harness.targets import Target
from benchmarks.simulation import live_beside_simulated, million, updates


def _beside(peer: str, setting: tuple[str, int]) -> Callable[[Found], float]:
    """Times as many updates of ours as of a peer, in the fastest way that it was run."""

    def figure(part: Found) -> float:
        among = updates.LOOKED_AT if part["quick"] else updates.CONTESTANTS
        ways = [way for way in among if way.startswith(peer)]
        rows = [part["rows"][updates.name_of(way, setting)] for way in ways]
        return min(float(row["ours / theirs"]) for row in rows)

    return figure


def _grown(kind: str) -> Callable[[Found], float]:
    return lambda part: million.growth(kind, part)


def _updates() -> tuple[Target, ...]:
    return tuple(
        Target(
            updates.name_of(f"beside {peer}", setting),
            _beside(peer, setting),
            least=least,
            unit="x",
        )
        for setting in updates.settings()
        for peer, least in updates.WANTED.items()
    )


def _million() -> tuple[Target, ...]:
    found: list[Target] = []
    for kind in million.KINDS:
        row = million.name_of(kind, million.SIZES[-1])
        found += [
            Target(f"{row} learners", cell(row, "seconds"), 60, unit="s"),
            Target(f"{row} learners, memory", cell(row, "peak GB"), 4, unit="GB"),
            Target(f"{kind}, seconds a learner, 10⁶ beside 10⁵", _grown(kind), 1.5, unit="x"),
        ]
    return tuple(found)


def _live() -> tuple[Target, ...]:
    settings = live_beside_simulated.SETTINGS
    times = (
        Target(f"cycle times of {name}, median error", cell(name, "median error %"), 5, unit="%")
        for name in settings
    )
    plans = (
        Target(
            f"cycles of {name} with the same plans",
            cell(name, "same plans"),
            least=live_beside_simulated.CYCLES,
        )
        for name, setting in settings.items()
        if not setting.fine
    )
    return (*times, *plans)


PARTS = {
    "updates": Part(
        "Learner updates a second",
        updates.measure,
        updates.COLUMNS,
        _updates(),
    ),
    "million": Part(
        "Up to a million learners",
        million.measure,
        million.COLUMNS,
        _million(),
    ),
    "live": Part(
        "Live beside simulated",
        live_beside_simulated.measure,
        live_beside_simulated.COLUMNS,
        _live(),
    ),
}
BENCHMARK = Benchmark("simulation", PARTS, ["melisma", "numpy", "torch"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts; print them; return what goes to the JSON file."""
    pinned = {
        "Flower": environments.pinned(updates.FLOWER),
        "pfl-research": environments.pinned(updates.PFL),
    }
    return {**BENCHMARK.run(quick, only), "pinned": pinned}

"""Cost and accuracy of simulations, compared with Flower, pfl-research and a plain loop."""

from collections.abc import Callable

from benchmarks.harness import environments
from benchmarks.harness.parts import Benchmark, Part, Results, cell
from benchmarks.harness.targets import Target
from benchmarks.simulation import fleets, live_and_simulated, million, updates


def _speedup(competitor: str, setting: tuple[str, int]) -> Callable[[Results], float]:
    """Return a function that compares Melisma with the fastest mode of a competitor."""

    def figure(part: Results) -> float:
        contestants = updates.QUICK_CONTESTANTS if part["quick"] else updates.CONTESTANTS
        modes = [name for name in contestants if name.startswith(competitor)]
        rows = [part["rows"][updates.name_of(mode, setting)] for mode in modes]
        return min(float(row["melisma / this"]) for row in rows)

    return figure


def _growth(kind: str) -> Callable[[Results], float]:
    return lambda part: million.growth(kind, part)


def _updates() -> tuple[Target, ...]:
    return tuple(
        Target(
            updates.name_of(f"compared with {competitor}", setting),
            _speedup(competitor, setting),
            least=least,
            unit="x",
        )
        for setting in updates.settings()
        for competitor, least in updates.MIN_SPEEDUPS.items()
    )


def _million() -> tuple[Target, ...]:
    targets: list[Target] = []
    for kind in million.KINDS:
        for variant in ("", million.NOISY):
            row = million.name_of(kind, million.SIZES[-1], variant)
            targets += [
                Target(f"{row}, time", cell(row, "seconds"), 60, unit="s"),
                Target(f"{row}, memory", cell(row, "peak GB"), 4, unit="GB"),
            ]
        growth = f"{kind}, seconds per learner, 10⁶ / 10⁵"
        targets.append(Target(growth, _growth(kind), 1.5, unit="x"))
    return tuple(targets)


def _live() -> tuple[Target, ...]:
    settings = live_and_simulated.SETTINGS
    times = (
        Target(f"cycle times of {name}, median error", cell(name, "median error %"), 5, unit="%")
        for name in settings
    )
    plans = (
        Target(
            f"cycles of {name} with the same plans",
            cell(name, "same plans"),
            least=live_and_simulated.CYCLES,
        )
        for name, setting in settings.items()
        if not setting.fine
    )
    return (*times, *plans)


def _visits() -> tuple[Target, ...]:
    return tuple(
        Target(
            f"visits of a learner in a cycle, {name}, median error",
            cell(name, live_and_simulated.VISITS_ERROR),
            5,
            unit="%",
        )
        for name in live_and_simulated.DEFAULT_SETTINGS
    )


def _fleets() -> tuple[Target, ...]:
    return tuple(
        target
        for name in fleets.SETTINGS
        for target in (
            Target(
                f"{name}, capacity used",
                cell(name, fleets.CAPACITY),
                least=fleets.LEAST_CAPACITY,
                unit="%",
            ),
            Target(
                f"{name}, cycles by the deadline + 1 %",
                cell(name, fleets.PUNCTUAL),
                least=fleets.LEAST_PUNCTUAL,
                unit="%",
            ),
            Target(
                f"{name}, outside cycles", cell(name, fleets.OUTSIDE), fleets.MOST_OUTSIDE, unit="%"
            ),
        )
    )


PARTS = {
    "updates": Part(
        "Learner updates per second",
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
        "Live and simulated runs by the rules of the papers",
        live_and_simulated.measure,
        live_and_simulated.COLUMNS,
        _live(),
    ),
    "visits": Part(
        "Live and simulated runs by the default rules",
        live_and_simulated.measure_visits,
        live_and_simulated.VISITS_COLUMNS,
        _visits(),
    ),
    "fleets": Part(
        "Unlike devices by the default rules",
        fleets.measure,
        fleets.COLUMNS,
        _fleets(),
        timed=False,
    ),
}
BENCHMARK = Benchmark("simulation", PARTS, ["melisma", "numpy", "torch"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    pinned = {
        "Flower": environments.pinned_packages(updates.FLOWER),
        "pfl-research": environments.pinned_packages(updates.PFL),
    }
    return {**BENCHMARK.run(quick, only), "pinned": pinned}

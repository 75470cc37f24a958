"""Targets of benchmarks, and the targets of planning."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Results = Mapping[str, Any]
REACHED, MISSED = "reached", "**not reached**"


class Target(NamedTuple):
    """A figure with an upper or a lower limit."""

    title: str
    figure: Callable[[Results], float]
    most: float | None = None
    least: float | None = None
    unit: str = ""

    def row(self, results: Results) -> str:
        """Return the target as a row of a table."""
        figure = self.figure(results)
        limit = self.most if self.least is None else self.least
        assert limit is not None
        holds = figure <= limit if self.least is None else figure >= limit
        sign = "≤" if self.least is None else "≥"
        measured = f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}"
        outcome = REACHED if holds else MISSED
        return f"| {self.title} | {measured} {self.unit} | {sign} {limit:g} | {outcome} |"


def table(results: Results) -> str:
    """Return all targets of planning; `results` has the results of staleness, med and feel."""
    return "\n".join(
        [
            "| figure | measured | target | |",
            "|---|--:|--:|---|",
            *(target.row(results) for target in TARGETS),
        ]
    )


def _staleness(kind: str, size: str, column: str) -> Callable[[Results], float]:
    return lambda results: float(results["staleness"]["kinds"][kind][size][column])


def _med(row: str, column: str) -> Callable[[Results], float]:
    return lambda results: float(results["med"]["melisma"][row][column])


def _gurobi(results: Results) -> float:
    figures = results["med"]["competitors"]["10 x 3"]
    return float(figures["gurobi"]["median ms"] / figures["melisma"]["median ms"])


def _feel(size: str, column: str) -> Callable[[Results], float]:
    return lambda results: float(results["feel"]["sizes"][size][column])


def _as_stated(results: Results) -> float:
    figures = results["feel"]["sizes"]["100"]
    return float(figures["SLSQP, as stated ms"] / figures["exact ms"])


BOUNDS = "bounds and held shards"
TARGETS = [
    Target("staleness, 10⁶ learners", _staleness("free", "1,000,000", "exact ms"), 1000, unit="ms"),
    Target(
        "staleness, 10⁶ learners with bounds and held shards",
        _staleness(BOUNDS, "1,000,000", "exact ms"),
        1000,
        unit="ms",
    ),
    Target(
        "staleness, memory of the process",
        lambda results: float(results["staleness"]["process_peak_mb"]),
        500,
        unit="MB",
    ),
    Target(
        "staleness, 100 learners, compared with the relaxation as the paper states it",
        _staleness("free", "100", "as stated / exact"),
        least=100,
        unit="x",
    ),
    Target(
        "the same with bounds and held shards",
        _staleness(BOUNDS, "100", "as stated / exact"),
        least=100,
        unit="x",
    ),
    Target(
        "staleness, 100 learners, compared with `numerical`",
        _staleness("free", "100", "numerical / exact"),
        least=100,
        unit="x",
    ),
    Target("MED, 10 x 3, proven optimal", _med("10 x 3, mean budget", "median ms"), 200, unit="ms"),
    Target("MED, 10 x 3, compared with Gurobi", _gurobi, least=10, unit="x"),
    Target("MED, 20 x 3, proven optimal", _med("20 x 3, mean budget", "median ms"), 500, unit="ms"),
    Target(
        "MED, 20 x 5, proven optimal", _med("20 x 5, mean budget", "median ms"), 1000, unit="ms"
    ),
    Target(
        "MED, 30 x 3, proven optimal", _med("30 x 3, mean budget", "median ms"), 2000, unit="ms"
    ),
    Target("MED, 100 x 5 in 30 s", _med("100 x 5, mean budget", "largest gap %"), 1, unit="%"),
    Target(
        "MED, 100 x 5 in 30 s, tight budget, median",
        _med("100 x 5, tight budget", "gap %"),
        2,
        unit="%",
    ),
    Target(
        "MED, 100 x 5 in 30 s, tight budget, largest",
        _med("100 x 5, tight budget", "largest gap %"),
        2,
        unit="%",
    ),
    Target(
        "MED, 1,000 x 10 in 60 s, one problem",
        _med("1000 x 10, mean budget", "gap %"),
        1.5,
        unit="%",
    ),
    Target(
        "MED, 1,000 x 10 in 60 s, tight budget, one problem",
        _med("1000 x 10, tight budget", "gap %"),
        3,
        unit="%",
    ),
    Target("FEEL, 100,000 devices, whole batches", _feel("100,000", "whole ms"), 1000, unit="ms"),
    Target(
        "FEEL, 100 devices, compared with SLSQP on the paper's problem",
        _as_stated,
        least=100,
        unit="x",
    ),
    Target(
        "FEEL, 100 devices, compared with SLSQP with slots eliminated",
        _feel("100", "fastest solver / exact"),
        least=100,
        unit="x",
    ),
]

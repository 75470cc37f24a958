"""Targets of melisma.axon, as ratios between figures of one run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Rows = Mapping[str, Mapping[str, float]]

MELISMA = ("melisma.axon, inline", "melisma.axon, threads")
GRPC = ("gRPC sync", "gRPC aio")
ORIGINAL = ("axon-ECRG 0.2.4", "axon-ECRG 0.2.4, Flask 2.2")
CODEC = ("Axon codec, asyncio streams", "Axon codec, asyncio sockets")


@dataclass(frozen=True)
class Target:
    """A limit on a figure divided by the best of some competitors, or by a number."""

    title: str
    column: str
    reference: tuple[str, ...] | float
    bound: float
    at_most: bool = False

    def ratio(self, rows: Rows, system: str) -> float | None:
        """Return the ratio, or None if a figure is missing."""
        figure, reference = rows.get(system, {}).get(self.column), self._reference_figure(rows)
        return round(figure / reference, 3) if figure is not None and reference else None

    def holds(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound

    def _reference_figure(self, rows: Rows) -> float | None:
        if isinstance(self.reference, int | float):
            return self.reference
        best: Callable[..., float] = min if self.at_most else max
        competitors = [rows[name] for name in self.reference if name in rows]
        figures = [row[self.column] for row in competitors if self.column in row]
        return best(figures) if figures else None


ARRAY_MB = 100
TARGETS = [
    Target("small call / best gRPC", "median µs", GRPC, 0.6, at_most=True),
    Target("small call / best gRPC, stretch", "median µs", GRPC, 0.4, at_most=True),
    Target("small call / original", "median µs", ORIGINAL, 0.2, at_most=True),
    Target("calls/s of 64 callers / best gRPC", "64 callers/s", GRPC, 1.5),
    Target("echo of 10 MB / best gRPC", "10 MB", GRPC, 1.3),
    Target("echo of 100 MB / best gRPC", "100 MB", GRPC, 1.2),
    Target("echo of 10 MB / original", "10 MB", ORIGINAL, 10),
    Target("echo of 100 MB / original", "100 MB", ORIGINAL, 10),
    Target("echo of 10 MB / Axon codec over TCP", "10 MB", CODEC, 0.7),
    Target("echo of 100 MB / Axon codec over TCP", "100 MB", CODEC, 0.7),
    Target("peak server memory / array of 100 MB", "peak MB", ARRAY_MB, 2.5, at_most=True),
    Target("idle worker, MB", "idle MB", 1, 50, at_most=True),
    Target("import melisma.axon, ms", "import ms", 1, 250, at_most=True),
]


def compare(rows: Rows) -> list[dict[str, object]]:
    """Return ratio, bound and outcome of each target for each row of Melisma."""
    compared: list[dict[str, object]] = []
    for target in TARGETS:
        for system in filter(rows.__contains__, MELISMA):
            ratio = target.ratio(rows, system)
            compared.append(
                {
                    "title": target.title,
                    "system": system,
                    "ratio": ratio,
                    "bound": f"{'at most' if target.at_most else 'at least'} {target.bound:g}",
                    "reached": None if ratio is None else target.holds(ratio),
                }
            )
    return compared

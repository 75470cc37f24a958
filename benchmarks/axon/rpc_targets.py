"""What melisma.axon has to reach, as ratios between figures of one run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Rows = Mapping[str, Mapping[str, float]]

OURS = ("melisma.axon, inline", "melisma.axon, threads")
GRPC = ("gRPC sync", "gRPC aio")
ORIGINAL = ("axon-ECRG 0.2.4", "axon-ECRG 0.2.4, Flask 2.2")
CODEC = ("our codec, asyncio streams", "our codec, asyncio sockets")


@dataclass(frozen=True)
class Target:
    """Our figure divided by the best of some peers, or by a plain number, against a bound."""

    title: str
    column: str
    beside: tuple[str, ...] | float
    bound: float
    at_most: bool = False

    def ratio(self, rows: Rows, ours: str) -> float | None:
        """None if a figure is missing."""
        figure, reference = rows.get(ours, {}).get(self.column), self._reference(rows)
        return round(figure / reference, 3) if figure is not None and reference else None

    def holds(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound

    def _reference(self, rows: Rows) -> float | None:
        if isinstance(self.beside, int | float):
            return self.beside
        best: Callable[..., float] = min if self.at_most else max
        peers = [rows[name] for name in self.beside if name in rows]
        figures = [row[self.column] for row in peers if self.column in row]
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
    Target("echo of 10 MB / our codec over TCP", "10 MB", CODEC, 0.7),
    Target("echo of 100 MB / our codec over TCP", "100 MB", CODEC, 0.7),
    Target("peak server memory / array of 100 MB", "peak MB", ARRAY_MB, 2.5, at_most=True),
    Target("idle worker, MB", "idle MB", 1, 50, at_most=True),
    Target("import melisma.axon, ms", "import ms", 1, 250, at_most=True),
]


def compare(rows: Rows) -> list[dict[str, object]]:
    """Each target for each of our rows: the ratio, the bound, and whether it is reached."""
    compared: list[dict[str, object]] = []
    for target in TARGETS:
        for ours in filter(rows.__contains__, OURS):
            ratio = target.ratio(rows, ours)
            compared.append(
                {
                    "target": target.title,
                    "ours": ours,
                    "ratio": ratio,
                    "bound": f"{'at most' if target.at_most else 'at least'} {target.bound:g}",
                    "reached": None if ratio is None else target.holds(ratio),
                }
            )
    return compared

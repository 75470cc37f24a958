"""Rate of averaging updates, compared with a plain `a += w * b` over the same bytes.

Melisma reads updates from files, which are in the page cache as at the end of a cycle, and adds in
double precision, chunk by chunk, into one new model. The plain sum has all updates in memory, as
whole arrays of single precision, with one temporary array for each step, and adds to an existing
array. *From files* is the same plain sum over files that were memory-mapped beforehand. All run in
one thread, in turn; rates are bytes of updates divided by the median time.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.learning.aggregation import SpooledUpdate, UpdateSpool, weighted_mean
from melisma.learning.parameters import Layout

UPDATES, FLOATS, REPEATS = 8, 10_000_000, 15
# One array, and the layers of a network: few large ones, many small ones.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one array": [(FLOATS,)],
    "60 layers": [(1_000, 495)] * 20 + [(2_475,)] * 40,
}
COLUMNS = ["ms", "GB/s", "of plain %"]


def measure(quick: bool) -> dict[str, Any]:
    """Return rows for each layout of the same bytes."""
    rows: dict[str, dict[str, float]] = {}
    for name, shapes in SHAPES.items():
        with TemporaryDirectory(prefix="benchmark-mean-") as folder:
            layout_rows = _measure_layout(Path(folder), shapes, 3 if quick else REPEATS)
        rows |= {f"{way}, {name}": row for way, row in layout_rows.items()}
    return {"rows": rows, "own_s": 0.0}


def _measure_layout(
    folder: Path, shapes: Sequence[tuple[int, ...]], times: int
) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(0)
    updates = [_update(shapes, rng) for _ in range(UPDATES)]
    layout, weights = Layout.from_arrays(updates[0]), [1.0 / UPDATES] * UPDATES
    spool = UpdateSpool(folder, layout)
    pairs = enumerate(zip(weights, updates, strict=True))
    spooled = [SpooledUpdate(k, w, spool.add(str(k), u)) for k, (w, u) in pairs]
    mapped = [_map_update(layout, each) for each in spooled]
    ways: dict[str, Callable[[], object]] = {
        "melisma": lambda: weighted_mean(layout, spooled),
        "plain": _plain_sum(updates, weights),
        "plain, from files": _plain_sum(mapped, weights),
    }
    taken_s: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(times + 1):
        for way, work in ways.items():
            began_s = time.perf_counter()
            work()
            if number:
                taken_s[way].append(time.perf_counter() - began_s)
    _check_mean(weighted_mean(layout, spooled), updates)
    return _rows(taken_s, UPDATES * layout.size_bytes)


def _rows(taken_s: dict[str, list[float]], total_bytes: int) -> dict[str, dict[str, float]]:
    median_s = {way: statistics.median(each) for way, each in taken_s.items()}
    return {
        way: {
            "ms": round(seconds * 1e3, 1),
            "GB/s": round(total_bytes / seconds / 1e9, 3),
            "of plain %": round(100 * median_s["plain"] / seconds, 1),
        }
        for way, seconds in median_s.items()
    }


def _update(
    shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    return {
        f"layer {number:02}": rng.random(shape, dtype=np.float32)
        for number, shape in enumerate(shapes)
    }


def _map_update(layout: Layout, spooled: SpooledUpdate) -> dict[str, NDArray[Any]]:
    return {
        field.name: np.memmap(spooled.path, field.dtype, "r", field.start, field.shape)
        for field in layout.fields
    }


def _plain_sum(
    updates: Sequence[dict[str, NDArray[Any]]], weights: Sequence[float]
) -> Callable[[], object]:
    total = {name: np.zeros(array.shape, array.dtype) for name, array in updates[0].items()}

    def work() -> object:
        for array in total.values():
            array[...] = 0.0
        for update, weight in zip(updates, weights, strict=True):
            for name in total:
                total[name] += weight * update[name]
        return total

    return work


def _check_mean(mean: dict[str, NDArray[Any]], updates: Sequence[dict[str, NDArray[Any]]]) -> None:
    for name, array in mean.items():
        if not np.allclose(array, np.mean([each[name] for each in updates], axis=0), atol=1e-6):
            raise RuntimeError(f"the mean of {name} is wrong")

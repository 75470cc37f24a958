"""The weighted mean of updates, from files, in a fixed order and bounded memory.

Each update is written to its own file when it arrives, then renamed atomically, so that a killed
process or a power cut leaves only complete updates. At the end of a cycle the updates are averaged
in learner order, chunk by chunk, in double precision: the result does not depend on arrival order.

Of each update its change counts, relative to the parameters that it began with, times a scale: 1
unless the guard reduced it. A late update began with older parameters P_k than those of its
average, P. With its share s of all weights and its scale f, an update u adds
s * (P + f * (u - P_k)).

Only floating-point arrays are averaged. Integer and boolean arrays, such as index tables and
counters, have no mean, and to take them from one update would let one learner choose them: they
stay as they are in the model.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.atomic import make_durable_folder, replace_durably
from melisma.errors import DataError
from melisma.learning.parameters import Arrays, Layout
from melisma.private_files import open_private

CHUNK_NUMBERS = 1 << 15  # numbers per chunk: with their float64 copy they fit in the CPU cache


@dataclass(frozen=True)
class SpooledUpdate:
    """An update on disk, its weight in the mean, and the factor for its change."""

    learner: int
    weight: float
    path: Path
    scale: float = 1.0


class UpdateSpool:
    """Updates in one folder, one file each."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        make_durable_folder(folder)

    def path(self, name: str) -> Path:
        """Return the file of an update."""
        return self._folder / f"{name}.update"

    def add(self, name: str, update: Arrays) -> Path:
        """Write an update; raise `DataError` if it does not fit the model or is not finite."""
        self._layout.check(update)
        for key, array in update.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{key} holds numbers that are not finite")
        path = self.path(name)
        part = path.with_suffix(".part")
        with open_private(part, "wb") as file:
            for field in self._layout.fields:
                file.write(np.ascontiguousarray(update[field.name], field.dtype).data)
            file.flush()
            os.fsync(file.fileno())
        replace_durably(part, path)
        return path


@dataclass(frozen=True)
class _TypeRun:
    """Consecutive arrays of one dtype, averaged as one array."""

    dtype: np.dtype[Any]
    start: int
    end: int

    @property
    def size(self) -> int:
        return (self.end - self.start) // self.dtype.itemsize


def weighted_mean(layout: Layout, updates: Sequence[SpooledUpdate]) -> dict[str, NDArray[Any]]:
    """Return the weighted mean of floating-point arrays; others are 0.

    Each update is multiplied by its scale; `add_parameters` adds the rest of its share, and
    the other arrays.
    """
    ordered = sorted(updates, key=lambda update: update.learner)
    total = sum(update.weight for update in ordered)
    if not total > 0:
        raise DataError(
            f"the weights of {len(ordered)} updates sum to {total}; expected a sum above 0"
        )
    shares = [(update.path, update.scale * (update.weight / total)) for update in ordered]
    block = bytearray(layout.size_bytes)
    for run in _float_runs(layout):
        _average(run, np.frombuffer(block, run.dtype, run.size, run.start), shares)
    return layout.unpack(block)


class RunningMean:
    """The weighted mean of updates in memory, added in groups.

    It equals `weighted_mean` up to rounding. The shares of all updates sum to 1. Each update is
    multiplied by its scale, and `add_parameters` adds the rest of its share. Updates with
    non-finite numbers are excluded and counted.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._added_share = layout, 0.0
        self.excluded, self.excluded_share = 0, 0.0
        self._sums = {f.name: np.zeros(f.shape) for f in layout.fields if f.dtype.kind == "f"}

    def add(
        self,
        shares: NDArray[np.float64],
        updates: Arrays,
        scales: NDArray[np.float64] | float = 1.0,
    ) -> NDArray[np.bool_]:
        """Add a group of updates, stacked along the first axis of every array.

        Return which of them are finite.
        """
        scaled, finite = shares * scales, np.ones(shares.size, np.bool_)
        sums = {name: np.einsum("i,i...->...", scaled, updates[name]) for name in self._sums}
        if not all(np.isfinite(total).all() for total in sums.values()):
            rows = [np.isfinite(updates[name]).reshape(shares.size, -1).all(1) for name in sums]
            finite = np.logical_and.reduce(rows)
        if not finite.all():
            self.excluded += int((~finite).sum())
            self.excluded_share += float(shares[~finite].sum())
            if finite.any():
                rest = {name: array[finite] for name, array in updates.items()}
                self.add(shares[finite], rest, np.broadcast_to(scales, shares.shape)[finite])
            return finite
        for name, total in sums.items():
            self._sums[name] += total
        self._added_share += float(scaled.sum())
        return finite

    def leave_out(self, share: float) -> None:
        """Leave out updates with this share, which are not added; they are not counted either."""
        self.excluded_share += share

    def merge(self, other: "RunningMean") -> None:
        """Add everything that was added to `other`."""
        for name in self._sums:
            self._sums[name] += other._sums[name]
        self.excluded += other.excluded
        self.excluded_share += other.excluded_share
        self._added_share += other._added_share

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the mean of the updates added; arrays other than floating-point are 0."""
        sums = self._sums
        if self.excluded_share:
            sums = {name: total / (1 - self.excluded_share) for name, total in sums.items()}
        return {
            field.name: np.array(sums[field.name], field.dtype)
            if field.name in sums
            else np.zeros(field.shape, field.dtype)
            for field in self._layout.fields
        }

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        return sum(array.nbytes for array in self._sums.values())

    def __bool__(self) -> bool:
        """Whether any update was added."""
        return self._added_share > 0


@dataclass(frozen=True)
class StartShares:
    """The updates that began with the same parameters: their share, and that of their changes.

    Without a guard both are equal. `start` is None for the parameters of the average itself.
    """

    share: float
    scaled_share: float
    start: Arrays | None


def add_parameters(
    mean: Arrays, present: Arrays, groups: Sequence[StartShares]
) -> dict[str, NDArray[Any]]:
    """Return the mean of changes of the present parameters, from the mean of scaled updates.

    Of each group the present parameters are added by its share, and those that it began with are
    subtracted by its scaled share. Arrays other than floating-point are the present ones.
    """
    shifts = [group for group in groups if group.start is not None]
    kept = sum(g.share - g.scaled_share for g in groups if g.start is None)
    shifted = {
        name: array if array.dtype.kind == "f" else present[name] for name, array in mean.items()
    }
    if not shifts and not kept:
        return shifted
    for name, array in mean.items():
        if array.dtype.kind == "f":
            moved, now = array.astype(np.float64), present[name].astype(np.float64)
            moved += kept * now
            for group in shifts:
                assert group.start is not None
                moved += group.scaled_share * (now - group.start[name])
                moved += (group.share - group.scaled_share) * now
            shifted[name] = moved.astype(array.dtype)
    return shifted


def _float_runs(layout: Layout) -> list[_TypeRun]:
    runs: list[_TypeRun] = []
    for field in layout.fields:
        if runs and runs[-1].dtype == field.dtype:
            runs[-1] = replace(runs[-1], end=field.end)
        else:
            runs.append(_TypeRun(field.dtype, field.start, field.end))
    return [run for run in runs if run.size and run.dtype.kind == "f"]


def _average(run: _TypeRun, target: NDArray[Any], shares: list[tuple[Path, float]]) -> None:
    sources = [
        (np.memmap(path, run.dtype, "r", run.start, (run.size,)), share) for path, share in shares
    ]
    double, scaled = np.empty(CHUNK_NUMBERS), np.empty(CHUNK_NUMBERS)
    for start in range(0, run.size, CHUNK_NUMBERS):
        end = min(start + CHUNK_NUMBERS, run.size)
        total, part = double[: end - start], scaled[: end - start]
        total[:] = 0.0
        for source, share in sources:
            # Convert before multiplying: the product would otherwise have single precision.
            part[:] = source[start:end]
            part *= share
            total += part
        target[start:end] = total

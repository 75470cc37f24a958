"""The weighted mean of updates, from files, in a fixed order and bounded memory.

An update is written to a file of its own as it arrives, and gets its name by an atomic rename: a
kill at any instant leaves whole updates only. At the end of a cycle they are averaged in the order
of learners, chunk by chunk, in double precision: the result does not depend on who came first.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning.parameters import Arrays, Layout

CHUNK_NUMBERS = 1 << 15  # numbers at a time: with their double they stay in the processor's cache


@dataclass(frozen=True)
class SpooledUpdate:
    """An update on disk, and what it weighs."""

    learner: int
    weight: float
    path: Path


class UpdateSpool:
    """The updates of one cycle, one file each, in a folder of their own."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, learner: int, update: Arrays) -> Path:
        """Keep an update; `DataError` if it does not fit the model or holds what is no number."""
        self._layout.check(update)
        for name, array in update.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{name} holds numbers that are not finite")
        path = self._folder / f"{learner:09}.update"
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            for field in self._layout.fields:
                file.write(np.ascontiguousarray(update[field.name], field.dtype).data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        return path


@dataclass(frozen=True)
class _TypeRun:
    """Neighbouring arrays of one type, which are averaged as one."""

    dtype: np.dtype[Any]
    start: int
    end: int

    @property
    def size(self) -> int:
        return (self.end - self.start) // self.dtype.itemsize


def weighted_mean(layout: Layout, updates: Sequence[SpooledUpdate]) -> dict[str, NDArray[Any]]:
    """The mean by weight; whole numbers are those of the heaviest update, the first of equals."""
    ordered = sorted(updates, key=lambda each: each.learner)
    total = sum(each.weight for each in ordered)
    if not total > 0:
        raise DataError("no update has any weight")
    heaviest = max(ordered, key=lambda each: each.weight)
    whole = bytearray(layout.size_bytes)
    for run in _type_runs(layout):
        target = np.frombuffer(whole, run.dtype, run.size, run.start)
        if run.dtype.kind == "f":
            _average(run, target, [(each.path, each.weight / total) for each in ordered])
        else:
            target[:] = np.fromfile(heaviest.path, run.dtype, run.size, offset=run.start)
    return layout.unpack(whole)


class RunningMean:
    """The same, to rounding, of updates in memory, of which some at a time are added.

    Their shares sum to one. Updates that hold what is no finite number are left out, and counted.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._heaviest = layout, 0.0
        self.excluded, self._excluded_share = 0, 0.0
        self._sums = {f.name: np.zeros(f.shape) for f in layout.fields if f.dtype.kind == "f"}
        self._whole = {
            f.name: np.zeros(f.shape, f.dtype) for f in layout.fields if f.dtype.kind != "f"
        }

    def add(self, shares: NDArray[np.float64], some: Arrays) -> None:
        """Some updates, which every array has on its first axis."""
        sums = {name: np.einsum("i,i...->...", shares, some[name]) for name in self._sums}
        if not all(np.isfinite(total).all() for total in sums.values()):
            rows = [np.isfinite(some[name]).reshape(shares.size, -1).all(1) for name in sums]
            sound = np.logical_and.reduce(rows)
            self.excluded += int((~sound).sum())
            self._excluded_share += float(shares[~sound].sum())
            if sound.any():
                self.add(shares[sound], {name: array[sound] for name, array in some.items()})
            return
        for name, total in sums.items():
            self._sums[name] += total
        first = int(shares.argmax())
        self._take_if_heaviest(
            float(shares[first]), {name: some[name][first] for name in self._whole}
        )

    def merge(self, other: "RunningMean") -> None:
        """What was added to another one, after what was added to this."""
        for name in self._sums:
            self._sums[name] += other._sums[name]
        self.excluded += other.excluded
        self._excluded_share += other._excluded_share
        self._take_if_heaviest(other._heaviest, other._whole)

    def result(self) -> dict[str, NDArray[Any]]:
        """The mean."""
        sums = self._sums
        if self._excluded_share:
            sums = {name: total / (1 - self._excluded_share) for name, total in sums.items()}
        found = {**sums, **self._whole}
        return {
            field.name: np.array(found[field.name], field.dtype) for field in self._layout.fields
        }

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        return sum(array.nbytes for array in (*self._sums.values(), *self._whole.values()))

    def __bool__(self) -> bool:
        """Whether any update is in it."""
        return self._heaviest > 0

    def _take_if_heaviest(self, share: float, whole: Arrays) -> None:
        """Whole numbers are those of the heaviest."""
        if share > self._heaviest:
            self._heaviest = share
            self._whole = {name: np.array(array) for name, array in whole.items()}


def _type_runs(layout: Layout) -> list[_TypeRun]:
    runs: list[_TypeRun] = []
    for field in layout.fields:
        if runs and runs[-1].dtype == field.dtype:
            runs[-1] = replace(runs[-1], end=field.end)
        else:
            runs.append(_TypeRun(field.dtype, field.start, field.end))
    return [run for run in runs if run.size]


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
            # First doubled in width, then weighed: the product itself would be of single precision.
            part[:] = source[start:end]
            part *= share
            total += part
        target[start:end] = total

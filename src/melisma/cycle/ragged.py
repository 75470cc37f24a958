"""Rows of unequal length in two arrays, so that a million rows need no million objects."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import NO_INTS, Ints

# Learners per block: as many as fit their columns into a processor's cache.
BLOCK = 1 << 15


class RaggedArray(msgspec.Struct, frozen=True, eq=False):
    """The length of each row, and the values of all rows one after another."""

    counts: Ints
    values: Ints

    @classmethod
    def from_rows(cls, rows: Iterable[Ints]) -> "RaggedArray":
        """Build from separate rows."""
        parts = [np.asarray(row, dtype=np.int64) for row in rows]
        values = np.concatenate(parts) if parts else NO_INTS
        return cls(np.array([part.size for part in parts], dtype=np.int64), values)

    def __len__(self) -> int:
        return self.counts.size

    def __getitem__(self, row: int) -> Ints:
        end = int(self.counts[: row + 1].sum())
        return self.values[end - int(self.counts[row]) : end]

    def __iter__(self) -> Iterator[Ints]:
        return iter(np.split(self.values, np.cumsum(self.counts)[:-1]) if len(self) else [])

    @property
    def starts(self) -> Ints:
        """The index in `values` at which each row begins."""
        starts: Ints = np.cumsum(self.counts) - self.counts
        return starts

    @property
    def row_ids(self) -> Ints:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), self.counts)

    def row_sums(self, values: NDArray[np.int64]) -> Ints:
        """Sum other values, in the order of `values`, by row."""
        upto = np.zeros(values.size + 1, np.int64)
        np.cumsum(values, out=upto[1:])
        return np.diff(upto[np.cumsum(self.counts)], prepend=0)

    def take(self, rows: Ints) -> "RaggedArray":
        """Return the given rows in the given order."""
        if rows.size == len(self) and np.array_equal(rows, np.arange(rows.size)):
            return self
        counts = self.counts[rows]
        return RaggedArray(counts, self.values[concatenate_ranges(self.starts[rows], counts)])

    def select(self, selected: NDArray[np.bool_]) -> "RaggedArray":
        """Return those values of each row that are selected."""
        return RaggedArray(self.row_sums(selected.astype(np.int64)), self.values[selected])

    def blocks(self) -> Iterator[tuple[slice, "RaggedArray"]]:
        """Yield slices of up to `BLOCK` rows, each with its part of the array."""
        upto = np.concatenate([[0], np.cumsum(self.counts)])
        for rows in blocks(len(self)):
            counts = self.counts[rows]
            first, last = upto[rows.start], upto[rows.start + counts.size]
            yield rows, RaggedArray(counts, self.values[first:last])


def concatenate_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return range(start, start + count) of each pair, one after another."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return numbers


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of up to `BLOCK` that cover range(count)."""
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))


NO_ROWS = RaggedArray(NO_INTS, NO_INTS)

"""Rows of unequal length in two arrays, so that a million of them are no million objects."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
BLOCK = 1 << 15


class RaggedArray(msgspec.Struct, frozen=True, eq=False):
    """How many numbers each row has, and all of them, one row behind the other."""

    counts: Ints
    values: Ints

    @classmethod
    def of(cls, rows: Iterable[Ints]) -> "RaggedArray":
        """From rows one by one."""
        parts = [np.asarray(row, dtype=np.int64) for row in rows]
        flat = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return cls(np.array([part.size for part in parts], dtype=np.int64), flat)

    def __len__(self) -> int:
        return self.counts.size

    def __getitem__(self, place: int) -> Ints:
        end = int(self.counts[: place + 1].sum())
        return self.values[end - int(self.counts[place]) : end]

    def __iter__(self) -> Iterator[Ints]:
        return iter(np.split(self.values, np.cumsum(self.counts)[:-1]) if len(self) else [])

    @property
    def starts(self) -> Ints:
        """Where in `flat` each row begins."""
        starts: Ints = np.cumsum(self.counts) - self.counts
        return starts

    @property
    def row_ids(self) -> Ints:
        """For each number the row that it is in."""
        return np.repeat(np.arange(len(self)), self.counts)

    def row_sums(self, values: NDArray[np.int64]) -> Ints:
        """For each row the sum of as many values as it has numbers, in the order of `flat`."""
        upto = np.concatenate([[0], np.cumsum(values)])
        sums: Ints = upto[self.starts + self.counts] - upto[self.starts]
        return sums

    def take(self, places: Ints) -> "RaggedArray":
        """These rows alone, in this order."""
        counts = self.counts[places]
        return RaggedArray(counts, self.values[concatenate_ranges(self.starts[places], counts)])

    def blocks(self) -> Iterator[tuple[slice, "RaggedArray"]]:
        """Some rows at a time, as `blocks` has them, and which they are."""
        upto = np.concatenate([[0], np.cumsum(self.counts)])
        for some in blocks(len(self)):
            counts = self.counts[some]
            first, last = upto[some.start], upto[some.start + counts.size]
            yield some, RaggedArray(counts, self.values[first:last])


def concatenate_ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers of all spans one behind the other: `starts`, and so many from each."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return numbers


def blocks(count: int) -> Iterator[slice]:
    """So many learners, some at a time: as many as a processor's cache can hold columns of."""
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))


NO_ROWS = RaggedArray(np.empty(0, np.int64), np.empty(0, np.int64))

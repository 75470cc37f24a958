"""The shards that learners were given in a cycle, as far as they still belong to their plans."""

from dataclasses import dataclass, replace

import numpy as np

from melisma.cycle.coverage import Coverage
from melisma.cycle.ragged import RaggedArray, concatenate_ranges
from melisma.fleet.array_types import Bools, Ints
from melisma.runs.assignments import Small


@dataclass(frozen=True, eq=False)
class GivenShards:
    """The shards of dispatches or extensions, a row for each learner and attempt.

    Arrays are shared with the command that gave the shards, as a million learners have millions.
    Indices are those of `shards.values`.
    """

    learners: Ints
    attempts: Ints
    shards: RaggedArray
    by_extension: Bools

    def join(self, later: "GivenShards") -> "GivenShards":
        """Return the shards of both, in the order of giving."""
        counts, values = (
            np.concatenate([getattr(given.shards, name) for given in (self, later)])
            for name in ("counts", "values")
        )
        return GivenShards(
            np.concatenate([self.learners, later.learners]),
            np.concatenate([self.attempts, later.attempts]),
            RaggedArray(counts, values),
            np.concatenate([self.by_extension, later.by_extension]),
        )

    def extensions(self) -> "GivenShards":
        """Return only the shards of extensions: late updates may still not cover them."""
        rows = np.flatnonzero(self.by_extension)
        return GivenShards(
            self.learners[rows],
            self.attempts[rows],
            self.shards.take(rows),
            self.by_extension[rows],
        )

    def owners(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return the learner that each of these shards was given to, and the attempt."""
        rows = np.searchsorted(np.cumsum(self.shards.counts), indices, side="right")
        return self.learners[rows], self.attempts[rows]

    def indices_of(self, learners: Ints, shards: RaggedArray) -> Ints:
        """Return the indices of shards in the row of their learner."""
        rows = np.flatnonzero(np.isin(self.learners, learners))
        own, indices = self.shards.take(rows), self._indices_in(rows)
        wanted = _keys(learners[shards.row_ids], shards.values)
        return indices[np.isin(_keys(self.learners[rows][own.row_ids], own.values), wanted)]

    def indices_between(self, learners: Ints | Small, above: Ints | Small, upto: Small) -> Ints:
        """Return the indices of shards with attempts above one number of a learner, up to another.

        Other learners have no such shards.
        """
        count = int(max(learners.max(initial=-1), self.learners.max(initial=-1))) + 1
        above_first, above_last = (
            Coverage(count, learners, last).excludes(self.learners, self.attempts)
            for last in (above, upto)
        )
        return self._indices_in(np.flatnonzero(above_first & ~above_last))

    def without(self, indices: Ints) -> "GivenShards":
        """Return all shards but these."""
        if not indices.size:
            return self
        kept = np.ones(self.shards.values.size, np.bool_)
        kept[indices] = False
        return replace(self, shards=self.shards.select(kept))

    def _indices_in(self, rows: Ints) -> Ints:
        return concatenate_ranges(self.shards.starts[rows], self.shards.counts[rows])


def _keys(learners: Ints, shards: Ints) -> Ints:
    return learners << 32 | shards

"""The shards that each learner was given in a cycle, as far as they still belong to its plan."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.coverage import Coverage
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import NO_INTS, Ints
from melisma.runs.assignments import Small

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class GivenShards:
    """Columns with one row for each shard that a learner was given, in the order of giving."""

    learner: Ints
    attempt: Ints
    shard: Ints
    by_extension: Bools

    def __len__(self) -> int:
        return self.shard.size

    def add(
        self, learners: Ints, attempts: Ints, shards: RaggedArray, *, by_extension: bool
    ) -> "GivenShards":
        """Add the shards of a dispatch or an extension."""
        rows = shards.row_ids
        new = GivenShards(
            learners[rows], attempts[rows], shards.values, np.full(rows.size, by_extension)
        )
        return new if not len(self) else self._concatenate(new)

    def extensions(self) -> "GivenShards":
        """Return only the shards of extensions: late updates may still not cover them."""
        return self.take(self.by_extension)

    def take(self, rows: Bools | Ints) -> "GivenShards":
        """Return the given rows."""
        return GivenShards(
            self.learner[rows], self.attempt[rows], self.shard[rows], self.by_extension[rows]
        )

    def rows_of(self, learners: Ints, shards: RaggedArray) -> Bools:
        """Return which rows are shards in the row of their learner."""
        wanted = _keys(learners[shards.row_ids], shards.values)
        rows: Bools = np.isin(_keys(self.learner, self.shard), wanted)
        return rows

    def rows_between(self, learners: Ints | Small, above: Ints | Small, upto: Small) -> Bools:
        """Return which rows are of learners, with attempts above one number, up to another."""
        count = int(max(learners.max(initial=-1), self.learner.max(initial=-1))) + 1
        above_first, above_last = (
            Coverage(count, learners, last).excludes(self.learner, self.attempt)
            for last in (above, upto)
        )
        return above_first & ~above_last

    def _concatenate(self, other: "GivenShards") -> "GivenShards":
        return GivenShards(
            np.concatenate([self.learner, other.learner]),
            np.concatenate([self.attempt, other.attempt]),
            np.concatenate([self.shard, other.shard]),
            np.concatenate([self.by_extension, other.by_extension]),
        )


def _keys(learners: Ints, shards: Ints) -> Ints:
    return learners << 32 | shards


NO_SHARDS = GivenShards(NO_INTS, NO_INTS, NO_INTS, np.empty(0, np.bool_))

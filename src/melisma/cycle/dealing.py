"""Which shards go to whom, once it is decided how many.

One seeded permutation of all shards is gone round and round, from cycle to cycle: every shard is
seen before any is seen again. What a cycle takes is the next stretch of it. No learner gets a
shard twice in a cycle: a stretch no longer than the data has none twice. As far as no shard is
taken twice at all, a learner gets those of the stretch first that it already holds.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Deck:
    """All shards in their order, and where the next stretch begins."""

    order: Ints
    place: int = 0

    @classmethod
    def shuffled(cls, shards: int, rng: Generator) -> "Deck":
        """So many shards in a random order."""
        return cls(rng.permutation(shards).astype(np.int64))

    def ahead(self, count: int) -> Ints:
        """So many shards that come next."""
        return self.order[(self.place + np.arange(count)) % max(self.order.size, 1)]

    def deal(
        self, counts: Ints, held: Mapping[int, Set[int]] | None = None
    ) -> tuple["Deck", list[Ints]]:
        """The deck after this, and for each learner so many shards; none gets more than all."""
        total, size = int(counts.sum()), self.order.size
        if counts.size and int(counts.max()) > size:
            raise ValueError(f"a learner cannot get {counts.max()} of {size} shards")
        stretch = self.ahead(total)
        after = replace(self, place=(self.place + total) % max(size, 1))
        if held and total <= size:
            return after, _preferring(stretch, counts, held)
        return after, np.split(stretch, np.cumsum(counts)[:-1])


def _preferring(stretch: Ints, counts: Ints, held: Mapping[int, Set[int]]) -> list[Ints]:
    """First what each holds, as far as it has room; the rest in the order of the stretch."""
    free = dict.fromkeys(stretch.tolist())
    dealt: list[list[int]] = []
    for learner, count in enumerate(counts.tolist()):
        own = held.get(learner, frozenset())
        mine = [shard for shard in free if shard in own][:count] if own else []
        for shard in mine:
            del free[shard]
        dealt.append(mine)
    rest = iter(free)
    return [
        np.array(mine + [next(rest) for _ in range(count - len(mine))], dtype=np.int64)
        for mine, count in zip(dealt, counts.tolist(), strict=True)
    ]

"""Which shards each learner gets, once a plan says how many.

All shards are in one seeded permutation, the deck, that is dealt round and round from cycle to
cycle, so that every shard is dealt before any is dealt again. A cycle takes the next stretch of the
deck. No learner gets a shard twice in a deal. A learner first gets those shards of the stretch that
it already holds. If more shards are wanted than there are, all are dealt once; of the copies, too,
a learner gets those that it holds first.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator

from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.ragged import RaggedArray, concatenate_ranges
from melisma.fleet.array_types import NO_INTS, Bools, Ints

# Look numbers up in a table of up to this many bytes; with more, sorting needs less memory.
MAX_TABLE = 1 << 24


@dataclass(frozen=True, eq=False)
class Deck:
    """All shards in order, the position of the next one to deal, and positions to deal before it.

    `returned` are positions that were dealt, but not trained. A cache index for the deck has
    positions as keys, so that a stretch is a few ranges of keys.
    """

    shards: Ints
    position: int = 0
    returned: Ints = field(default_factory=lambda: NO_INTS)

    @classmethod
    def shuffle(cls, shards: int, rng: Generator) -> "Deck":
        """Return a deck of `shards` shards in random order."""
        return cls(rng.permutation(shards).astype(np.int64))

    def positions_of(self, shards: Ints) -> Ints:
        """Return the positions of shards."""
        positions = np.empty(self.shards.size, np.int64)
        positions[self.shards] = np.arange(self.shards.size)
        found: Ints = positions[shards]
        return found

    def return_shards(self, positions: Ints) -> "Deck":
        """Return a deck that deals these positions first."""
        return replace(self, returned=np.union1d(self.returned, positions))

    def upcoming(self, count: int, dealt: Bools | None = None) -> Ints:
        """Return the positions of the next `count` shards; at most those of the whole deck.

        Positions that are marked as `dealt` come last.
        """
        size = self.shards.size
        if not self.returned.size and dealt is None:
            return (self.position + np.arange(min(count, size))) % max(size, 1)
        ahead = (self.position + np.arange(size)) % max(size, 1)
        if self.returned.size:
            ahead = ahead[~np.isin(ahead, self.returned)]
            ahead = np.concatenate([self.returned, ahead])
        if dealt is not None:
            again = dealt[ahead]
            ahead = np.concatenate([ahead[~again], ahead[again]])
        return ahead[:count]

    def holders(self, stretch: Ints, learners: Ints, held: CacheIndex) -> tuple[Ints, Ints]:
        """Return pairs of a shard of the stretch and a learner that holds it.

        Both are indices: into the stretch, ascending, and into `learners`, which must be ascending.
        """
        if not stretch.size or not held.pairs.size:
            return NO_INTS, NO_INTS
        starts = np.flatnonzero(np.diff(stretch, prepend=-2) != 1)
        lengths = np.diff(starts, append=stretch.size)
        counts, shards, holders = held.in_ranges(stretch[starts], lengths)
        shards += np.repeat(starts - stretch[starts], counts)  # from positions to indices
        if learners.size == learners.max(initial=-1) + 1 > holders.max(initial=-1):
            return shards, holders  # of all learners
        indices = _index_in(learners, holders)
        known = indices >= 0
        return shards[known], indices[known]

    def deal(
        self,
        learners: Ints,
        counts: Ints,
        held: CacheIndex = EMPTY_CACHE,
        dealt_before: Bools | None = None,
    ) -> tuple["Deck", RaggedArray, RaggedArray]:
        """Deal `counts` shards to each learner.

        Returns the deck afterwards, the positions of each learner's shards, and of those among them
        that it does not hold yet. Positions marked in `dealt_before` are dealt last.
        """
        total, size = int(counts.sum()), self.shards.size
        if counts.size and int(counts.max()) > size:
            raise ValueError(f"a learner cannot get {counts.max()} of {size} shards")
        stretch = self.upcoming(total, dealt_before)
        shards, holders = self.holders(stretch, learners, held)
        if total <= size:
            keepers = match_holders(shards, holders, total, counts)
            new = _rest(stretch, keepers, counts)
            return self._after(stretch, dealt_before), _fill_up(stretch, keepers, new, counts), new
        # Each shard once, in equal parts of what learners want; then copies. The deck begins anew.
        once = np.diff(np.cumsum(counts) * size // total, prepend=0)
        keepers = match_holders(shards, holders, size, once)
        new = _rest(stretch, keepers, once)
        dealt = _fill_up(stretch, keepers, new, once)
        copies, new_copies = self._deal_copies(counts, dealt, stretch[shards], holders)
        return replace(self, returned=NO_INTS), _join(dealt, copies), _join(new, new_copies)

    def next_new(self, learners: Ints, counts: Ints, held: CacheIndex) -> RaggedArray:
        """Return the positions that learners would get in a deal and do not hold yet."""
        total = int(counts.sum())
        if total > self.shards.size:
            return self.deal(learners, counts, held)[2]
        stretch = self.upcoming(total)
        keepers = match_holders(*self.holders(stretch, learners, held), total, counts)
        return _rest(stretch, keepers, counts)

    def _deal_copies(
        self, counts: Ints, dealt: RaggedArray, positions: Ints, holders: Ints
    ) -> tuple[RaggedArray, RaggedArray]:
        """Deal copies of shards up to `counts`: those that a learner holds, then a run of the deck.

        `positions` and `holders` are pairs of a position and the learner that holds it.
        """
        size, starts = self.shards.size, self.position + np.cumsum(counts) - counts
        rest = counts - dealt.counts
        has = dealt.row_ids * size + dealt.values
        keys = counts.size * size
        other = ~_is_in(holders * size + positions, has, keys)
        held = _first_of_each(holders[other], positions[other], starts, size, rest)
        # A run has as many shards as its learner gets in all, so it is enough to fill up.
        run = concatenate_ranges(starts, counts) % size
        owners = np.repeat(np.arange(counts.size), counts)
        has = np.concatenate([has, held.row_ids * size + held.values])
        other = ~_is_in(owners * size + run, has, keys)
        new = _first_of_each(owners[other], run[other], starts, size, rest - held.counts)
        return _join(held, new), new

    def _after(self, stretch: Ints, dealt_before: Bools | None) -> "Deck":
        """Return the deck after this stretch was dealt."""
        ahead, returned = stretch, self.returned
        if dealt_before is not None:
            ahead = ahead[~dealt_before[ahead]]
        if returned.size:
            ahead = ahead[~np.isin(ahead, returned)]
            returned = returned[~np.isin(returned, stretch)]
        position = self.position
        if ahead.size:
            position = int(ahead[-1] + 1) % self.shards.size
        return replace(self, position=position, returned=returned)


def _is_in(numbers: Ints, others: Ints, count: int) -> Bools:
    """Return whether each number is among the others, all of them below `count`."""
    if count > MAX_TABLE:
        return np.isin(numbers, others)
    table = np.zeros(count, np.bool_)
    table[others] = True
    return table[numbers]


def _index_in(numbers: Ints, sought: Ints) -> Ints:
    """Return the index of each sought number in `numbers`, -1 where it is missing."""
    table = np.full(int(max(numbers.max(initial=0), sought.max(initial=0))) + 1, -1)
    table[numbers] = np.arange(numbers.size)
    indices: Ints = table[sought]
    return indices


def _first_of_each(
    owners: Ints, positions: Ints, starts: Ints, size: int, counts: Ints
) -> RaggedArray:
    """Return for each learner the first `counts` of its positions, from the start of its run."""
    order = np.lexsort(((positions - starts[owners]) % size, owners))
    owners, positions = owners[order], positions[order]
    nth = np.arange(owners.size) - np.searchsorted(owners, owners)
    first = nth < counts[owners]
    return RaggedArray(np.bincount(owners[first], minlength=counts.size), positions[first])


def _join(first: RaggedArray, second: RaggedArray) -> RaggedArray:
    """Return each row of the first array with the same row of the second after it."""
    rows = np.concatenate([first.row_ids, second.row_ids])
    values = np.concatenate([first.values, second.values])
    return RaggedArray(first.counts + second.counts, values[np.argsort(rows, kind="stable")])


def match_holders(shards: Ints, holders: Ints, size: int, counts: Ints) -> Ints:
    """Return for each of `size` shards a learner that holds it and has room for it, else -1.

    Pairs are sorted by shard. Each shard proposes to its holders in order; a learner keeps the
    first shards that propose to it, up to its count, and the others go on to their next holder.
    """
    proposals = np.bincount(shards, minlength=size)
    last = np.cumsum(proposals)
    proposal, keepers = last - proposals, np.full(size, -1)
    free = np.flatnonzero(proposals)
    while free.size:
        keepers[free] = holders[proposal[free]]
        rejected = _over_count(keepers, counts)
        keepers[rejected] = -1
        proposal[rejected] += 1
        free = rejected[proposal[rejected] < last[rejected]]
    return keepers


def _over_count(keepers: Ints, counts: Ints) -> Ints:
    """Return the shards beyond the count of their learner; the first ones are kept."""
    kept = np.flatnonzero(keepers >= 0)
    full = np.bincount(keepers[kept], minlength=counts.size) > counts
    if not full.any():
        return NO_INTS
    kept = kept[full[keepers[kept]]]
    kept = kept[np.argsort(keepers[kept], kind="stable")]
    first = np.searchsorted(keepers[kept], keepers[kept])
    return kept[np.arange(kept.size) - first >= counts[keepers[kept]]]


def _rest(stretch: Ints, keepers: Ints, counts: Ints) -> RaggedArray:
    """Return the shards without a keeper, in order, for learners that keep fewer than they get."""
    new = keepers < 0
    return RaggedArray(counts - np.bincount(keepers[~new], minlength=counts.size), stretch[new])


def _fill_up(stretch: Ints, keepers: Ints, rest: RaggedArray, counts: Ints) -> RaggedArray:
    """Return for each learner the shards that it keeps, then its part of the rest."""
    new = keepers < 0
    # Sort by learner, then kept before new, then position: one integer key for all three.
    keys = keepers * 2
    keys[new] = rest.row_ids * 2 + 1
    bits = keepers.size.bit_length()
    keys <<= bits
    keys |= np.arange(keepers.size)
    keys.sort()
    keys &= (1 << bits) - 1
    return RaggedArray(counts, stretch[keys])

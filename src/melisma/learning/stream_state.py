"""The place of a training in a `BatchStream`, so that another process can go on from there.

It holds numbers of samples and rows, not the samples: the shards that had arrived are delivered
again, in the same order.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class WorkItemState:
    """Passes over announced shards, of which the first `arrived` ones were there."""

    passes: int
    shard_samples: tuple[int, ...]
    arrived: int

    @property
    def rows(self) -> int:
        """The samples that have arrived."""
        return sum(self.shard_samples[: self.arrived])

    @property
    def planned_visits(self) -> int:
        """The visits of all passes over all announced shards."""
        return self.passes * sum(self.shard_samples)

    def keep(self, kept: Collection[int]) -> "WorkItemState":
        """Return the item with these shards only, by their place in it."""
        samples = tuple(self.shard_samples[place] for place in sorted(kept))
        return WorkItemState(self.passes, samples, sum(place < self.arrived for place in kept))

    def kept_rows(self, kept: Collection[int]) -> NDArray[np.bool_]:
        """Return for each row that has arrived whether it belongs to one of these shards."""
        arrived = self.shard_samples[: self.arrived]
        return np.repeat([place in kept for place in range(self.arrived)], arrived).astype(np.bool_)


@dataclass(frozen=True)
class StreamCounts:
    """The work items and counts of a stream, named as in `BatchStream`.

    `current` is the index of the item that is trained, `made` the visits made of it, and `shuffled`
    the number of its rows in the present pass. `withdrawn_visits` were made of shards that have
    been withdrawn since.
    """

    items: tuple[WorkItemState, ...]
    current: int
    made: int
    shuffled: int
    repeat_rows: int
    visits: int
    planned_visits: int
    work_item: int
    withdrawn_visits: int = 0


@dataclass(frozen=True, eq=False)
class StreamState:
    """The counts of a stream; the rows left in the pass, and those left in a repeated pass."""

    counts: StreamCounts
    order: Ints
    repeat_order: Ints

    def check(self) -> None:
        """Raise `DataError` unless a `BatchStream` can be in this state."""
        counts, order = self.counts, self.order
        items = counts.items
        announced = [len(item.shard_samples) for item in items]
        # Shards arrive in the order in which they were announced.
        arrived, left = [], sum(item.arrived for item in items)
        for count in announced:
            arrived.append(min(left, count))
            left -= arrived[-1]
        rows = items[counts.current].rows if 0 <= counts.current < len(items) else 0
        made = counts.made - (counts.shuffled - order.size)
        total = sum(item.rows for item in items)
        valid = (
            arrived == [item.arrived for item in items]
            and min([0, *(n for i in items for n in (i.passes, i.arrived, *i.shard_samples))]) >= 0
            and 0 <= counts.current <= len(items)
            and 0 <= counts.work_item <= len(items)
            and 0 <= counts.shuffled <= rows
            and made >= 0
            and (made % rows == 0 if rows else made == 0)
            and 0 <= counts.planned_visits <= counts.visits
            and 0 <= counts.withdrawn_visits <= counts.planned_visits
            and 0 <= counts.repeat_rows <= total
            and _are_rows(order, counts.shuffled)
            and _are_rows(self.repeat_order, counts.repeat_rows)
        )
        if not valid:
            raise DataError("the saved place in the batches is inconsistent")

    def keep_shards(self, kept: Mapping[int, Collection[int]]) -> "StreamState":
        """Return the state with these shards of each item only, by their place in it.

        Visits that were made of the others still count; none of theirs is left. Items that are not
        in `kept` lose all shards, but stay, so that the numbers of later ones do not change.
        """
        state, counts = self, self.counts
        for index, item in enumerate(counts.items):
            places = {*kept.get(index, ())}
            if len(places) < len(item.shard_samples):
                state = state._keep_of_item(index, places)
        return state

    def _keep_of_item(self, index: int, kept: Collection[int]) -> "StreamState":
        counts, order, repeat_order = self.counts, self.order, self.repeat_order
        item, rows = counts.items[index], counts.items[index].kept_rows(kept)
        changed = item.keep(kept)
        made, shuffled, withdrawn = counts.made, counts.shuffled, 0
        if index < counts.current:
            withdrawn = item.planned_visits - changed.planned_visits
        elif index == counts.current:
            passes = (made - (shuffled - order.size)) // item.rows if item.rows else 0
            order = (np.cumsum(rows) - 1)[order[rows[order]]]
            shuffled = int(rows[:shuffled].sum())
            made = passes * changed.rows + shuffled - order.size
            withdrawn = counts.made - made
        repeat_rows = counts.repeat_rows
        if changed.rows < item.rows:
            # Rows have other numbers now: the stream begins another repeated pass.
            repeat_order, repeat_rows = repeat_order[:0], 0
        items = (*counts.items[:index], changed, *counts.items[index + 1 :])
        counts = replace(
            counts,
            items=items,
            made=made,
            shuffled=shuffled,
            repeat_rows=repeat_rows,
            withdrawn_visits=counts.withdrawn_visits + withdrawn,
        )
        return StreamState(counts, order, repeat_order)


def _are_rows(rows: Ints, count: int) -> bool:
    """Return whether all are different indices below `count`."""
    in_range = not rows.size or (rows.min() >= 0 and rows.max() < count)
    return bool(rows.ndim == 1 and in_range and np.unique(rows).size == rows.size)

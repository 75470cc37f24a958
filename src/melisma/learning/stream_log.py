"""The changes of a `BatchStream` while it was used: with them, its batches follow from the seed.

Which rows a batch has depends on the shards that had arrived, and on the work that had been
announced, when it was requested. A stream notes both whenever they have changed. Another machine
that knows the shards then repeats the batches, and needs no samples for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from melisma.errors import DataError
from melisma.learning.batches import BatchStream, StreamChange
from melisma.learning.data.datasets import Split

Count = Annotated[int, Meta(ge=0, le=2**53)]


class ReportedChange(msgspec.Struct, frozen=True, array_like=True):
    """A `StreamChange` as a message."""

    batches: Count
    announced: tuple[Count, ...]
    arrived: Count


@dataclass(frozen=True)
class GivenWork:
    """Passes over shards, each with its number and its samples."""

    passes: int
    shards: Sequence[int]
    samples: Sequence[int]


class _Replay(BatchStream):
    """A stream that goes on at once where the other one waited."""

    def _wait(self) -> None:
        pass

    def set_announced(self, number: int, announced: int) -> None:
        """Withdraw the last shards of a work item, down to this number of shards."""
        item = self._work_items[number]
        if not item.shards <= announced <= len(item.shard_samples):
            raise DataError(f"work {number} has {announced} shards after it had other ones")
        item.shard_samples = item.shard_samples[:announced]

    @property
    def arrived(self) -> int:
        """The number of shards that have arrived."""
        return sum(item.shards for item in self._work_items)

    def deliver_next(self, works: Sequence[GivenWork]) -> None:
        """Deliver the next announced shard: pairs of its number and a row, instead of samples."""
        for work, item in zip(works, self._work_items, strict=False):
            if not item.is_complete:
                place = item.shards
                rows = np.arange(work.samples[place])
                shards = np.full(rows.size, work.shards[place])
                self.add_shard(Split(shards, rows))
                return
        raise DataError("more shards arrived than were announced")


def replay_batches(
    works: Sequence[GivenWork],
    changes: Sequence[StreamChange],
    size: int,
    rng: np.random.Generator,
    *,
    repeat: bool,
) -> Iterator[Split]:
    """Yield the batches of a stream, with numbers of shards as samples and rows as labels.

    Raise `DataError` for changes that no stream with this work can have had.
    """
    left, before = list(reversed(changes)), -1

    def stop() -> bool:
        nonlocal before
        made = stream.batches
        if left and left[-1].batches < made:
            raise DataError("the changes of a stream are not in order")
        if left and left[-1].batches == made:
            _apply(stream, works, left.pop())
        elif before == made:
            return True  # It would wait for a shard that never came.
        before = made
        return False

    stream = _Replay(size, rng, stop, repeat=repeat)
    yield from stream


def _apply(stream: _Replay, works: Sequence[GivenWork], change: StreamChange) -> None:
    """Announce, withdraw and deliver shards as a change says."""
    known = stream.item_count
    if not known <= len(change.announced) <= len(works):
        raise DataError(f"{len(change.announced)} items of work were announced; {len(works)} given")
    for number, announced in enumerate(change.announced):
        if number < known:
            stream.set_announced(number, announced)
            continue
        work = works[number]
        if announced > len(work.shards):
            raise DataError(f"work {number} has {announced} shards; {len(work.shards)} were given")
        stream.add_work(work.passes, work.samples[:announced])
    if not stream.arrived <= change.arrived <= sum(change.announced):
        raise DataError(f"{change.arrived} shards arrived, of {sum(change.announced)}")
    while stream.arrived < change.arrived:
        stream.deliver_next(works)

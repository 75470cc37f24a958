"""Batches of samples in random order, from shards that may still be arriving.

Each work item is a number of passes over some shards. The first pass of an item begins with its
first shard and shuffles the samples that have arrived; a batch is short only at the end of a pass.
If all shards are there before the first batch, batches are those of `batch_indices`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import concatenate
from melisma.learning.stream_state import StreamCounts, StreamState, WorkItemState

Ints = NDArray[np.int64]
NO_ROWS = np.empty(0, np.int64)
NO_SAMPLES = Split(np.empty(0), np.empty(0))
MAX_WAIT_S = 0.05  # a stream that waits for a shard calls `stop` at least this often


def never_stop() -> bool:
    """Return False."""
    return False


def batch_indices(samples: int, passes: int, size: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Yield the sample indices of each batch; every pass is in a new random order."""
    for _ in range(passes):
        order = rng.permutation(samples)
        yield from (order[start : start + size] for start in range(0, samples, size))


def batches_of(
    samples: Split,
    passes: int,
    size: int,
    rng: np.random.Generator,
    stop: Callable[[], bool] = never_stop,
) -> "BatchStream":
    """Return `passes` passes over the samples in batches; `stop` as in `BatchStream`."""
    stream = BatchStream(size, rng, stop)
    stream.add_work(passes, [len(samples)])
    stream.add_shard(samples)
    stream.close()
    return stream


@dataclass(frozen=True, eq=False)
class BatchPart:
    """Rows of arrays, of which the first `arrived` rows are there; these do not change."""

    source: Split
    rows: Ints
    arrived: int


class Batch(Split):
    """Samples and labels by their rows; copied when they are first read."""

    def __init__(self, parts: Sequence[BatchPart]) -> None:
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "_size", sum(part.rows.size for part in parts))

    parts: Sequence[BatchPart]
    _size: int

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _gathered(self) -> Split:
        splits = [part.source.take(part.rows) for part in self.parts]
        return splits[0] if len(splits) == 1 else concatenate(splits)

    @property
    def samples(self) -> NDArray[Any]:
        """The samples."""
        return self._gathered.samples

    @property
    def labels(self) -> NDArray[Any]:
        """The labels."""
        return self._gathered.labels


@dataclass(eq=False)
class _WorkItem:
    """Passes over shards. The first `rows` samples of `data` have arrived."""

    passes: int
    shard_samples: Sequence[int]
    shards: int = 0
    rows: int = 0
    data: Split = NO_SAMPLES

    @property
    def is_complete(self) -> bool:
        """Whether all shards have arrived."""
        return self.shards == len(self.shard_samples)

    @property
    def planned_visits(self) -> int:
        return self.passes * sum(self.shard_samples)

    def store(self, shard: Split) -> None:
        """Copy a shard behind those that have arrived; use a single shard as it is."""
        if len(self.shard_samples) == 1:
            self.data = shard
            return
        if not self.shards:
            total = sum(self.shard_samples)
            arrays = shard.samples, shard.labels
            self.data = Split(*(np.empty((total, *a.shape[1:]), a.dtype) for a in arrays))
        rows = slice(self.rows, self.rows + len(shard))
        self.data.samples[rows], self.data.labels[rows] = shard.samples, shard.labels


@dataclass(frozen=True)
class StreamChange:
    """The announced shards of each work item, and all that had arrived, after some batches."""

    batches: int
    announced: tuple[int, ...]
    arrived: int


class BatchStream:
    """An iterator of batches over work items, which one other thread may add meanwhile.

    `stop` is called when a batch is requested, and every `MAX_WAIT_S` while the stream waits for a
    shard; the iteration ends when it returns True. Without `repeat` the iteration also ends when
    all announced work is done, so announce work before the first batch is requested. With `repeat`
    it goes on with passes over all samples that have arrived, whenever no planned batch is ready.

    `rng` shuffles the samples; the trainer may draw from it, too.
    `visits` counts the samples of all batches, `planned_visits` those without repeats.
    `work_item` is the number of the latest item that a batch was taken from, 0 before. `waited_s`
    is the time spent waiting for shards, by the clock `now_s`. `changes` are those of the announced
    and arrived shards, as far as batches can depend on them.
    """

    def __init__(
        self,
        size: int,
        rng: np.random.Generator,
        stop: Callable[[], bool] = never_stop,
        *,
        repeat: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if size < 1:
            raise SettingError(f"batches have {size} samples; expected at least 1")
        self.visits = self.planned_visits = self.work_item = 0
        self.batches, self.changes = 0, list[StreamChange]()
        self.waited_s = 0.0
        self._size, self.rng, self._stop = size, rng, stop
        self._repeat, self._now_s = repeat, now_s
        self._changed = threading.Condition()
        self._work_items: list[_WorkItem] = []
        self._form: str | None = None
        self._closed = self._ended = False
        # The index of the item that is trained, and the visits made of it; the rows left in its
        # pass, and how many of its rows were shuffled into the pass so far.
        self._current, self._made = 0, 0
        self._order, self._shuffled = NO_ROWS, 0
        # The rows left in a repeated pass, counted through all items, and how many it covers.
        self._repeat_order, self._repeat_rows = NO_ROWS, 0
        self._withdrawn_visits = 0  # planned ones, of shards that a restored stream lost

    def add_work(self, passes: int, shard_samples: Sequence[int]) -> int:
        """Announce passes over shards with these numbers of samples; return the item's number."""
        with self._changed:
            if self._closed:
                raise SettingError("the stream is closed; add work before close()")
            self._work_items.append(_WorkItem(passes, tuple(shard_samples)))
            self._changed.notify()
            return len(self._work_items)

    def add_shard(self, shard: Split) -> None:
        """Deliver the next announced shard; raise `DataError` if it is not as announced."""
        with self._changed:
            item = next((item for item in self._work_items if not item.is_complete), None)
            self._check_shard(item, shard)
        assert item is not None
        # Without the lock: these rows are read only after `rows` has grown.
        item.store(shard)
        with self._changed:
            item.shards, item.rows = item.shards + 1, item.rows + len(shard)
            self._changed.notify()

    def withdraw_shards(self, count: int) -> None:
        """Withdraw the last `count` announced shards, which must not have arrived."""
        with self._changed:
            for item in reversed(self._work_items):
                fewer = min(count, len(item.shard_samples) - item.shards)
                kept = len(item.shard_samples) - fewer
                item.shard_samples, count = item.shard_samples[:kept], count - fewer
            if count:
                raise SettingError(f"{count} shards to withdraw have arrived or were not announced")
            self._changed.notify()

    def close(self) -> None:
        """State that no more work will be announced; announced shards may still arrive."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def state(self) -> StreamState:
        """Return the place of the stream; call between two batches, as in `stop`."""
        with self._changed:
            items = (
                WorkItemState(item.passes, tuple(item.shard_samples), item.shards)
                for item in self._work_items
            )
            counts = StreamCounts(
                items=tuple(items),
                current=self._current,
                made=self._made,
                shuffled=self._shuffled,
                repeat_rows=self._repeat_rows,
                visits=self.visits,
                planned_visits=self.planned_visits,
                work_item=self.work_item,
                withdrawn_visits=self._withdrawn_visits,
            )
            # The arrays are replaced, but never changed.
            return StreamState(counts, self._order, self._repeat_order)

    def restore(self, state: StreamState, shards: Iterable[Split]) -> None:
        """Go on from a state, before any work is added; `shards` are those that had arrived.

        With the random generator as it was then, the next batches are those of the former stream.
        Raise `DataError` for a state or shards that do not fit.
        """
        state.check()
        counts = state.counts
        for item in counts.items:
            self.add_work(item.passes, item.shard_samples)
        for shard in shards:
            self.add_shard(shard)
        with self._changed:
            if [item.shards for item in self._work_items] != [i.arrived for i in counts.items]:
                raise DataError("the shards are not those that had arrived in the saved stream")
            self._current, self._made, self._shuffled = counts.current, counts.made, counts.shuffled
            self._order, self._repeat_order = state.order, state.repeat_order
            self._repeat_rows, self._withdrawn_visits = counts.repeat_rows, counts.withdrawn_visits
            self.visits, self.planned_visits = counts.visits, counts.planned_visits
            self.work_item = counts.work_item

    @property
    def planned_visits_left(self) -> int:
        """Visits of announced work that were not made yet."""
        with self._changed:
            planned = sum(item.planned_visits for item in self._work_items)
            return planned - self._planned_visits_made

    @property
    def arrived_visits_left(self) -> int:
        """Planned visits that come before the first batch of work whose shards are missing."""
        with self._changed:
            arrived = takewhile(lambda item: item.is_complete, self._work_items)
            return max(sum(item.planned_visits for item in arrived) - self._planned_visits_made, 0)

    @property
    def _planned_visits_made(self) -> int:
        """Planned visits that were made of the shards of the stream."""
        return self.planned_visits - self._withdrawn_visits

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> Split:
        while not self._ended:
            if self._stop():
                self._ended = True
                break
            with self._changed:
                self._note_change()
                parts = self._take()
                if parts:
                    self.batches += 1
                    self.visits += sum(len(rows) for _, rows in parts)
                elif parts is None:
                    self._ended = True
                else:
                    self._wait()
            if parts:
                # Read without the lock: rows that have arrived do not change.
                return Batch([BatchPart(item.data, rows, item.rows) for item, rows in parts])
        raise StopIteration

    def _note_change(self) -> None:
        """Note which shards are announced and have arrived, if that has changed."""
        announced = tuple(len(item.shard_samples) for item in self._work_items)
        arrived = sum(item.shards for item in self._work_items)
        last = self.changes[-1] if self.changes else None
        if last is None or (last.announced, last.arrived) != (announced, arrived):
            self.changes.append(StreamChange(self.batches, announced, arrived))

    @property
    def item_count(self) -> int:
        """The number of work items that were announced."""
        return len(self._work_items)

    def _wait(self) -> None:
        began_s = self._now_s()
        self._changed.wait(MAX_WAIT_S)
        self.waited_s += self._now_s() - began_s

    def _take(self) -> list[tuple[_WorkItem, Ints]] | None:
        """Return the rows of the next batch by item; none to wait for a shard, None to end."""
        rows = self._take_planned()
        if rows.size:
            self.planned_visits += rows.size
            self.work_item = self._current + 1
            return [(self._work_items[self._current], rows)]
        if self._repeat and (parts := self._take_repeated()):
            return parts
        announced = self._current < len(self._work_items)
        return [] if announced or (self._repeat and not self._closed) else None

    def _take_planned(self) -> Ints:
        """Return the rows of the next planned batch, of the current item; none if not ready."""
        while self._current < len(self._work_items):
            item = self._work_items[self._current]
            if self._made == item.planned_visits:
                self._current, self._made, self._shuffled = self._current + 1, 0, 0
                continue
            self._shuffle(item)
            if self._order.size < self._size and not item.is_complete:
                break
            rows, self._order = self._order[: self._size], self._order[self._size :]
            self._made += rows.size
            return rows
        return NO_ROWS

    def _shuffle(self, item: _WorkItem) -> None:
        """Shuffle new rows among those left in the pass; start the next pass if it is over."""
        if item.is_complete and self._shuffled == item.rows and not self._order.size:
            self._shuffled = 0
        if self._shuffled < item.rows:
            rows = np.concatenate([self._order, np.arange(self._shuffled, item.rows)])
            self._order, self._shuffled = rows[self.rng.permutation(rows.size)], item.rows

    def _take_repeated(self) -> list[tuple[_WorkItem, Ints]]:
        """Return the next rows of a pass over all samples that have arrived."""
        total = sum(item.rows for item in self._work_items)
        if not self._repeat_order.size or self._repeat_rows != total:
            self._repeat_order, self._repeat_rows = self.rng.permutation(total), total
        rows, self._repeat_order = (
            self._repeat_order[: self._size],
            self._repeat_order[self._size :],
        )
        parts, first = [], 0
        for item in self._work_items:
            own = rows[(rows >= first) & (rows < first + item.rows)] - first
            parts += [(item, own)] if own.size else []
            first += item.rows
        return parts

    def _check_shard(self, item: _WorkItem | None, shard: Split) -> None:
        if item is None:
            raise DataError("a shard was delivered that was not announced; call add_work first")
        if len(shard) != (expected := item.shard_samples[item.shards]):
            raise DataError(f"a shard has {len(shard)} samples; {expected} were announced")
        form = _describe_form(shard)
        if form != (self._form or form):
            raise DataError(f"a shard has {form}; expected {self._form}, like the first shard")
        self._form = form


def _describe_form(split: Split) -> str:
    samples, labels = split.samples, split.labels
    return (
        f"samples {samples.dtype}{list(samples.shape[1:])} "
        f"and labels {labels.dtype}{list(labels.shape[1:])}"
    )

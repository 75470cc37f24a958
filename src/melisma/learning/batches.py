"""Batches of samples in random order, from shards that may still be arriving.

Work comes in grants: a number of passes over some shards. The first pass of a grant begins with
its first shard and shuffles the samples that have arrived; a batch is short only at the end of a
pass. If all shards are there before the first batch, batches are those of `batch_indices`.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import concatenate

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
class _Grant:
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


class BatchStream:
    """An iterator of batches over grants of shards, which one other thread may add meanwhile.

    `stop` is called when a batch is requested, and every `MAX_WAIT_S` while the stream waits for a
    shard; the iteration ends when it returns True. Without `repeat` the iteration also ends when
    all announced work is done, so announce work before the first batch is requested. With `repeat`
    it goes on with passes over all samples that have arrived, whenever no planned batch is ready.

    `visits` counts the samples of all batches, `planned_visits` those without repeats. `grant` is
    the number of the latest grant that a batch was taken from, 0 before. `waited_s` is the time
    spent waiting for shards, by the clock `now_s`.
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
        self.visits = self.planned_visits = self.grant = 0
        self.waited_s = 0.0
        self._size, self._rng, self._stop = size, rng, stop
        self._repeat, self._now_s = repeat, now_s
        self._changed = threading.Condition()
        self._grants: list[_Grant] = []
        self._form: str | None = None
        self._closed = self._ended = False
        # The index of the grant that is trained, and the visits made of it; the rows left in its
        # pass, and how many of its rows were shuffled into the pass so far.
        self._current, self._made = 0, 0
        self._order, self._shuffled = NO_ROWS, 0
        # The rows left in a repeated pass, counted through all grants, and how many it covers.
        self._repeat_order, self._repeat_rows = NO_ROWS, 0

    def add_work(self, passes: int, shard_samples: Sequence[int]) -> int:
        """Announce passes over shards with these numbers of samples; return the grant's number."""
        with self._changed:
            if self._closed:
                raise SettingError("the stream is closed; add work before close()")
            self._grants.append(_Grant(passes, tuple(shard_samples)))
            self._changed.notify()
            return len(self._grants)

    def add_shard(self, shard: Split) -> None:
        """Deliver the next announced shard; raise `DataError` if it is not as announced."""
        with self._changed:
            grant = next((grant for grant in self._grants if not grant.is_complete), None)
            self._check_shard(grant, shard)
        assert grant is not None
        # Without the lock: these rows are read only after `rows` has grown.
        grant.store(shard)
        with self._changed:
            grant.shards, grant.rows = grant.shards + 1, grant.rows + len(shard)
            self._changed.notify()

    def withdraw_shards(self, count: int) -> None:
        """Withdraw the last `count` announced shards, which must not have arrived."""
        with self._changed:
            for grant in reversed(self._grants):
                fewer = min(count, len(grant.shard_samples) - grant.shards)
                kept = len(grant.shard_samples) - fewer
                grant.shard_samples, count = grant.shard_samples[:kept], count - fewer
            if count:
                raise SettingError(f"{count} shards to withdraw have arrived or were not announced")
            self._changed.notify()

    def close(self) -> None:
        """State that no more work will be announced; announced shards may still arrive."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def planned_visits_left(self) -> int:
        """Visits of announced work that were not made yet."""
        with self._changed:
            return sum(grant.planned_visits for grant in self._grants) - self.planned_visits

    @property
    def arrived_visits_left(self) -> int:
        """Planned visits that come before the first batch of work whose shards are missing."""
        with self._changed:
            arrived = takewhile(lambda grant: grant.is_complete, self._grants)
            return max(sum(grant.planned_visits for grant in arrived) - self.planned_visits, 0)

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> Split:
        while not self._ended:
            if self._stop():
                self._ended = True
                break
            with self._changed:
                parts = self._take()
                if parts:
                    self.visits += sum(len(rows) for _, rows in parts)
                elif parts is None:
                    self._ended = True
                else:
                    self._wait()
            if parts:
                # Read without the lock: rows that have arrived do not change.
                return Batch([BatchPart(grant.data, rows, grant.rows) for grant, rows in parts])
        raise StopIteration

    def _wait(self) -> None:
        began_s = self._now_s()
        self._changed.wait(MAX_WAIT_S)
        self.waited_s += self._now_s() - began_s

    def _take(self) -> list[tuple[_Grant, Ints]] | None:
        """Return the rows of the next batch by grant; none to wait for a shard, None to end."""
        rows = self._take_planned()
        if rows.size:
            self.planned_visits += rows.size
            self.grant = self._current + 1
            return [(self._grants[self._current], rows)]
        if self._repeat and (parts := self._take_repeated()):
            return parts
        announced = self._current < len(self._grants)
        return [] if announced or (self._repeat and not self._closed) else None

    def _take_planned(self) -> Ints:
        """Return the rows of the next planned batch, of the current grant; none if not ready."""
        while self._current < len(self._grants):
            grant = self._grants[self._current]
            if self._made == grant.planned_visits:
                self._current, self._made, self._shuffled = self._current + 1, 0, 0
                continue
            self._shuffle(grant)
            if self._order.size < self._size and not grant.is_complete:
                break
            rows, self._order = self._order[: self._size], self._order[self._size :]
            self._made += rows.size
            return rows
        return NO_ROWS

    def _shuffle(self, grant: _Grant) -> None:
        """Shuffle new rows among those left in the pass; start the next pass if it is over."""
        if grant.is_complete and self._shuffled == grant.rows and not self._order.size:
            self._shuffled = 0
        if self._shuffled < grant.rows:
            rows = np.concatenate([self._order, np.arange(self._shuffled, grant.rows)])
            self._order, self._shuffled = rows[self._rng.permutation(rows.size)], grant.rows

    def _take_repeated(self) -> list[tuple[_Grant, Ints]]:
        """Return the next rows of a pass over all samples that have arrived."""
        total = sum(grant.rows for grant in self._grants)
        if not self._repeat_order.size or self._repeat_rows != total:
            self._repeat_order, self._repeat_rows = self._rng.permutation(total), total
        rows, self._repeat_order = (
            self._repeat_order[: self._size],
            self._repeat_order[self._size :],
        )
        parts, first = [], 0
        for grant in self._grants:
            own = rows[(rows >= first) & (rows < first + grant.rows)] - first
            parts += [(grant, own)] if own.size else []
            first += grant.rows
        return parts

    def _check_shard(self, grant: _Grant | None, shard: Split) -> None:
        if grant is None:
            raise DataError("a shard was delivered that was not announced; call add_work first")
        if len(shard) != (expected := grant.shard_samples[grant.shards]):
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

"""Batches visit each sample as often as planned, whenever its shard arrives."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import DataError, SettingError
from melisma.learning.batches import MAX_WAIT_S, BatchStream, batch_indices, batches_of
from melisma.learning.data.datasets import Split

# Passes and the samples of each shard.
Work = tuple[int, list[int]]
works = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 12), max_size=4)), max_size=4)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def split(first: int, size: int) -> Split:
    """Return samples that hold their numbers, from `first` on."""
    numbers = np.arange(first, first + size)
    return Split(np.repeat(numbers[:, None], 2, axis=1).astype(np.int32), numbers)


def splits(items: list[Work]) -> list[Split]:
    """Return the shards of the work items; samples are numbered through."""
    sizes = [size for _, shards in items for size in shards]
    starts = np.cumsum([0, *sizes])
    return [split(start, size) for start, size in zip(starts, sizes, strict=False)]


def planned_visits(items: list[Work]) -> Counter[int]:
    """Return how often each sample is to be visited."""
    visits: Counter[int] = Counter()
    first = 0
    for passes, shards in items:
        visits.update({first + row: passes for row in range(sum(shards)) if passes})
        first += sum(shards)
    return visits


def numbers(batch: Split) -> list[int]:
    """Return the numbers of the samples, which belong to their labels."""
    assert np.array_equal(batch.samples[:, 0], batch.labels)
    return [int(label) for label in batch.labels]


class Steps:
    """A `stop` that delivers shards at given calls, and ends the iteration at a last one."""

    def __init__(self, deliveries: dict[int, list[Callable[[], object]]], last: float) -> None:
        self.deliveries, self.last, self.calls = deliveries, last, 0

    def __call__(self) -> bool:
        self.calls += 1
        for deliver in self.deliveries.pop(self.calls - 1, []):
            deliver()
        return self.calls > self.last


@given(st.integers(0, 50), st.integers(0, 4), st.integers(1, 60), st.integers(0, 9))
def test_batch_indices_visit_each_sample_once_in_each_pass(
    samples: int, passes: int, size: int, seed: int
) -> None:
    batches = [*batch_indices(samples, passes, size, rng(seed))]
    assert all(0 < len(batch) <= size for batch in batches)
    rows = np.concatenate([*batches, np.empty(0, np.int64)])
    assert rows.dtype == np.int64
    for order in rows.reshape(passes, samples):
        assert sorted(order) == [*range(samples)]
    orders = rng(seed)
    expected = [row for _ in range(passes) for row in orders.permutation(samples)]
    assert rows.tolist() == expected


@given(
    st.integers(0, 3), st.lists(st.integers(0, 12), max_size=4), st.integers(1, 20), st.booleans()
)
def test_batches_of_shards_that_are_all_there_are_those_of_batch_indices(
    passes: int, shards: list[int], size: int, together: bool
) -> None:
    one, other = rng(), rng()
    samples = split(0, sum(shards))
    if together:
        stream = batches_of(samples, passes, size, one)
    else:
        stream = BatchStream(size, one)
        stream.add_work(passes, shards)
        for shard in splits([(passes, shards)]):
            stream.add_shard(shard)
    expected = [*batch_indices(len(samples), passes, size, other)]
    assert [numbers(batch) for batch in stream] == [rows.tolist() for rows in expected]
    assert one.random() == other.random()
    assert stream.visits == stream.planned_visits == passes * len(samples)
    assert stream.waited_s == 0


@given(works, st.integers(1, 15), st.data())
def test_each_sample_is_visited_in_every_pass_whenever_its_shard_arrives(
    items: list[Work], size: int, data: st.DataObject
) -> None:
    """Shards arrive when `stop` is called for certain times, before batches or during a wait."""
    shards = iter(splits(items))
    stream: BatchStream
    arrivals = sorted(data.draw(st.integers(0, 6)) for _, sizes in items for _ in sizes)
    deliveries: dict[int, list[Callable[[], object]]] = {}
    for at in arrivals:
        deliveries.setdefault(at, []).append(lambda: stream.add_shard(next(shards)))
    stop = Steps(deliveries, np.inf)
    stream = BatchStream(size, rng(), stop)
    for number, (passes, sizes) in enumerate(items):
        assert stream.add_work(passes, sizes) == number + 1
    planned = planned_visits(items)
    assert stream.planned_visits_left == planned.total()
    visits: Counter[int] = Counter()
    item_lengths: dict[int, list[int]] = {}
    while (batch := _next_without_sleep(stream)) is not None:
        visits.update(numbers(batch))
        item_lengths.setdefault(stream.work_item, []).append(len(batch))
        assert stream.visits == stream.planned_visits == visits.total()
        assert stream.planned_visits_left == planned.total() - visits.total()
        # A sample is not visited again before all samples of its work item were.
        own = [visits[sample] for sample in _samples_of(items, stream.work_item)]
        assert max(own) - min(own) <= 1
    assert visits == planned
    assert [*item_lengths] == sorted(item_lengths)
    for number, lengths in item_lengths.items():
        passes, sizes = items[number - 1]
        full, rest = divmod(sum(sizes), size)
        assert lengths == ([size] * full + [rest] * (rest > 0)) * passes


def _next_without_sleep(stream: BatchStream) -> Split | None:
    with mock.patch("melisma.learning.batches.MAX_WAIT_S", 0):
        return next(stream, None)


def _samples_of(items: list[Work], number: int) -> range:
    first = sum(sum(sizes) for _, sizes in items[: number - 1])
    return range(first, first + sum(items[number - 1][1]))


@given(works, st.integers(1, 15), st.integers(0, 12), st.booleans())
def test_a_stream_ends_when_stop_returns_true(
    items: list[Work], size: int, batches: int, repeat: bool
) -> None:
    stop = Steps({}, batches)
    stream = BatchStream(size, rng(), stop, repeat=repeat)
    for passes, sizes in items:
        stream.add_work(passes, sizes)
    for shard in splits(items):
        stream.add_shard(shard)
    stream.close()
    taken = [*stream]
    assert len(taken) <= batches
    assert [*stream] == []
    assert stop.calls <= batches + 1
    if repeat and splits(items) and max(map(len, splits(items))):
        assert len(taken) == batches
    assert stream.visits == sum(map(len, taken))
    assert stream.planned_visits + stream.planned_visits_left == planned_visits(items).total()


@given(works, st.integers(1, 15))
def test_repeats_come_after_all_planned_visits_and_cover_all_samples(
    items: list[Work], size: int
) -> None:
    total = sum(sum(sizes) for _, sizes in items)
    stream = BatchStream(size, rng(), repeat=True)
    for passes, sizes in items:
        stream.add_work(passes, sizes)
    for shard in splits(items):
        stream.add_shard(shard)
    stream.close()
    visits: Counter[int] = Counter()
    while stream.planned_visits_left:
        visits.update(numbers(next(stream)))
        assert stream.visits == stream.planned_visits
    assert visits == planned_visits(items)
    pass_batches = -(-total // size)
    for _ in range(2):
        repeated = [numbers(batch) for batch in islice(stream, pass_batches)]
        assert sorted(chain(*repeated)) == [*range(total)]
    assert stream.visits == stream.planned_visits + 2 * total
    if not total:
        assert next(stream, None) is None


def test_samples_are_shuffled_among_those_that_have_arrived() -> None:
    stop = Steps({1: [lambda: stream.add_shard(split(100, 100))]}, np.inf)
    stream = BatchStream(20, rng(), stop)
    stream.add_work(1, [100, 100])
    stream.add_shard(split(0, 100))
    first, second = set(numbers(next(stream))), set(numbers(next(stream)))
    assert max(first) < 100
    assert min(second) < 100 <= max(second)
    orders = []
    for seed in range(2):
        other = batches_of(split(0, 100), 1, 100, rng(seed))
        orders.append(numbers(next(other)))
    assert orders[0] != orders[1] != [*range(100)]


def test_a_batch_waits_for_the_next_shard_until_it_is_full() -> None:
    stream = BatchStream(8, rng(), Steps({3: [lambda: stream.add_shard(split(10, 10))]}, 99))
    stream.add_work(1, [10, 10])
    stream.add_shard(split(0, 10))
    assert len(next(stream)) == 8
    assert stream.waited_s == 0
    assert len(next(stream)) == 8
    # Two waits, of which nothing but the time limit woke it.
    assert stream.waited_s >= 2 * 0.9 * MAX_WAIT_S
    assert [len(batch) for batch in stream] == [4]


def test_a_stream_that_waits_calls_stop() -> None:
    stop = Steps({}, 4)
    stream = BatchStream(8, rng(), stop)
    stream.add_work(1, [10])
    began = time.monotonic()
    assert next(stream, None) is None
    assert stop.calls == 5
    assert time.monotonic() - began >= 4 * 0.9 * MAX_WAIT_S
    # It has ended: a shard that arrives later is not trained.
    stream.add_shard(split(0, 10))
    assert next(stream, None) is None
    assert stream.planned_visits_left == 10


def test_an_error_of_stop_reaches_the_trainer() -> None:
    def stop() -> bool:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        next(batches_of(split(0, 10), 1, 8, rng(), stop))


def test_repeats_fill_the_time_until_new_work_arrives() -> None:
    def announce() -> None:
        stream.add_work(1, [10, 10])

    arrivals: dict[int, list[Callable[[], object]]] = {
        # Announced, but nothing of it has arrived.
        4: [announce],
        6: [lambda: stream.add_shard(split(10, 10))],
        9: [lambda: stream.add_shard(split(20, 10))],
    }
    stream = BatchStream(8, rng(), Steps(arrivals, np.inf), repeat=True)
    assert stream.work_item == 0
    stream.add_work(1, [10])
    stream.add_shard(split(0, 10))
    taken = []
    for _ in range(14):
        before = stream.planned_visits
        batch = numbers(next(stream))
        taken.append((len(batch), stream.work_item, stream.planned_visits > before))
        # Samples that have not arrived are not visited.
        assert max(batch) < (10 if len(taken) < 7 else 20 if len(taken) < 10 else 30)
    assert taken == [
        *[(8, 1, True), (2, 1, True)],
        *[(8, 1, False), (2, 1, False)] * 2,
        (8, 2, True),  # the new shard, at once
        *[(8, 2, False)] * 2,  # two samples are not a batch: passes over 20 samples so far
        *[(8, 2, True), (4, 2, True)],
        *[(8, 2, False)] * 3,  # a pass over 30 samples
    ]
    assert stream.waited_s == 0


def test_a_repeating_stream_waits_for_its_first_samples_and_ends_when_there_will_be_none() -> None:
    stop = Steps({}, 99)
    stream = BatchStream(8, rng(), stop, repeat=True)
    stop.deliveries[1] = [stream.close]
    assert next(stream, None) is None
    # Announced shards are waited for even if the stream is closed.
    stream = BatchStream(
        8, rng(), Steps({1: [lambda: stream.add_shard(split(0, 10))]}, 99), repeat=True
    )
    stream.add_work(1, [10])
    stream.close()
    assert len(next(stream)) == 8


def test_work_that_arrives_during_the_last_pass_is_trained() -> None:
    def extend() -> None:
        stream.add_work(2, [4])
        stream.add_shard(split(10, 4))

    stream = BatchStream(8, rng(), Steps({1: [extend]}, np.inf))
    stream.add_work(1, [10])
    stream.add_shard(split(0, 10))
    assert [(len(batch), stream.work_item) for batch in stream] == [(8, 1), (2, 1), (4, 2), (4, 2)]


def test_without_announced_work_there_is_no_batch() -> None:
    assert [*BatchStream(8, rng())] == []


def test_shards_that_were_not_announced_are_refused() -> None:
    stream = BatchStream(8, rng())
    with pytest.raises(DataError, match="not announced; call add_work first"):
        stream.add_shard(split(0, 10))
    stream.add_work(1, [10, 10])
    with pytest.raises(DataError, match="a shard has 9 samples; 10 were announced"):
        stream.add_shard(split(0, 9))
    stream.add_shard(split(0, 10))
    floats = Split(np.zeros((10, 2)), np.zeros(10, np.int64))
    with pytest.raises(DataError, match=r"samples float64\[2\] and.*; expected samples int32\[2\]"):
        stream.add_shard(floats)
    stream.close()
    with pytest.raises(SettingError, match="closed"):
        stream.add_work(1, [10])
    with pytest.raises(SettingError, match="batches have 0 samples; expected at least 1"):
        BatchStream(0, rng())


def test_batches_are_copies() -> None:
    samples = split(0, 10)
    for batch in batches_of(samples, 1, 4, rng()):
        batch.samples[:] = -1
        batch.labels[:] = -1
    assert np.array_equal(samples.labels, np.arange(10))


@pytest.mark.parametrize("repeat", [False, True])
def test_another_thread_delivers_shards_while_batches_are_taken(repeat: bool) -> None:
    items: list[Work] = [(2, [30, 7, 30]), (1, [30] * 40), (3, [5])]
    shards, planned = splits(items), planned_visits(items)
    stream = BatchStream(
        16, rng(), lambda: repeat and not stream.planned_visits_left, repeat=repeat
    )
    for passes, sizes in items[:2]:
        stream.add_work(passes, sizes)

    def produce() -> None:
        for number, shard in enumerate(shards):
            if number == 20:
                stream.add_work(*items[2])
                stream.close()
            stream.add_shard(shard)

    producer = threading.Thread(target=produce)
    visits: Counter[int] = Counter()
    producer.start()
    for batch in _planned(stream):
        visits.update(numbers(batch))
    producer.join()
    assert visits == planned


def _planned(stream: BatchStream) -> Iterator[Split]:
    before = 0
    for batch in stream:
        if stream.planned_visits > before:
            yield batch
        before = stream.planned_visits


def test_withdrawn_shards_are_not_awaited() -> None:
    stream = BatchStream(10, rng())
    stream.add_work(2, [4, 4])
    stream.add_work(1, [4, 4])
    stream.close()
    first, second, third, _ = splits([(2, [4, 4]), (1, [4, 4])])
    stream.add_shard(first)
    stream.withdraw_shards(1)
    assert stream.planned_visits_left == 16 + 4
    stream.add_shard(second)
    stream.add_shard(third)
    visits = Counter(chain.from_iterable(map(numbers, stream)))
    assert visits == Counter({n: 2 if n < 8 else 1 for n in range(12)})
    with pytest.raises(SettingError, match="2 shards to withdraw have arrived"):
        stream.withdraw_shards(2)


def test_all_shards_of_a_work_item_can_be_withdrawn() -> None:
    stream = BatchStream(10, rng())
    stream.add_work(1, [3])
    stream.add_work(1, [4, 4])
    stream.close()
    stream.withdraw_shards(2)
    stream.add_shard(split(0, 3))
    assert [sorted(numbers(batch)) for batch in stream] == [[0, 1, 2]]


def test_visits_before_missing_shards_are_those_of_complete_work_items() -> None:
    stream = BatchStream(4, rng())
    stream.add_work(2, [4])
    stream.add_work(1, [4, 4])
    assert stream.arrived_visits_left == 0
    for shard in splits([(2, [4]), (1, [4])]):
        stream.add_shard(shard)
    assert stream.arrived_visits_left == 8
    next(stream)
    assert stream.arrived_visits_left == 4

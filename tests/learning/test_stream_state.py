"""A stream that is restored goes on as if it had not been interrupted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import DataError
from melisma.learning.batches import BatchStream
from melisma.learning.data.datasets import Split
from melisma.learning.stream_state import StreamState
from tests.learning.test_batches import Steps, Work, numbers, planned_visits, rng, splits, works

MOST_BATCHES = 60


class Schedule:
    """Work items and shards that arrive at certain calls of `stop`, and batches until an end."""

    def __init__(self, items: list[Work], arrivals: Sequence[int], *, repeat: bool) -> None:
        self.items, self.shards, self.repeat = items, splits(items), repeat
        self.arrivals, self.arrived = arrivals, 0
        self.random = rng()
        self.stream = self.new_stream(Steps(self.deliveries(0), np.inf))
        for passes, sizes in items:
            self.stream.add_work(passes, sizes)

    def new_stream(self, stop: Callable[[], bool]) -> BatchStream:
        return BatchStream(5, self.random, stop, repeat=self.repeat)

    def deliveries(self, since: int) -> dict[int, list[Callable[[], object]]]:
        """Return deliveries by the calls of `stop` after the first `since` ones."""
        calls: dict[int, list[Callable[[], object]]] = {}
        for at in self.arrivals[self.arrived :]:
            calls.setdefault(at - since, []).append(self.deliver)
        return calls

    def deliver(self) -> None:
        self.stream.add_shard(self.shards[self.arrived])
        self.arrived += 1

    def next(self) -> list[int] | None:
        with mock.patch("melisma.learning.batches.MAX_WAIT_S", 0):
            batch = next(self.stream, None)
        return None if batch is None else numbers(batch)


@given(works, st.booleans(), st.integers(0, 20), st.data())
def test_a_restored_stream_yields_the_batches_of_one_that_was_not_interrupted(
    items: list[Work], repeat: bool, cut: int, data: st.DataObject
) -> None:
    count = sum(len(sizes) for _, sizes in items)
    arrivals = sorted(data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count)))
    whole, other = (Schedule(items, arrivals, repeat=repeat) for _ in range(2))
    # Without repeats a stream ends by itself, and with them only if there is a sample.
    most = MOST_BATCHES if repeat and planned_visits(items) else cut + MOST_BATCHES
    if repeat and not sum(len(shard) for shard in whole.shards):
        return
    before = [batch for _ in range(cut) if (batch := other.next()) is not None]
    stop = other.stream._stop
    assert isinstance(stop, Steps)
    state, random = other.stream.state(), other.random.bit_generator.state
    other.random = rng(99)
    other.random.bit_generator.state = random
    restored = other.new_stream(Steps(other.deliveries(stop.calls), np.inf))
    state.check()
    restored.restore(state, other.shards[: other.arrived])
    other.stream = restored
    expected = [batch for _ in range(most) if (batch := whole.next()) is not None]
    after = [batch for _ in range(most - len(before)) if (batch := other.next()) is not None]
    assert before + after == expected
    for name in ("visits", "planned_visits", "planned_visits_left", "work_item"):
        assert getattr(restored, name) == getattr(whole.stream, name)


@given(works, st.integers(0, 20), st.integers(0, 3), st.data())
def test_shards_that_were_taken_back_are_not_trained_further_and_their_visits_stay(
    items: list[Work], cut: int, missing: int, data: st.DataObject
) -> None:
    """Some shards have not arrived when the stream is saved; some of all are taken back."""
    count = sum(len(sizes) for _, sizes in items)
    schedule = Schedule(
        items, [0] * max(count - missing, 0) + [10**6] * min(missing, count), repeat=False
    )
    visits: Counter[int] = Counter()
    with mock.patch.object(BatchStream, "_wait", side_effect=TimeoutError):
        for _ in range(cut):
            try:
                visits.update(schedule.next() or [])
            except TimeoutError:
                break
    state = schedule.stream.state()
    kept = {
        index: data.draw(st.sets(st.sampled_from(range(len(sizes))))) if sizes else set()
        for index, (_, sizes) in enumerate(items)
    }
    changed = state.keep_shards(kept)
    changed.check()
    arrived: list[Split] = []
    missed: list[Split] = []
    planned: Counter[int] = Counter()
    remaining, left = iter(schedule.shards), schedule.arrived
    for index, (passes, sizes) in enumerate(items):
        for place in range(len(sizes)):
            shard, is_there = next(remaining), left > 0
            left -= 1
            if place in kept[index]:
                (arrived if is_there else missed).append(shard)
                planned.update({int(row): passes for row in shard.labels if passes})
    made_of_others = sum(number for row, number in visits.items() if row not in planned)
    schedule.stream = stream = schedule.new_stream(Steps({}, np.inf))
    stream.restore(changed, arrived)
    assert stream.visits == stream.planned_visits == visits.total()
    assert stream.planned_visits_left == planned.total() - (visits.total() - made_of_others)
    for shard in missed:
        stream.add_shard(shard)
    later: Counter[int] = Counter()
    while (batch := schedule.next()) is not None:
        later.update(batch)
    assert not later.keys() - planned.keys()
    assert {row: visits[row] + later[row] for row in planned} == dict(planned)
    assert stream.planned_visits_left == 0
    assert stream.visits == visits.total() + later.total()


def saved() -> StreamState:
    """Return the state of a stream in its second pass."""
    stream = BatchStream(5, rng(), repeat=True)
    stream.add_work(2, [4, 8])
    stream.add_work(1, [3])
    for shard in splits([(2, [4, 8])]):
        stream.add_shard(shard)
    for _ in range(4):
        next(stream)
    return stream.state()


@pytest.mark.parametrize(
    "changes",
    [
        {"current": 3},
        {"current": -1},
        {"made": 16},
        {"made": -1},
        {"shuffled": 13},
        {"visits": 3},
        {"work_item": 3},
        {"withdrawn_visits": 99},
        {"repeat_rows": 99},
        {"order": np.array([1, 1, 2])},
        {"order": np.array([[1]])},
        {"order": np.array([12])},
        {"repeat_order": np.array([0])},
        {"items": ()},
    ],
)
def test_an_inconsistent_state_is_refused(changes: dict[str, object]) -> None:
    state = saved()
    state.check()
    arrays = {name: changes.pop(name) for name in ("order", "repeat_order") if name in changes}
    damaged = replace(state, counts=replace(state.counts, **changes), **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="inconsistent"):
        damaged.check()
    with pytest.raises(DataError, match="inconsistent"):
        BatchStream(5, rng()).restore(damaged, [])


def test_a_state_needs_the_shards_that_had_arrived() -> None:
    with pytest.raises(DataError, match="had arrived"):
        BatchStream(5, rng()).restore(saved(), splits([(2, [4])]))
    with pytest.raises(DataError, match="8 were announced"):
        BatchStream(5, rng()).restore(saved(), splits([(2, [4, 7])]))

"""Batches of a stream are repeated from its changes, whenever shards arrived."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.errors import DataError
from melisma.learning.batches import BatchStream, StreamChange
from melisma.learning.data.datasets import Split
from melisma.learning.stream_log import GivenWork, replay_batches

WORKS = [GivenWork(2, [4, 7, 1], [10, 10, 6]), GivenWork(2, [3, 9], [10, 3])]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def split(work: GivenWork, place: int) -> Split:
    rows = np.arange(work.samples[place])
    return Split(np.full(rows.size, work.shards[place]), rows)


class Device:
    """Takes steps of a plan between the requests of a stream, as another thread would."""

    def __init__(self, plan: list[str], *, repeat: bool, most: int = 60) -> None:
        self.stream = BatchStream(8, rng(), self._stop, repeat=repeat)
        self._plan, self._most, self._idle = plan, most, 0
        self._deliveries = [(w, place) for w in WORKS for place in range(len(w.shards))]
        self._announced = 0
        self._announce()
        self.batches = [rows_of(batch) for batch in self.stream]

    def _announce(self) -> None:
        if self._announced < len(WORKS):
            work = WORKS[self._announced]
            self.stream.add_work(work.passes, work.samples)
            self._announced += 1

    def _stop(self) -> bool:
        step = self._plan.pop(0) if self._plan else "shard"
        if step == "work":
            self._announce()
        elif step == "shard" and self._deliveries:
            known = [shard for work in WORKS[: self._announced] for shard in work.shards]
            if 5 - len(self._deliveries) < len(known):
                work, place = self._deliveries.pop(0)
                self.stream.add_shard(split(work, place))
            else:
                self._announce()
        self._most -= 1
        return self._most < 0


def rows_of(batch: Split) -> list[tuple[int, int]]:
    return list(zip(batch.samples.tolist(), batch.labels.tolist(), strict=True))


def replayed(changes: list[StreamChange], *, repeat: bool) -> Iterator[list[tuple[int, int]]]:
    return map(rows_of, replay_batches(WORKS, changes, 8, rng(), repeat=repeat))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["shard", "work", "none"]), max_size=25), st.booleans())
def test_the_batches_follow_from_the_seed_and_the_changes(plan: list[str], repeat: bool) -> None:
    device = Device([*plan], repeat=repeat)
    found = replayed(device.stream.changes, repeat=repeat)
    again = [batch for batch, _ in zip(found, device.batches, strict=False)]
    assert again == device.batches


def test_withdrawn_shards_are_not_trained_in_the_replay_either() -> None:
    stream = BatchStream(8, rng())
    stream.add_work(2, WORKS[0].samples)
    stream.add_shard(split(WORKS[0], 0))
    first = rows_of(next(stream))
    stream.withdraw_shards(2)
    stream.close()
    rest = [rows_of(batch) for batch in stream]
    assert [*replayed(stream.changes, repeat=False)] == [first, *rest]


@pytest.mark.parametrize(
    "changes",
    [
        [StreamChange(0, (4,), 0)],  # more shards than were given
        [StreamChange(0, (3, 2, 1), 0)],  # more work than was given
        [StreamChange(0, (3,), 4)],  # more arrived than were announced
        [StreamChange(0, (3,), 3), StreamChange(1, (1,), 1)],  # withdrawn after arrival
        [StreamChange(0, (3,), 3), StreamChange(1, (), 0)],  # work forgotten
    ],
)
def test_changes_that_no_stream_can_have_are_refused(changes: list[StreamChange]) -> None:
    with pytest.raises(DataError):
        list(replayed(changes, repeat=False))


def test_a_replay_ends_where_a_shard_never_comes() -> None:
    assert list(replayed([StreamChange(0, (3,), 0)], repeat=False)) == []

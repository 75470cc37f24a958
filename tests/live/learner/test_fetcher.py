"""The thread that fetches shards: their order, fetching ahead, errors and time limits."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from melisma.errors import DataError
from melisma.learning.batches import BatchStream
from melisma.learning.data.datasets import Split
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.fetcher import Fetcher, ShardFeed
from melisma.live.protocol import ShardRef
from tests.live.learner.manual_clock import ManualClock

WAIT_S = 20
DATA_ERROR = DataError("cannot fetch 1")


def shard(number: int) -> ShardRef:
    return ShardRef(number, f"{number:064x}", 100, 2)


class GatedDownloader:
    """A downloader whose downloads end when the test lets them."""

    def __init__(
        self,
        cached: Sequence[int] = (),
        broken: Sequence[int] = (),
        error: Exception = DATA_ERROR,
    ) -> None:
        self.cached, self.broken = {shard(number).sha256 for number in cached}, broken
        self.error = error
        self.began: list[int] = []
        self.errors: list[Exception] = []
        self.fractions: dict[int, float] = {}  # of shards in transit
        self.changed = threading.Condition()
        self.allowed = 0

    def allow(self, count: int) -> None:
        with self.changed:
            self.allowed += count
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)

    def fetch_shard(
        self, item: ShardRef, _: Device, time_is_up: Callable[[], bool], needed: Sequence[str]
    ) -> None:
        with self.changed:
            self.began.append(item.number)
            self.changed.notify_all()
            while not self.allowed:
                if time_is_up():
                    return
                self.changed.wait(0.01)
            self.allowed -= 1
            if item.number in self.broken:
                raise self.error
            self.cached.add(item.sha256)
            self.changed.notify_all()

    def has(self, item: ShardRef) -> bool:
        return item.sha256 in self.cached

    def fraction_in_cache(self, item: ShardRef) -> float:
        return float(self.has(item)) or self.fractions.get(item.number, 0.0)

    def read_shards(self, items: Sequence[ShardRef]) -> list[Split]:
        return [Split(np.full((2, 1), item.number), np.full(2, item.number)) for item in items]


def start(**options: Any) -> tuple[GatedDownloader, Fetcher]:
    downloader = GatedDownloader(**options)
    fetcher = Fetcher(cast(Downloader, downloader), Device(None), downloader.errors.append)
    fetcher.start()
    return downloader, fetcher


def make_feed(*, hold_back: bool = False, repeat: bool = True) -> ShardFeed:
    stream = BatchStream(2, np.random.default_rng(1), repeat=repeat)
    return ShardFeed(stream, lambda: False, hold_back)


def test_training_gets_the_first_shard_while_the_next_is_fetched() -> None:
    downloader, fetcher = start()
    shards = [shard(1), shard(2)]
    feed = make_feed()
    fetcher.begin(feed, shards, 1)
    downloader.allow(1)
    assert next(feed.stream).labels.tolist() == [1, 1]
    downloader.wait_for(lambda: downloader.began == [1, 2])
    assert not feed.all_fetched.is_set()
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    assert (feed.shipped, feed.fetched) == (2, 2.0)


def test_held_back_shards_are_loaded_when_all_have_been_fetched() -> None:
    downloader, fetcher = start()
    shards = [shard(1), shard(2)]
    feed = make_feed(hold_back=True)
    fetcher.begin(feed, shards, 1)
    downloader.allow(1)
    downloader.wait_for(lambda: downloader.began == [1, 2])
    assert feed.stream.arrived_visits_left == 0
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    assert feed.stream.arrived_visits_left == 4


def test_extensions_are_fetched_after_the_shards_before_them() -> None:
    downloader, fetcher = start(cached=[3])
    feed = make_feed()
    fetcher.begin(feed, [shard(1)], 1)
    fetcher.add(feed, [shard(2), shard(3)], 1)
    downloader.allow(2)
    batches = [int(next(feed.stream).labels[0]) for _ in range(1)]
    downloader.wait_for(lambda: downloader.began == [1, 2])
    while feed.stream.planned_visits_left:
        batches.append(int(next(feed.stream).labels[0]))
    assert set(batches) == {1, 2, 3}
    # A shard that was in the cache was not fetched.
    assert feed.shipped == 2


def test_shards_that_wait_can_be_released() -> None:
    downloader, fetcher = start()
    shards = [shard(number) for number in (1, 2, 3)]
    feed = make_feed()
    fetcher.begin(feed, shards, 1)
    downloader.wait_for(lambda: downloader.began == [1])
    assert fetcher.release(feed, 5) == [2, 3]
    assert feed.stream.planned_visits_left == 2
    downloader.allow(3)
    assert feed.all_loaded.wait(WAIT_S)
    assert downloader.began == [1]


def test_shards_are_fetched_ahead_until_an_assignment_comes() -> None:
    downloader, fetcher = start()
    fetcher.fetch_ahead([shard(1), shard(2), shard(3)])
    downloader.allow(1)
    downloader.wait_for(lambda: downloader.began == [1, 2])
    feed = make_feed()
    fetcher.begin(feed, [shard(1), shard(4)], 1)
    downloader.wait_for(lambda: downloader.began == [1, 2, 4])
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    # Both count as fetched: the orchestrator does not know yet that shard 1 is here.
    assert feed.shipped == 2
    fetcher.end(feed)
    fetcher.mark_reported([shard(1), shard(4)])
    again = make_feed()
    fetcher.begin(again, [shard(1)], 1)
    assert again.all_loaded.wait(WAIT_S)
    assert again.shipped == 0


def test_an_error_reaches_the_thread_that_trains() -> None:
    downloader, fetcher = start(broken=[1])
    feed = make_feed()
    fetcher.begin(feed, [shard(1)], 1)
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    with pytest.raises(DataError, match="cannot fetch 1"):
        feed.check()


def test_an_error_while_fetching_ahead_does_not_end_the_thread() -> None:
    downloader, fetcher = start(broken=[1])
    fetcher.fetch_ahead([shard(1), shard(2)])
    downloader.allow(1)
    downloader.wait_for(lambda: not downloader.allowed)
    feed = make_feed()
    fetcher.begin(feed, [shard(3)], 1)
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    assert (downloader.began, downloader.errors) == ([1, 3], [])


def test_an_unexpected_error_while_fetching_ahead_is_passed_on_and_feeds_are_served() -> None:
    error = OSError("No space left on device")
    downloader, fetcher = start(broken=[1], error=error)
    fetcher.fetch_ahead([shard(1), shard(2)])
    downloader.allow(1)
    downloader.wait_for(lambda: not downloader.allowed)
    feed = make_feed(hold_back=True)
    fetcher.begin(feed, [shard(3)], 1)
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    assert (downloader.began, downloader.errors) == ([1, 3], [error])


def test_the_end_of_training_ends_the_fetching() -> None:
    downloader, fetcher = start()
    shards = [shard(1), shard(2)]
    feed = make_feed()
    fetcher.begin(feed, shards, 1)
    downloader.wait_for(lambda: downloader.began == [1])
    fetcher.end(feed)
    assert feed.all_loaded.wait(WAIT_S)
    assert (downloader.began, feed.shipped, feed.ended) == ([1], 0, True)


def test_the_shard_in_transit_counts_when_training_ends(clock: ManualClock) -> None:
    """0.3 of the second shard has arrived after 6 s; it counts once."""
    downloader, fetcher = start()
    feed = make_feed()
    fetcher.begin(feed, [shard(1), shard(2)], 1)
    downloader.wait_for(lambda: downloader.began == [1])
    clock.work(20.0)
    downloader.allow(1)
    downloader.wait_for(lambda: downloader.began == [1, 2])
    clock.work(6.0)
    downloader.fractions[2] = 0.3
    fetcher.end(feed)
    assert feed.observed_ship_s() == pytest.approx(26.0 / 1.3)
    assert feed.all_loaded.wait(WAIT_S)
    assert feed.observed_ship_s() == pytest.approx(26.0 / 1.3)


def test_an_extension_during_a_release_keeps_shards_and_work_items_aligned() -> None:
    """The extension arrives when its work is announced to the stream, but not queued yet."""
    released: list[int] = []
    released_all = threading.Event()

    def release() -> None:
        released.extend(fetcher.release(feed, 1))
        released_all.set()

    class InterruptedStream(BatchStream):
        def add_work(self, passes: int, shard_samples: Sequence[int]) -> int:
            number = super().add_work(passes, shard_samples)
            if number == 2:
                threading.Thread(target=release).start()
                # Without a lock the release takes place now.
                released_all.wait(0.2)
            return number

    downloader, fetcher = start()
    feed = ShardFeed(
        InterruptedStream(2, np.random.default_rng(1), repeat=True), lambda: False, False
    )
    fetcher.begin(feed, [shard(1), shard(2)], 1)
    downloader.wait_for(lambda: downloader.began == [1])
    fetcher.add(feed, [ShardRef(3, f"{3:064x}", 100, 7)], 1)
    assert released_all.wait(WAIT_S)
    assert released == [3]
    assert feed.stream.planned_visits_left == 4


def test_fetching_ahead_waits_for_the_end_of_the_assignment() -> None:
    """As when the cycle of a late learner closes."""
    downloader, fetcher = start()
    feed = make_feed()
    fetcher.begin(feed, [shard(1)], 1)
    downloader.wait_for(lambda: downloader.began == [1])
    fetcher.fetch_ahead([shard(2)])
    downloader.allow(1)
    assert feed.all_loaded.wait(WAIT_S)
    assert downloader.began == [1]
    fetcher.end(feed)
    downloader.wait_for(lambda: downloader.began == [1, 2])
    downloader.allow(1)
    downloader.wait_for(lambda: downloader.has(shard(2)))


def test_an_empty_shard_on_the_device_does_not_hide_the_next() -> None:
    _, fetcher = start()
    sources = [Split(np.empty((0, 1)), np.empty(0)), Split(np.ones((2, 1)), np.ones(2))]
    stream = BatchStream(2, np.random.default_rng(1))
    fetcher.begin(ShardFeed(stream, lambda: False, hold_back=False), sources, 1)
    stream.close()
    assert [len(batch) for batch in stream] == [2]

"""The link is measured by each benchmark, whatever is in the cache."""

from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.subset_benchmark import _time_downloads
from melisma.live.protocol import ShardRef
from tests.live.learner.manual_clock import ManualClock

SHARDS = [ShardRef(number, f"hash{number}", 1000, 10) for number in range(4)]


class TimedDownloader(Downloader):
    """Takes a second for each shard; has the shards whose numbers are given."""

    def __init__(self, clock: ManualClock, cached: set[int]) -> None:
        self.clock, self.cached, self.again = clock, cached, 0

    def has(self, shard: ShardRef) -> bool:
        return shard.number in self.cached

    def fetch_shard(self, shard: ShardRef, *_: object) -> None:
        self.clock.sleep(1.0)
        self.cached.add(shard.number)

    def fetch_again(self, shard: ShardRef, device: Device) -> None:
        self.clock.sleep(3.0)
        self.again += 1


def test_missing_shards_are_timed(clock: ManualClock) -> None:
    downloader = TimedDownloader(clock, {1})
    until_at = clock.now_s + 60
    assert _time_downloads(SHARDS, downloader, Device(None), until_at) == [1.0] * 3
    assert downloader.again == 0


def test_if_all_shards_are_cached_one_is_fetched_again(clock: ManualClock) -> None:
    downloader = TimedDownloader(clock, {0, 1, 2, 3})
    assert _time_downloads(SHARDS, downloader, Device(None), clock.now_s + 60) == [3.0]
    assert downloader.again == 1


def test_without_shards_to_fetch_nothing_is_timed(clock: ManualClock) -> None:
    assert _time_downloads([], TimedDownloader(clock, set()), Device(None), 60.0) == []

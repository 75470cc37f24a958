"""The link is measured by each benchmark, whatever is in the cache; most time is for training."""

from typing import Any

import numpy as np
import pytest

from melisma.fleet.estimates import Estimate
from melisma.learning.benchmark import TrainCost
from melisma.learning.data.datasets import Split
from melisma.live.learner import subset_benchmark
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.subset_benchmark import _predict_upload_s, _time_downloads
from melisma.live.protocol import RegisterResponse, ShardRef
from tests.live.learner.manual_clock import ManualClock
from tests.live.orchestrator.served_run import TASK
from tests.live.tiny_task import Linear

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


def test_an_upload_is_predicted_from_an_empty_one_and_a_part_of_its_bytes(
    clock: ManualClock,
) -> None:
    sizes: list[int] = []

    def upload(size_bytes: int) -> None:
        """Take 0.5 s for the call and 1 ms for each 100 bytes."""
        sizes.append(size_bytes)
        clock.sleep(0.5 + size_bytes / 100_000)

    assert _predict_upload_s(upload, 800_000) == pytest.approx(8.5)
    assert sizes == [0, 100_000]


def test_a_delay_of_a_call_is_not_extrapolated_to_an_update_of_a_few_bytes(
    clock: ManualClock,
) -> None:
    def upload(size_bytes: int) -> None:
        clock.sleep(0.3 if size_bytes else 0.1)

    assert _predict_upload_s(upload, 20) == pytest.approx(0.3)


@pytest.mark.parametrize("cached", [set(), {0}])
def test_the_speed_is_that_of_training_one_shard(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, cached: set[int]
) -> None:
    downloader = TimedDownloader(clock, cached)
    samples = Split(np.zeros((10, 2), np.float32), np.zeros(10, np.int64))
    monkeypatch.setattr(downloader, "read_shards", lambda shards: [samples for _ in shards])
    timed: list[Any] = []

    def time_training(*args: Any) -> TrainCost:
        timed.append(args[-3:])
        return TrainCost(Estimate.from_measurements([0.1]), Estimate.from_measurements([0.0]))

    monkeypatch.setattr(subset_benchmark, "_time_training", time_training)
    registered = RegisterResponse(0, "r", TASK, tuple(SHARDS))
    device = Device(None)
    speed = subset_benchmark.measure_speed(
        registered, lambda: Linear(TASK), downloader, [], device, 2.0
    )
    assert speed == pytest.approx(TASK.shard_samples / 0.1)
    # A slow link does not shorten the time for training.
    assert timed == [([samples] * subset_benchmark.PROBE_PASSES, device, clock.now_s + 2.0)]
    assert downloader.cached == {0}


def test_a_third_of_a_benchmark_is_for_fetching(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloader = TimedDownloader(clock, set())
    monkeypatch.setattr(downloader, "fetch_model", lambda *_: None)
    monkeypatch.setattr(downloader, "read_shards", lambda _: [])
    limits: list[float] = []

    def stop_here(*args: Any) -> None:
        limits.append(args[-1])
        raise InterruptedError

    monkeypatch.setattr(subset_benchmark, "_time_training", stop_here)
    registered = RegisterResponse(0, "r", TASK, tuple(SHARDS))
    began = clock.now_s
    with pytest.raises(InterruptedError):
        subset_benchmark.run_subset_benchmark(
            registered,
            lambda: Linear(TASK),
            downloader,
            [],
            Device(None),
            began + 6.0,
            upload=lambda _: None,
        )
    assert clock.now_s - began == 2.0
    assert limits == [began + 6.0]

"""Requests and releases of shards, by what a learner can fetch and train in time."""

from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest

from melisma import axon
from melisma.fleet.task import Task
from melisma.learning.batches import BatchStream
from melisma.learning.data.datasets import Split
from melisma.live.learner.active_assignment import ActiveAssignment
from melisma.live.learner.fetcher import Fetcher, ShardFeed
from melisma.live.learner.shard_requests import ShardRequests
from melisma.live.protocol import Train
from tests.live.learner.manual_clock import ManualClock

TASK = Task(name="t", model="twonn", data="mnist", deadline_s=10.0, passes=1, shard_samples=100)
SHARD = Split(np.zeros((100, 1)), np.zeros(100))


class RecordingOrchestrator:
    """Records the calls of a learner."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def request_shards(self, learner: int, cycle: int, shards: int) -> None:
        self.calls.put(("request", shards))

    def release_shards(self, learner: int, cycle: int, shards: list[int]) -> None:
        self.calls.put(("release", shards))


class RecordingFetcher:
    """Records how many shards are released."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, feed: ShardFeed, count: int) -> list[int]:
        self.released.append(count)
        return list(range(count))


def add_waiting(feed: ShardFeed, count: int) -> None:
    feed.stream.add_work(1, [len(SHARD)] * count)
    feed.waiting.extend([SHARD] * count)


@pytest.mark.parametrize("waiting", [0, 1, 3, 6])
def test_a_learner_with_a_slow_link_releases_none_of_the_shards_that_it_requested(
    clock: ManualClock, waiting: int
) -> None:
    """A shard takes 1 s to fetch and 0.01 s to train; 8.5 s are left."""
    orchestrator, fetcher = RecordingOrchestrator(), RecordingFetcher()
    requests = ShardRequests(TASK, 0, cast(axon.Remote, orchestrator), cast(Fetcher, fetcher))
    requests.start()
    assignment = ActiveAssignment(Train(1, 1, "model", 1, 10.0), clock.now_s - 1.5)
    assignment.trained_s, assignment.visits = 1.0, 10_000
    stream = BatchStream(32, np.random.default_rng(1), repeat=True)
    feed = ShardFeed(stream, lambda: False, hold_back=False, fetch_s=1.0, fetched=1.0)
    add_waiting(feed, waiting)
    requests.send_if_due(assignment, feed, None)
    kind, shards = orchestrator.calls.get(timeout=10.0)
    assert kind == "request"
    assert waiting + shards == pytest.approx(8.5, abs=1.0)
    add_waiting(feed, shards)
    clock.sleep(0.1)
    requests.send_if_due(assignment, feed, None)
    assert fetcher.released == []

"""Requests and releases of shards, by what a learner can fetch and train in time."""

from typing import Any, cast

import numpy as np
import pytest

from melisma.fleet.task import Task
from melisma.learning.batches import BatchStream
from melisma.learning.data.datasets import Split
from melisma.live.learner.active_assignment import ActiveAssignment
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.fetcher import Fetcher, ShardFeed, Transit
from melisma.live.learner.shard_requests import ShardRequests
from melisma.live.protocol import ExtendTraining, ShardRef, Train
from melisma.simulation.learners.cycle_timeline import CycleTimeline, Workload, request_timeline
from melisma.simulation.learners.devices import Durations
from tests.live.learner.manual_clock import ManualClock

DEADLINE_S, SHARD_SAMPLES = 10.0, 100
TASK = Task(
    name="t",
    model="twonn",
    data="mnist",
    deadline_s=DEADLINE_S,
    passes=1,
    shard_samples=SHARD_SAMPLES,
)
SHARD = Split(np.zeros((SHARD_SAMPLES, 1)), np.zeros(SHARD_SAMPLES))


class RecordingOrchestrator:
    """Records the calls of a learner."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.released: list[int] = []

    def call(self, method: str, session: str, cycle: int, shards: Any) -> None:
        if method == "request_shards":
            self.requested.append(shards)
        else:
            self.released.append(len(shards))


class EmptyCache:
    """A downloader that holds no shard."""

    def has(self, _: ShardRef) -> bool:
        return False

    def fraction_in_cache(self, _: ShardRef) -> float:
        return 0.0


def _ignore(_: Exception) -> None:
    pass


def refs(count: int, first: int = 0) -> list[ShardRef]:
    numbers = range(first, first + count)
    return [ShardRef(number, f"{number:064x}", 100, SHARD_SAMPLES) for number in numbers]


class LearnerAtWork:
    """A learner whose shards are fetched and trained when the test says so.

    Its fetcher has no thread, and calls are carried out at once.
    """

    def __init__(
        self, clock: ManualClock, shards: int, *, train_s: float, ship_s: float, passes: int = 1
    ) -> None:
        self.clock, self.ship_s = clock, ship_s
        self.orchestrator = RecordingOrchestrator()
        self.fetcher = Fetcher(cast(Downloader, EmptyCache()), Device(None), _ignore)
        self.requests = ShardRequests(
            TASK, "session", cast(Connection, self.orchestrator), self.fetcher
        )
        stream = BatchStream(SHARD_SAMPLES, np.random.default_rng(1), repeat=True)
        # One shard of an earlier work item was fetched and trained: both speeds are known.
        self.feed = ShardFeed(stream, lambda: False, hold_back=False, fetch_s=ship_s, fetched=1.0)
        self.shards = refs(shards)
        train = Train(1, 1, "model", passes, DEADLINE_S, tuple(self.shards))
        self.assignment = ActiveAssignment(train, clock.now_s, feed=self.feed)
        self.assignment.trained_s = 100 * train_s
        self.assignment.visits = 100 * SHARD_SAMPLES
        self.fetcher.begin(self.feed, self.shards, passes)

    def fetch_next(self) -> None:
        """Begin to fetch the next shard, if one is waiting."""
        if (source := self.fetcher._next(self.feed)) is not None:
            assert isinstance(source, ShardRef)
            self.feed.in_transit = Transit(source, 0.0, self.clock.now_s)

    def step(self) -> None:
        """Let the shard in transit arrive if it is time, and train all that is there once."""
        transit, feed = self.feed.in_transit, self.feed
        if transit is None:
            self.fetch_next()
        elif self.clock.now_s >= transit.began_at + self.ship_s:
            feed.in_transit = None
            feed.fetched, feed.fetch_s = feed.fetched + 1.0, feed.fetch_s + self.ship_s
            feed.stream.add_shard(SHARD)
            next(feed.stream)
            self.fetch_next()
        self.decide()

    def decide(self) -> None:
        self.requests.send_if_due(self.assignment, self.feed, None)
        while not self.requests._calls.empty():
            self.requests._calls.get()()

    def extend(self, count: int) -> None:
        """Give the learner further shards, as the orchestrator answers."""
        more = refs(count, len(self.shards))
        self.shards += more
        attempt = len(self.assignment.attempts) + 1
        extension = ExtendTraining(1, attempt, self.assignment.train.passes, tuple(more))
        self.assignment.add_extension(extension)
        self.fetcher.add(self.feed, more, self.assignment.train.passes)


@pytest.mark.parametrize("shards", [2, 5, 8, 12])
@pytest.mark.parametrize("answered", [1.0, 0.5, 0.0])
def test_a_learner_with_a_slow_link_sends_few_requests_and_releases_none_of_them(
    clock: ManualClock, shards: int, answered: float
) -> None:
    """A shard takes 1 s to fetch and 0.01 s to train; at most 10 can be fetched."""
    learner = LearnerAtWork(clock, shards, train_s=0.01, ship_s=1.0)
    orchestrator, answers = learner.orchestrator, 0
    while learner.assignment.left_s() > 0:
        learner.step()
        for count in orchestrator.requested[answers:]:
            if given := int(np.ceil(count * answered)):
                learner.extend(given)
        answers = len(orchestrator.requested)
        clock.sleep(0.05)
    requested, released = sum(orchestrator.requested), sum(orchestrator.released)
    assert len(orchestrator.requested) <= 2 + 8 * (answered < 1)
    if answered == 1.0:
        assert shards + requested - released == pytest.approx(10, abs=1)
        assert not (requested and released)


def test_there_is_at_most_one_request_in_a_tenth_of_the_deadline(clock: ManualClock) -> None:
    """Each answer has one shard of many, which is there at once and trained in 10 ms."""
    learner = LearnerAtWork(clock, 1, train_s=0.01, ship_s=0.001)
    while learner.assignment.left_s() > 0:
        learner.step()
        clock.sleep(0.02)
        if len(learner.shards) <= len(learner.orchestrator.requested):
            learner.extend(1)
    assert 5 <= len(learner.orchestrator.requested) <= 10


def test_after_a_release_nothing_is_requested(clock: ManualClock) -> None:
    """The link was slow at first, so shards were released; then it is fast."""
    learner = LearnerAtWork(clock, 12, train_s=0.01, ship_s=2.0)
    clock.sleep(1.1)
    learner.decide()
    (released,) = learner.orchestrator.released
    assert released > 4
    learner.feed.fetch_s, learner.feed.fetched = 0.01, 1.0
    learner.feed.waiting.clear()
    learner.feed.stream.withdraw_shards(12 - released)
    clock.sleep(1.1)
    learner.decide()
    assert learner.orchestrator.requested == []


def simulated(
    shards: int, missing: int, passes: int, train_s: float, ship_s: float, stop_s: float
) -> tuple[float, int, int]:
    """Return when a simulated learner decides, how many shards it requests and releases."""
    one, none = np.ones(1), np.zeros(1)
    work = Workload(
        np.array([shards]),
        np.array([missing]),
        np.array([shards * SHARD_SAMPLES]),
        np.array([passes]),
        none,
    )
    fields = dict.fromkeys(CycleTimeline.__dataclass_fields__, none)
    planned_s = shards * passes * train_s * one
    done = CycleTimeline(**cast(Any, fields | {"planned_s": planned_s, "stop_s": stop_s * one}))
    durations = Durations(train_s / SHARD_SAMPLES * one, ship_s * one, none, none)
    requests = request_timeline(durations, work, done, TASK)
    return float(requests.ask_s[0]), int(requests.wanted[0]), int(requests.released[0])


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("train_s", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("ship_s", [0.07, 0.6, 2.0])
@pytest.mark.parametrize(("shards", "missing"), [(3, 3), (3, 1), (12, 12), (30, 20)])
def test_live_and_simulated_learners_decide_alike(
    clock: ManualClock, shards: int, missing: int, passes: int, train_s: float, ship_s: float
) -> None:
    """Both are at the same time of a cycle, with the same work and the same queue."""
    stop_s = 9.041
    ask_s, wanted, released = simulated(shards, missing, passes, train_s, ship_s, stop_s)
    learner = LearnerAtWork(clock, missing, train_s=train_s, ship_s=ship_s, passes=passes)
    # Shards that are there at the beginning are trained after those that are missing.
    learner.feed.stream.add_work(passes, [SHARD_SAMPLES] * (shards - missing))
    arrived = min(int(np.ceil(ask_s / ship_s - 1e-9)), missing)
    for _ in range(arrived):
        learner.fetch_next()
        learner.feed.stream.add_shard(SHARD)
    if arrived * ship_s <= ask_s:
        learner.feed.in_transit = None
    else:
        began_at = clock.now_s + (arrived - 1) * ship_s
        learner.feed.in_transit = Transit(learner.shards[arrived - 1], 0.0, began_at)
    planned = shards * passes * SHARD_SAMPLES
    done = int(np.ceil(ask_s / train_s * SHARD_SAMPLES))
    learner.feed.stream.planned_visits = min(done, planned)
    learner.assignment.upload_s = DEADLINE_S - stop_s
    clock.sleep(ask_s + 1e-6)
    learner.decide()
    orchestrator = learner.orchestrator
    assert (sum(orchestrator.requested), sum(orchestrator.released)) == (wanted, released)

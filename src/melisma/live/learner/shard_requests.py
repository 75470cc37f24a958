"""Requests for further shards, and releases of shards that will not be trained in time.

The thread that trains decides, because it knows its progress; another thread sends, so that
training never waits for a call.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from melisma.cycle.learner import (
    RELEASE_FRACTION,
    REQUEST_FRACTION,
    CostHistory,
    request_delay_s,
    shards_to_release,
    shards_to_request,
)
from melisma.errors import AxonError
from melisma.fleet.task import Task
from melisma.live.learner.active_assignment import ActiveAssignment
from melisma.live.learner.connection import Connection
from melisma.live.learner.fetcher import Fetcher, ShardFeed

# Decide at most this often in a cycle.
DECISIONS_PER_CYCLE = 200
# After this part of the deadline in training, use its speed in this cycle instead of the estimate.
MIN_TRAINED_FRACTION = 0.02


class ShardRequests:
    """Sends what one learner requests and releases."""

    def __init__(
        self, task: Task, session: str, orchestrator: Connection, fetcher: Fetcher
    ) -> None:
        self.task, self._session, self._fetcher = task, session, fetcher
        self._orchestrator = orchestrator
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._ship_s = 0.0  # the latest one that was measured
        self._decided_at = 0.0

    def start(self) -> None:
        """Start the thread that sends."""
        threading.Thread(target=self._send, name="requests", daemon=True).start()

    def send_if_due(
        self, assignment: ActiveAssignment, feed: ShardFeed, costs: CostHistory | None
    ) -> None:
        """Request or release shards of an assignment if that is due; call before each batch."""
        now = time.monotonic()
        if now < self._decided_at + self.task.deadline_s / DECISIONS_PER_CYCLE:
            return
        self._decided_at = now
        self._ship_s = feed.ship_s or self._ship_s
        if feed.ship_s is None and costs is not None:
            self._ship_s = float(costs.ship_s.mean)
        # A few batches say less than the cycles before.
        if costs is not None and assignment.trained_s < MIN_TRAINED_FRACTION * self.task.deadline_s:
            train_s = float(costs.train_s.mean)
        elif assignment.trained_s:
            train_s = assignment.trained_s * self.task.shard_samples / assignment.visits
        else:
            return
        left_s = assignment.left_s(now) - assignment.upload_s
        self._request(assignment, feed, left_s, train_s)
        judged_at = assignment.received_at + RELEASE_FRACTION * self.task.deadline_s
        if feed.ship_s is not None and now >= judged_at:
            self._release(assignment, feed, left_s, train_s)

    def _request(
        self, assignment: ActiveAssignment, feed: ShardFeed, left_s: float, train_s: float
    ) -> None:
        now, deadline_s, train = time.monotonic(), self.task.deadline_s, assignment.train
        # After a release the estimates are in doubt: shards would be requested and released again.
        if assignment.has_released or now < assignment.requested_at + REQUEST_FRACTION * deadline_s:
            return
        ship_s, fetch_s = self._ship_s, self._fetcher.queue_s(feed, self._ship_s)
        work_s = feed.stream.planned_visits_left * train_s / self.task.shard_samples
        if request_delay_s(work_s, fetch_s, ship_s, deadline_s) > 0:
            return
        shards = int(shards_to_request(left_s, work_s, fetch_s, train_s * train.passes, ship_s))
        if shards:
            assignment.requested_at = now
            self._calls.put(
                lambda: self._orchestrator.call(
                    "request_shards", self._session, train.cycle, shards
                )
            )

    def _release(
        self, assignment: ActiveAssignment, feed: ShardFeed, left_s: float, train_s: float
    ) -> None:
        waiting = len(feed.waiting)
        before_s = feed.stream.arrived_visits_left * train_s / self.task.shard_samples
        # Each waiting shard is begun once it has arrived and those before it are trained once.
        work_s = before_s + waiting * train_s
        ship_s, fetch_s = self._ship_s, self._fetcher.queue_s(feed, self._ship_s)
        count = int(shards_to_release(left_s, work_s, fetch_s, train_s, ship_s))
        if count and (numbers := self._fetcher.release(feed, count)):
            assignment.has_released = True
            self.release(assignment.train.cycle, numbers)

    def release(self, cycle: int, numbers: list[int]) -> None:
        """Tell the orchestrator that these shards will not be trained."""
        self._calls.put(
            lambda: self._orchestrator.call("release_shards", self._session, cycle, numbers)
        )

    def _send(self) -> None:
        while True:
            call = self._calls.get()
            # If the run has ended, the thread that polls notices it, too.
            with suppress(AxonError):
                call()

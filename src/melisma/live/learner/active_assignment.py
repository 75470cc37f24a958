"""An assignment that a learner works on: its deadline, its extensions, its phases."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, nan

from melisma.cycle.events import PHASES
from melisma.cycle.learner import time_is_up
from melisma.errors import MelismaError
from melisma.learning.data.datasets import Split
from melisma.learning.verification.segments import SegmentRecorder
from melisma.live.learner.device import Device
from melisma.live.learner.fetcher import ShardFeed
from melisma.live.learner.resumption import Resumption
from melisma.live.learner.saved_training import SavedHeader
from melisma.live.protocol import ExtendTraining, ShardRef, Train


def seconds_per(seconds: float, count: float) -> float:
    """Return the seconds of one item; NaN if there is no item."""
    return seconds / count if count else nan


class WithdrawnError(MelismaError):
    """The orchestrator has withdrawn the assignment."""


@dataclass
class ActiveAssignment:
    """An instruction to train with its progress, and whether it has been withdrawn."""

    train: Train
    received_at: float
    visits: int = 0
    setup_s: float = 0.0
    batch_s: float = 0.0  # of the latest batch; before the first, the setup
    trained_s: float = 0.0  # of all batches
    upload_s: float = 0.0  # reserved
    feed: ShardFeed | None = None
    attempts: list[int] = field(default_factory=list)  # of each work item of the stream
    shards: list[ShardRef] = field(default_factory=list)  # of all work items
    early: list[ExtendTraining] = field(default_factory=list)  # received before the training began
    recorder: SegmentRecorder | None = None  # if updates are checked
    resumed_visits: int = 0  # made by an earlier process
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    requested_at: float = -inf  # when further shards were requested last
    has_released: bool = False  # whether shards were released
    _withdrawn: threading.Event = field(default_factory=threading.Event)
    _lap_at: float = field(init=False)
    _batch_at: float = field(init=False, default=nan)

    def __post_init__(self) -> None:
        self._lap_at = self.received_at
        self.attempts.append(self.train.attempt)
        self.shards += self.train.shards

    @property
    def key(self) -> tuple[int, int]:
        """Cycle and attempt: they identify the assignment at this learner."""
        return self.train.cycle, self.train.attempt

    @property
    def attempt(self) -> int:
        """The latest extension that a batch was trained of, or the assignment itself."""
        number = self.feed.stream.work_item if self.feed is not None else 0
        return self.attempts[max(number, 1) - 1]

    def knows(self, extension: ExtendTraining) -> bool:
        """Return whether this is the repetition of an extension."""
        attempts = (*self.attempts, *(early.attempt for early in self.early))
        return extension.attempt in attempts

    def resume(self, header: SavedHeader, rest: Resumption) -> None:
        """Count the work that an earlier process has done, and the time that it was gone."""
        self.attempts, self.shards = list(rest.attempts), [s for work in rest.works for s in work]
        self.visits = self.resumed_visits = header.counts.visits
        self.trained_s = header.trained_s
        for phase, seconds in zip(PHASES, header.phases, strict=True):
            self.seconds[phase] += seconds
        self.seconds["wait"] += max(header.left_s - self.train.seconds_left, 0.0)

    def add_extension(self, extension: ExtendTraining) -> None:
        """Record an extension, which is the next work item of the stream."""
        self.attempts.append(extension.attempt)
        self.shards += extension.shards

    @property
    def planned_visits(self) -> int:
        """The visits of the plan that were made; further passes do not count."""
        return self.feed.stream.planned_visits if self.feed is not None else 0

    def withdraw(self) -> None:
        """Withdraw the assignment, from any thread."""
        self._withdrawn.set()

    def lap(self, phase: str) -> float:
        """Charge the time since the previous lap to `phase` and return it."""
        now = time.monotonic()
        seconds, self._lap_at = now - self._lap_at, now
        self.seconds[phase] += seconds
        return seconds

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase until now, between two batches."""
        waited_s = self.feed.stream.waited_s if self.feed is not None else 0.0
        train_s = time.monotonic() - self._lap_at - waited_s
        return {
            **self.seconds,
            "train": self.seconds["train"] + train_s,
            "fetch shards": self.seconds["fetch shards"] + waited_s,
        }

    def charge(self, seconds: float, phase: str, instead_of: str) -> None:
        """Charge seconds that were charged to `instead_of` to another phase."""
        self.seconds[phase] += seconds
        self.seconds[instead_of] -= seconds

    def left_s(self, now: float | None = None) -> float:
        """Return the seconds until the deadline."""
        return self.received_at + self.train.seconds_left - (now or time.monotonic())

    def time_is_up(self, reserve_s: float, now: float | None = None) -> bool:
        """Return whether no more than `reserve_s` are left; raise `WithdrawnError` if withdrawn."""
        if self._withdrawn.is_set():
            raise WithdrawnError("the orchestrator has withdrawn this assignment")
        return bool(time_is_up(self.left_s(now), reserve_s))

    def stop_signal(self, device: Device, upload_s: float) -> Callable[[], bool]:
        """Return the function that a `BatchStream` calls before every batch and while it waits.

        A batch that would end too late, if it takes as long as the previous one, is not started.
        """

        def stop() -> bool:
            device.throttle()
            self._batch_at = device.now()
            return self.time_is_up(upload_s + self.batch_s, self._batch_at)

        return stop

    def time_batches(self, batches: Iterator[Split], device: Device) -> Iterator[Split]:
        """Return the batches at the speed of the device; count visits and time setup and batches.

        Setup starts now and ends when the first batch is requested.
        """
        device.start_compute()
        began = device.now()

        def time_batches() -> Iterator[Split]:
            device.throttle()
            self.setup_s = self.batch_s = device.now() - began
            for batch in batches:
                self.visits += len(batch)
                yield batch
                device.throttle()
                self.batch_s = device.now() - self._batch_at
                self.trained_s += self.batch_s

        return device.pace(time_batches())

"""An assignment at a learner: fetch, train until time is up, and what each phase took."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan

from melisma.cycle.events import PHASES
from melisma.cycle.learner import time_is_up
from melisma.errors import MelismaError
from melisma.live.learner.device import Device
from melisma.live.protocol import Train


def seconds_per(seconds: float, count: float) -> float:
    """Seconds for one, NaN where there was none."""
    return seconds / count if count else nan


class WithdrawnError(MelismaError):
    """The orchestrator does not wait for this work any more."""


@dataclass
class ActiveAssignment:
    """One order to train: until when, how far, and whether it still counts."""

    train: Train
    received_at: float
    visits: int = 0
    shipped: int = 0
    setup_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _withdrawn: threading.Event = field(default_factory=threading.Event)
    _lap_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._lap_at = self.received_at

    @property
    def key(self) -> tuple[int, int]:
        """What names it."""
        return self.train.cycle, self.train.attempt

    def withdraw(self) -> None:
        """It no longer counts; from any thread."""
        self._withdrawn.set()

    def lap(self, phase: str) -> float:
        """What came since the last lap was this phase; its seconds."""
        now = time.monotonic()
        took_s, self._lap_at = now - self._lap_at, now
        self.seconds[phase] += took_s
        return took_s

    def time_is_up(self, reserve_s: float, now: float | None = None) -> bool:
        """Whether it is time to hand in, with so long for what is left; raises if withdrawn."""
        if self._withdrawn.is_set():
            raise WithdrawnError("the orchestrator does not wait for this work any more")
        left_s = self.received_at + self.train.seconds_left - (now or time.monotonic())
        return bool(time_is_up(left_s, reserve_s))

    def stop_signal(self, device: Device, batch: int, upload_s: float) -> Callable[[], bool]:
        """Asked before every batch: keeps the pace of the device, and says when to stop.

        A batch that would end too late by as long as the last one took is not begun.
        """
        device.start_compute()
        began = asked_at = device.now()

        def asked() -> bool:
            nonlocal asked_at
            device.throttle()
            now = device.now()
            if asked_at == began:
                self.setup_s = now - began
            if self.time_is_up(upload_s + now - asked_at, now):
                return True
            asked_at = now
            self.visits += batch
            return False

        return asked

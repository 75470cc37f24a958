"""An assignment that a learner works on: its deadline and the seconds of each phase."""

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
    shipped: int = 0
    setup_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _withdrawn: threading.Event = field(default_factory=threading.Event)
    _lap_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._lap_at = self.received_at

    @property
    def key(self) -> tuple[int, int]:
        """Cycle and attempt: they identify the assignment at this learner."""
        return self.train.cycle, self.train.attempt

    def withdraw(self) -> None:
        """Withdraw the assignment, from any thread."""
        self._withdrawn.set()

    def lap(self, phase: str) -> float:
        """Charge the time since the previous lap to `phase` and return it."""
        now = time.monotonic()
        seconds, self._lap_at = now - self._lap_at, now
        self.seconds[phase] += seconds
        return seconds

    def time_is_up(self, reserve_s: float, now: float | None = None) -> bool:
        """Return whether no more than `reserve_s` are left; raise `WithdrawnError` if withdrawn."""
        if self._withdrawn.is_set():
            raise WithdrawnError("the orchestrator has withdrawn this assignment")
        left_s = self.received_at + self.train.seconds_left - (now or time.monotonic())
        return bool(time_is_up(left_s, reserve_s))

    def stop_signal(self, device: Device, batch: int, upload_s: float) -> Callable[[], bool]:
        """Return the function that a trainer calls before every batch: it paces and stops it.

        A batch that would end too late, if it takes as long as the previous one, is not started.
        """
        device.start_compute()
        began = previous_at = device.now()

        def stop() -> bool:
            nonlocal previous_at
            device.throttle()
            now = device.now()
            if previous_at == began:
                self.setup_s = now - began
            if self.time_is_up(upload_s + now - previous_at, now):
                return True
            previous_at = now
            self.visits += batch
            return False

        return stop

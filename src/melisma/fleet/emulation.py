"""Emulation of devices: slows a process to the compute and the link of another device.

The classes compare the time that has passed with the time that the device would need in total, and
sleep for the difference, so that errors do not add up. Compute is measured in processor time: other
load on the machine makes a learner sleep less, not train less. Clocks and sleep are arguments, and
so is the rate of a device that varies: its factor at a time, and when that changes next.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from threading import Lock

from melisma.errors import SettingError

Rate = Callable[[float], tuple[float, float]]
# A process that wakes has cold caches, and small models then take twice the processor time: sleep
# at least this long at once.
MIN_SLEEP_S = 0.05
# A link makes up for at most this much oversleeping.
MAX_CATCH_UP_S = 0.05
# Transfers at the same time take turns on a link after at most this long.
TURN_S = 0.05


def never() -> bool:
    """Return that nothing is over."""
    return False


def constant_rate(_: float) -> tuple[float, float]:
    """Return the rate of a device that does not vary."""
    return 1.0, inf


def end_of_work(rate: Rate, begin_s: float, work_s: float) -> float:
    """Return when work that takes `work_s` seconds at a factor of 1 ends."""
    while True:
        factor, until_s = rate(begin_s)
        possible_s = factor * (until_s - begin_s)
        if possible_s >= work_s:
            return begin_s + work_s / factor if work_s > 0 else begin_s
        begin_s, work_s = until_s, work_s - possible_s


@dataclass
class ComputePacer:
    """Makes work take as long as on a share of one core.

    The device needs the processor time used so far divided by the share, which `rate` multiplies.
    `now` is the device's clock. `throttle`, called after every small piece of work, keeps this
    machine's clock within `MIN_SLEEP_S` of it; `catch_up` removes the rest. `used_s` is the
    processor time of the work.
    """

    share: float
    used_s: Callable[[], float]
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    rate: Rate = constant_rate
    _due: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise SettingError(f"share is {self.share:g}; expected more than 0")
        self.begin()

    def begin(self) -> None:
        """Start counting; ignore processor time used before."""
        self._due = self.now_s(), self.used_s()

    def skip(self, seconds: float) -> None:
        """Record that the device had no work for this long: it cannot make up for that time."""
        due_s = self._due_s()
        self._due = due_s + seconds, self._due[1]

    def now(self) -> float:
        """Return the time on the device."""
        return max(self.now_s(), self._due_s())

    def throttle(self) -> None:
        """Sleep until the device is done, if that takes longer than `MIN_SLEEP_S`."""
        self._wait(min_s=MIN_SLEEP_S)

    def catch_up(self) -> None:
        """Sleep until the device is done."""
        self._wait(min_s=0.0)

    def _wait(self, min_s: float) -> None:
        left_s = self._due_s() - self.now_s()
        if left_s > min_s:
            self.sleep(left_s)

    def _due_s(self) -> float:
        due_s, counted_s = self._due
        used_s = self.used_s()
        due_s = end_of_work(self.rate, due_s, (used_s - counted_s) / self.share)
        self._due = due_s, used_s
        return due_s


@dataclass
class DurationPacer:
    """Makes each piece of work take a given number of seconds, however fast this machine is.

    `finish_piece` ends the piece that began at `begin` or at the previous `finish_piece`.
    """

    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    rate: Rate = constant_rate
    _mark_s: float = field(init=False, default=float("-inf"))
    _free_s: float = field(init=False, default=float("-inf"))

    def begin(self) -> None:
        """Start a piece of work now."""
        self._mark_s = self.now()

    def finish_piece(self, seconds: float) -> None:
        """End a piece that takes `seconds` on the device, and start the next one."""
        self._free_s = max(self._free_s, end_of_work(self.rate, self._mark_s, seconds))
        self.begin()

    def now(self) -> float:
        """Return the time on the device."""
        return max(self.now_s(), self._free_s)

    def throttle(self) -> None:
        """Sleep until the device is done, if that takes longer than `MIN_SLEEP_S`."""
        self._wait(min_s=MIN_SLEEP_S)

    def catch_up(self) -> None:
        """Sleep until the device is done."""
        self._wait(min_s=0.0)

    def _wait(self, min_s: float) -> None:
        left_s = self._free_s - self.now_s()
        if left_s > min_s:
            self.sleep(left_s)


@dataclass
class LinkShaper:
    """Makes transfers take as long as on a link of a given bandwidth and latency, in one direction.

    Call `begin` at the start of a transfer and `transfer` after every piece of it. Transfers of
    several threads share the link evenly, as they take turns.
    """

    bandwidth_bps: float
    latency_s: float
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    rate: Rate = constant_rate
    _free_s: float = field(init=False, default=float("-inf"))
    _lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self) -> None:
        if not self.bandwidth_bps > 0 or not self.latency_s >= 0:
            raise SettingError(
                f"link has bandwidth_bps {self.bandwidth_bps:g} and latency_s {self.latency_s:g}; "
                "expected a bandwidth above 0 and a latency of at least 0"
            )

    def begin(self) -> None:
        """Start a transfer: wait for the latency."""
        self.sleep(self.latency_s)
        with self._lock:
            self._free_s = max(self._free_s, self.now_s())

    def transfer(self, size_bytes: int, is_over: Callable[[], bool] = never) -> None:
        """Wait until the link would have carried `size_bytes` more bytes, or `is_over`."""
        turn_bytes = max(1, int(self.bandwidth_bps / 8 * TURN_S))
        for start in range(0, max(size_bytes, 1), turn_bytes):
            if is_over():
                return
            left_s = self._reserve_s(min(turn_bytes, size_bytes - start))
            if left_s > 0:
                self.sleep(left_s)

    def _reserve_s(self, size_bytes: int) -> float:
        """Reserve the link for these bytes; return the seconds until it has carried them."""
        with self._lock:
            now_s = self.now_s()
            since_s = max(self._free_s, now_s - MAX_CATCH_UP_S)
            self._free_s = end_of_work(self.rate, since_s, 8 * size_bytes / self.bandwidth_bps)
            return self._free_s - now_s


@dataclass
class Contention:
    """Processor seconds that a stressor takes from training on the same core.

    The stressor's thread adds to `used_s`; the thread that trains counts what was used while it had
    work, and discards the rest.
    """

    used_s: float = 0.0
    counted_s: float = field(init=False, default=0.0)
    _seen_s: float = field(init=False, default=0.0)

    def count(self) -> float:
        """Count the seconds used since the last call; return all that were counted."""
        used_s = self.used_s
        self.counted_s += used_s - self._seen_s
        self._seen_s = used_s
        return self.counted_s

    def discard(self) -> None:
        """Do not count the seconds used since the last call: training had no work meanwhile."""
        self._seen_s = self.used_s

"""Emulated devices: a process slowed to the compute and the link of the device it stands for.

Both count what really happened and wait for the rest, so that small errors never add up. Compute
is paced by the processor time that was used: other load on the machine makes a learner wait less,
not train less. Clocks and sleep are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from melisma.errors import SettingError

# Whoever sleeps wakes to cold caches, and small models then take twice the processor time: rests
# are saved up to naps of this length.
MIN_SLEEP_S = 0.05
# A link makes up for what sleeping and scheduling took too long, as far back as this.
MAX_CATCH_UP_S = 0.05


@dataclass
class ComputePacer:
    """Makes work take as long as on a share of one core.

    The device would be done when the processor time used so far, divided by the share, has passed:
    `now` is its clock. `rest`, called after every small piece of work, keeps this machine's clock
    within a nap of it; `settle` brings it there. `used_s` is the processor time of this process.
    """

    share: float
    used_s: Callable[[], float]
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    _began: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise SettingError(f"share is {self.share:g}; expected more than 0")
        self.begin()

    def begin(self) -> None:
        """Start counting: what was before is not made up for."""
        self._began = self.now_s(), self.used_s()

    def now(self) -> float:
        """The time on the device."""
        return max(self.now_s(), self._due_s())

    def throttle(self) -> None:
        """Wait for the device, if it is a nap behind."""
        self._wait(least_s=MIN_SLEEP_S)

    def catch_up(self) -> None:
        """Wait for the device."""
        self._wait(least_s=0.0)

    def _wait(self, least_s: float) -> None:
        left_s = self._due_s() - self.now_s()
        if left_s > least_s:
            self.sleep(left_s)

    def _due_s(self) -> float:
        began_s, used_before_s = self._began
        return began_s + (self.used_s() - used_before_s) / self.share


@dataclass
class DurationPacer:
    """Makes pieces of work take as long as is said of each, however soon this machine has done it.

    `worked` is called after a piece that began at the last call, or at `begin`. What lies between
    pieces takes as long as it takes here.
    """

    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    _mark_s: float = field(init=False, default=float("-inf"))
    _free_s: float = field(init=False, default=float("-inf"))

    def begin(self) -> None:
        """A piece of work begins."""
        self._mark_s = self.now()

    def finish_piece(self, seconds: float) -> None:
        """It is done, and the next one begins."""
        self._free_s = max(self._free_s, self._mark_s + seconds)
        self.begin()

    def now(self) -> float:
        """The time on the device."""
        return max(self.now_s(), self._free_s)

    def throttle(self) -> None:
        """Wait for the device, if it is a nap behind."""
        self._wait(least_s=MIN_SLEEP_S)

    def catch_up(self) -> None:
        """Wait for the device."""
        self._wait(least_s=0.0)

    def _wait(self, least_s: float) -> None:
        left_s = self._free_s - self.now_s()
        if left_s > least_s:
            self.sleep(left_s)


@dataclass
class LinkShaper:
    """Makes bytes take as long as on a link of some bandwidth and latency, one way at a time.

    `begin` is called where a transfer starts and waits for the latency; `passed` after every piece,
    and waits until the link would have carried it. Pieces of several transfers queue up.
    """

    bandwidth_bps: float
    latency_s: float
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    _free_s: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        if not self.bandwidth_bps > 0 or not self.latency_s >= 0:
            raise SettingError(
                f"a link of {self.bandwidth_bps:g} bits/s and {self.latency_s:g} s; expected more "
                "than 0, and at least 0"
            )

    def begin(self) -> None:
        """The first byte is on its way."""
        self.sleep(self.latency_s)
        self._free_s = max(self._free_s, self.now_s())

    def transfer(self, size_bytes: int) -> None:
        """So many bytes more have gone over the link."""
        now_s = self.now_s()
        since_s = max(self._free_s, now_s - MAX_CATCH_UP_S)
        self._free_s = since_s + 8 * size_bytes / self.bandwidth_bps
        if self._free_s > now_s:
            self.sleep(self._free_s - now_s)

"""Limits that the owner of a device sets on its use: hours, battery, and share of cores.

Times are local times of the device. Batteries are read from ``/sys/class/power_supply``.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from typing import Final

from melisma.errors import SettingError
from melisma.live.joining.sysfs import read_number, read_word

POWER_SUPPLY: Final = Path("/sys/class/power_supply")
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PASSIVE_THREADS: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait do not spin: on a device with other work that is several times slower."""
NICENESS: Final = 10
"""The niceness of a learner that may use a part of the cores only."""


@dataclass(frozen=True)
class Hours:
    """The hours of a day in which a device may work; they may pass midnight."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """Read hours such as ``22:00-06:00``."""
        times = [_parse_time(part) for part in text.split("-")]
        match times:
            case [time() as start, time() as end]:
                hours = cls(start, end)
            case _:
                raise SettingError(f"--hours is {text!r}: write it as in 22:00-06:00")
        if hours.start == hours.end:
            raise SettingError(f"--hours is {text!r}, which is empty: leave it out to work always")
        return hours

    def contains(self, now: time) -> bool:
        """Return whether a time of day is within the hours; the end is not."""
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def _parse_time(text: str) -> time | None:
    """Return a time of day; midnight may be written as 24:00."""
    parts = re.fullmatch(r"\s*(\d{1,2}):(\d\d)\s*", text)
    if parts is None or int(parts[1]) > 24 or int(parts[2]) > 59:
        return None
    if int(parts[1]) == 24 and int(parts[2]):
        return None
    return time(int(parts[1]) % 24, int(parts[2]))


@dataclass(frozen=True)
class Battery:
    """The charge of a device, and whether it is connected to power."""

    percent: float
    has_power: bool


def read_battery(folder: Path = POWER_SUPPLY) -> Battery | None:
    """Return the battery of this device with the lowest charge; None if it has none.

    Batteries of peripherals, such as a mouse, do not count.
    """
    supplies = sorted(folder.iterdir()) if folder.is_dir() else []
    batteries, has_power = list[float](), False
    for supply in supplies:
        kind = read_word(supply / "type").lower()
        if kind == "battery" and read_word(supply / "scope").lower() != "device":
            has_power |= read_word(supply / "status").lower() in (
                "charging",
                "full",
                "not charging",
            )
            if (percent := _percent(supply)) is not None:
                batteries.append(percent)
        elif kind in ("mains", "usb", "wireless"):
            has_power |= read_word(supply / "online") == "1"
    return Battery(min(batteries), has_power) if batteries else None


def reports_power(folder: Path = POWER_SUPPLY) -> bool:
    """Return whether this system reports its batteries, if it has any."""
    return folder.is_dir()


def _percent(supply: Path) -> float | None:
    """Return the charge in percent, also of batteries that report energy or charge alone."""
    if (capacity := read_number(supply / "capacity")) is not None:
        return capacity
    for unit in ("energy", "charge"):
        now, full = read_number(supply / f"{unit}_now"), read_number(supply / f"{unit}_full")
        if now is not None and full:
            return 100 * now / full
    return None


@dataclass(frozen=True)
class UseLimits:
    """When a device may work, and with which part of its cores; by default always, with all."""

    hours: Hours | None = None
    min_battery_percent: float | None = None
    core_share: float = 1.0
    power_supply: Path = POWER_SUPPLY
    now: Callable[[], datetime] = lambda: datetime.now().astimezone()

    def __post_init__(self) -> None:
        """Raise `SettingError` for values out of range."""
        if not 0 < self.core_share <= 1:
            raise SettingError(
                f"--cores is {self.core_share:g}: use a share of the cores above 0 and up to 1"
            )
        percent = self.min_battery_percent
        if percent is not None and not 0 <= percent <= 100:
            raise SettingError(f"--min-battery is {percent:g}: use a percentage from 0 to 100")
        if percent is not None and not reports_power(self.power_supply):
            raise SettingError(
                f"--min-battery is {percent:g}, but this system does not report its battery: it "
                f"has no {self.power_supply}, which only Linux has; leave --min-battery out"
            )

    def find_reason_to_pause(self) -> str | None:
        """Return why the device must not work now; None if it may.

        A device without a battery, or with one that has power, may work at any charge.
        """
        if self.hours is not None and not self.hours.contains(self.now().time()):
            return f"outside of the hours {self.hours}"
        if self.min_battery_percent is None:
            return None
        battery = read_battery(self.power_supply)
        if battery is None or battery.has_power or battery.percent >= self.min_battery_percent:
            return None
        return (
            f"the battery is at {battery.percent:.0f} %, below {self.min_battery_percent:g} %, and "
            "is not charging"
        )

    def cores(self, available: "set[int]") -> "set[int]":
        """Return the cores that the learner may use, at least one; the last ones of those there.

        The first core handles most interrupts of small devices.
        """
        count = max(1, round(self.core_share * len(available)))
        return set(sorted(available)[-count:])


def available_cores() -> "set[int]":
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))

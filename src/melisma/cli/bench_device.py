"""The device that `melisma bench` measures: this machine, or an emulated device."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from melisma.errors import SettingError, suggest
from melisma.fleet.emulation import ComputePacer, LinkShaper
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.task import Task


@dataclass(frozen=True)
class BenchDevice:
    """A device to emulate.

    `core_share` returns its share of one core of this machine, given the seconds in which that
    core trains a sample.
    """

    name: str
    core_share: Callable[[float], float]
    downlink_bps: float
    latency_s: float

    def link(self) -> LinkShaper:
        """Return its downlink, idle."""
        return LinkShaper(self.downlink_bps, self.latency_s, time.perf_counter, time.sleep)


@dataclass(frozen=True)
class Pacing:
    """The clock of a device, and a function to call after every piece of work on it."""

    now_s: Callable[[], float]
    throttle: Callable[[], None]


def start_pacing(share: float | None) -> Pacing:
    """Start pacing at this share of one core; None is this machine without pacing.

    Each measurement starts its own pacing, so that it does not make up for time that the previous
    one lost to other load on the machine.
    """
    if share is None:
        return Pacing(time.perf_counter, lambda: None)
    pace = ComputePacer(share, time.process_time, time.perf_counter, time.sleep)
    return Pacing(pace.now, pace.throttle)


def select_device(
    task: Task, fleet_path: str | None, learner: str | None, profile: str | None
) -> BenchDevice | None:
    """Return the device to emulate; None for this machine."""
    if fleet_path is not None and learner is not None:
        return _fleet_device(task, fleet_path, learner)
    if profile is None:
        return None
    if profile not in PROFILES:
        raise SettingError(f"--profile is {profile!r}; {suggest(profile, PROFILES)}")
    device = PROFILES[profile]
    return BenchDevice(profile, lambda _: device.compute, device.downlink_bps, device.latency_s)


def _fleet_device(task: Task, path: str, name: str) -> BenchDevice:
    fleet = read_fleet(path)
    if name not in fleet.names:
        raise SettingError(f"{path}: unknown learner {name!r}; {suggest(name, fleet.names)}")
    index = fleet.names.index(name)
    return BenchDevice(
        name,
        lambda core_sample_s: float(fleet.core_shares(task, core_sample_s)[index]),
        float(fleet.downlink_bps[index]),
        float(fleet.latency_s[index]),
    )

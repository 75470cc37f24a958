"""The device that `melisma bench` measures: this one, or one that it emulates."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from melisma.errors import SettingError, suggest
from melisma.fleet.emulation import ComputePacer, LinkShaper
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.profiles import PROFILES
from melisma.fleet.task import Task


@dataclass(frozen=True)
class Emulated:
    """A device to stand for.

    `core_share` says how much of one core of this machine it amounts to, given the seconds in
    which that core trains a sample.
    """

    name: str
    core_share: Callable[[float], float]
    bandwidth_bps: float
    latency_s: float

    def link(self) -> LinkShaper:
        """Its link, idle."""
        return LinkShaper(self.bandwidth_bps, self.latency_s, time.perf_counter, time.sleep)


@dataclass(frozen=True)
class Pacing:
    """The clock of a device, and what to call after every piece of work on it."""

    now_s: Callable[[], float]
    throttle: Callable[[], None]


def paced(share: float | None) -> Pacing:
    """From now on, on so much of one core.

    Each measurement has its own: what one lost to other load on the machine, the next does not
    make up for. A device that is as it is waits for nothing.
    """
    if share is None:
        return Pacing(time.perf_counter, lambda: None)
    pace = ComputePacer(share, time.process_time, time.perf_counter, time.sleep)
    return Pacing(pace.now, pace.throttle)


def chosen(
    task: Task, fleet_path: str | None, learner: str | None, profile: str | None
) -> Emulated | None:
    """The device that was asked for; None for this one."""
    if fleet_path is not None and learner is not None:
        return _learner(task, fleet_path, learner)
    if profile is None:
        return None
    if profile not in PROFILES:
        raise SettingError(f"--profile is {profile!r}; {suggest(profile, PROFILES)}")
    kind = PROFILES[profile]
    return Emulated(profile, lambda _: kind.compute, kind.bandwidth_bps, kind.latency_s)


def _learner(task: Task, path: str, name: str) -> Emulated:
    fleet = read_fleet(path)
    if name not in fleet.names:
        raise SettingError(f"{path}: no learner is called {name!r}; {suggest(name, fleet.names)}")
    place = fleet.names.index(name)
    return Emulated(
        name,
        lambda core_sample_s: float(fleet.core_shares(task, core_sample_s)[place]),
        float(fleet.bandwidth_bps[place]),
        float(fleet.latency_s[place]),
    )

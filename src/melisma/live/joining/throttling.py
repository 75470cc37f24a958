"""Signs that a device runs slower than it could: heat, low voltage, a lowered clock.

A slower device still trains: its costs are measured in every cycle. These are notes for its owner.
"""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from melisma.live.joining.sysfs import read_number, read_word

THERMAL: Final = Path("/sys/class/thermal")
CPUS: Final = Path("/sys/devices/system/cpu")
CLOCK_FRACTION: Final = 0.8
"""A limit of the clock below this fraction of the highest one is reported."""
VCGENCMD_S: Final = 2.0
# Bits of `vcgencmd get_throttled` that hold now; higher bits hold since the device was started.
PI_FLAGS: Final = {
    0x1: "the supply voltage is too low: use a stronger power supply",
    0x2: "the clock is limited by heat: cool the device",
    0x4: "throttled by the firmware",
    0x8: "near the temperature limit: cool the device",
}


def run_vcgencmd() -> str:
    """Return the answer of the Raspberry Pi's firmware; empty on other devices."""
    command = shutil.which("vcgencmd")
    if command is None:
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [command, "get_throttled"], capture_output=True, timeout=VCGENCMD_S, check=False
        )
        return done.stdout.decode("ascii", "replace")
    return ""


def find_throttling(
    thermal: Path = THERMAL, cpus: Path = CPUS, vcgencmd: Callable[[], str] = run_vcgencmd
) -> tuple[str, ...]:
    """Return the reasons for which this device runs slower now; empty if there is no sign."""
    return (*_pi_reasons(vcgencmd()), *_hot_zones(thermal), *_clock_limits(cpus))


def reports_throttling(thermal: Path = THERMAL, cpus: Path = CPUS) -> bool:
    """Return whether this system reports temperatures or clocks at all."""
    found = (*thermal.glob("thermal_zone*"), *cpus.glob("cpu[0-9]*/cpufreq"))
    return bool(found) or shutil.which("vcgencmd") is not None


def _pi_reasons(answer: str) -> list[str]:
    found = re.search(r"throttled=0x([0-9a-fA-F]+)", answer)
    flags = int(found[1], 16) if found else 0
    return [reason for bit, reason in PI_FLAGS.items() if flags & bit]


def _hot_zones(thermal: Path) -> list[str]:
    """Return the zones at or above a trip point at which the system slows the device down."""
    reasons = []
    for zone in sorted(thermal.glob("thermal_zone*")):
        temperature = read_number(zone / "temp")
        trips = [
            read_number(path.with_name(path.name.replace("_type", "_temp")))
            for path in zone.glob("trip_point_*_type")
            if read_word(path) in ("passive", "hot", "critical")
        ]
        limits = [trip for trip in trips if trip is not None and trip > 0]
        if temperature is not None and limits and temperature >= min(limits):
            name, limit = read_word(zone / "type") or zone.name, min(limits)
            reasons.append(
                f"{name} is at {temperature / 1000:.0f} °C, its limit is {limit / 1000:.0f} °C"
            )
    return reasons


def _clock_limits(cpus: Path) -> list[str]:
    """Return a reason if the highest allowed clock of a core is far below what it can do."""
    for folder in sorted(cpus.glob("cpu[0-9]*/cpufreq")):
        allowed, highest = (
            read_number(folder / "scaling_max_freq"),
            read_number(folder / "cpuinfo_max_freq"),
        )
        if allowed and highest and allowed < CLOCK_FRACTION * highest:
            limited = f"{allowed / 1e6:.2f} GHz of {highest / 1e6:.2f} GHz"
            return [f"the clock is limited to {limited} ({folder.parent.name})"]
    return []

"""Memory and processor time of a process and all that it started, as the kernel counts them."""

import time
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The processes that a process started, directly or not."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def resident_mb(pid: int) -> float:
    """Resident memory now; pages that processes share count once for each."""
    return sum(_status_mb(each, "VmRSS") for each in [pid, *descendants(pid)])


def peak_mb(pid: int) -> float:
    """The most that was ever resident, each process's own peak added up."""
    return sum(_status_mb(each, "VmHWM") for each in [pid, *descendants(pid)])


def cpu_s(pid: int) -> float:
    """Processor time of all threads, also of those that have ended."""
    used_s = 0.0
    for each in [pid, *descendants(pid)]:
        with suppress(OSError):
            used_s += time.clock_gettime(_clock(each))
    return used_s


def _clock(pid: int) -> int:
    """The kernel's number for the CPU clock of a process, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def _status_mb(pid: int, field: str) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0

"""Memory and processor time of a process and its descendants, as the kernel counts them."""

import time
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the direct and indirect children of a process."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                pids += [child, *descendants(child)]
    return pids


def resident_mb(pid: int) -> float:
    """Return the current resident memory; shared pages count once for each process."""
    return sum(_status_mb(each, "VmRSS") for each in [pid, *descendants(pid)])


def peak_mb(pid: int) -> float:
    """Return the sum of the peak resident memory of each process."""
    return sum(_status_mb(each, "VmHWM") for each in [pid, *descendants(pid)])


def cpu_s(pid: int) -> float:
    """Return the processor time of all threads, including those that have ended."""
    used_s = 0.0
    for each in [pid, *descendants(pid)]:
        with suppress(OSError):
            used_s += time.clock_gettime(_clock(each))
    return used_s


def _clock(pid: int) -> int:
    """Return the id of the CPU clock of a process, computed as by clock_getcpuclockid(3)."""
    return (~pid << 3) | 2


def _status_mb(pid: int, field: str) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0

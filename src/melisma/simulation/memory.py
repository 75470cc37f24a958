"""Whether a simulation fits into the memory that is free, asked before it begins."""

import os
from pathlib import Path

from melisma.errors import SettingError

# Bytes of a learner in all columns of machine, devices and report, and of one of its cycles.
LEARNER, CYCLE = 1500, 300
# Bytes of a shard that somebody holds.
HELD = 60


def check_memory(needed_bytes: float, what: str, free_bytes: float | None = None) -> None:
    """`SettingError` if so much is not to be had."""
    free = free_memory() if free_bytes is None else free_bytes
    if needed_bytes > free:
        raise SettingError(
            f"{what} need about {needed_bytes / 1e9:.2g} GB of memory; {free / 1e9:.2g} GB are free"
        )


def free_memory() -> float:
    """Bytes that this machine can still give away."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # Not every system has it.
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    known = dict(line.split(":", 1) for line in lines)
    return float(known["MemAvailable"].split()[0]) * 1024

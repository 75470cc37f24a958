"""Memory: whether a simulation fits into what is free, and that it keeps what it was given."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from melisma.allocation.dab import dab_bounds
from melisma.allocation.schemes import get_scheme
from melisma.errors import SettingError
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task

# Bytes, measured: of a learner in all columns, of one of its cycles in the report, of a shard that
# is dealt in a cycle, of one that somebody holds, and of one that there is.
LEARNER, CYCLE, DEALT, HELD, SHARD = 1500, 150, 80, 60, 60


# Of `mallopt` in glibc: how much may lie idle at the end of the heap, and how many pieces may be
# had apart from it.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
MOST_IDLE = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Have what is freed stay with this process: to get it anew, page by page, takes long.

    A tenth to a fifth of the work with large arrays; for processes that only simulate, as a
    process may hold all that it ever had until it ends.
    """
    # Other libraries than glibc do as they like.
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, MOST_IDLE)
        mallopt(MMAP_MAX, 0)


def check_memory(task: Task, fleet: Fleet) -> None:
    """`SettingError` if so much is not to be had."""
    needed, free = memory_needed_bytes(task, fleet), free_memory_bytes()
    if needed > free:
        raise SettingError(
            f"{fleet.learners:,} learners and {task.cycles} cycles need about "
            f"{needed / 1e9:.2g} GB of memory; {free / 1e9:.2g} GB are free: fewer learners or "
            "cycles, or larger shard_samples, need less"
        )


def memory_needed_bytes(task: Task, fleet: Fleet) -> float:
    """Bytes that a run needs at its largest, roughly."""
    learners, dealt = fleet.learners, _dealt(task, fleet)
    held = 0.0
    if task.mode == "parallelized":
        held = min(dealt * task.cycles, learners * task.shards) + 8.0 * learners
    columns = learners * (LEARNER + CYCLE * task.cycles)
    return columns + DEALT * dealt + HELD * held + SHARD * task.shards


def _dealt(task: Task, fleet: Fleet) -> float:
    """Shards that are handed out in a cycle: all, or with DAB what learners ask for."""
    if get_scheme(task.scheme).hands_out_all or task.mode == "federated":
        return task.shards
    costs = fleet.estimates(task).mean()
    asked = dab_bounds(task.deadline_s, **costs, passes=task.passes or 1)
    most = min(task.shards, task.max_shards or task.shards)
    return float(np.minimum(asked, most).sum())


def free_memory_bytes() -> float:
    """Bytes that this machine can still give away."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # Not every system has it.
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    known = dict(line.split(":", 1) for line in lines)
    return float(known["MemAvailable"].split()[0]) * 1024

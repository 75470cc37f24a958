"""Memory: check that a simulation fits, and keep freed memory in the process."""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from melisma.allocation.dab import dab_bounds
from melisma.allocation.schemes import get_scheme
from melisma.errors import SettingError
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task

# Measured bytes of a learner in all columns, of one of its cycles in the report, of a shard dealt
# in a cycle, of a shard that a learner holds, and of a shard that exists.
LEARNER_BYTES, CYCLE_BYTES, DEALT_BYTES, HELD_BYTES, SHARD_BYTES = 1800, 120, 80, 60, 60

# Parameters of glibc's `mallopt`: free bytes that may stay at the end of the heap, and the number
# of blocks that may be mapped outside of it.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
MAX_IDLE_BYTES = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let freed memory stay with this process, as getting it anew page by page is slow.

    This saves a tenth to a fifth of the work with large arrays. It is for processes that only
    simulate, as the process holds its peak memory until it ends.
    """
    # Only glibc has `mallopt`.
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, MAX_IDLE_BYTES)
        mallopt(M_MMAP_MAX, 0)


def return_freed_memory() -> None:
    """Return memory that was freed to the system, between two tasks that need much of it.

    Free memory between arrays that stay is in pieces that may be too small for the next task.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def check_memory(task: Task, fleet: Fleet) -> None:
    """Raise `SettingError` if the simulation needs more memory than is free."""
    needed, free = memory_needed_bytes(task, fleet), free_memory_bytes()
    if needed > free:
        raise SettingError(
            f"{fleet.learners:,} learners and {task.expected_cycles} cycles need about "
            f"{needed / 1e9:.2g} GB of memory, but {free / 1e9:.2g} GB are free; use fewer "
            "learners or cycles, or larger shard_samples"
        )


def memory_needed_bytes(task: Task, fleet: Fleet) -> float:
    """Estimate the peak memory of a run."""
    learners, dealt = fleet.learners, _shards_per_cycle(task, fleet)
    held = 0.0
    if task.mode == "parallelized":
        held = min(dealt * task.expected_cycles, learners * task.shards) + 8.0 * learners
    columns = learners * (LEARNER_BYTES + CYCLE_BYTES * task.expected_cycles)
    return columns + DEALT_BYTES * dealt + HELD_BYTES * held + SHARD_BYTES * task.shards


def _shards_per_cycle(task: Task, fleet: Fleet) -> float:
    """Return the shards dealt in a cycle: all, or with DAB the bounds of the learners."""
    if get_scheme(task.scheme).hands_out_all or task.mode == "federated":
        return task.shards
    costs: Mapping[str, Any] = fleet.state_costs(task).mean()
    bounds = dab_bounds(task.deadline_s, **costs, passes=task.passes or 1)
    most = min(task.shards, task.max_shards or task.shards)
    return float(np.minimum(bounds, most).sum())


def free_memory_bytes() -> float:
    """Return the bytes of memory that are available on this machine."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # only Linux has it
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    fields = dict(line.split(":", 1) for line in lines)
    return float(fields["MemAvailable"].split()[0]) * 1024

"""Memory that a process keeps for what comes next: to get it anew, page by page, takes long."""

import ctypes
from contextlib import suppress

# Of `mallopt` in glibc: how much may lie idle at the end of the heap, and how many pieces may be
# had apart from it.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
MOST_IDLE = (1 << 31) - 1


def keep_memory() -> None:
    """Have what is freed stay with this process, up to two gigabytes of it.

    For processes of a simulation's own: it is a tenth to a fifth of the work of large arrays.
    """
    # Other libraries than glibc do as they like.
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, MOST_IDLE)
        mallopt(MMAP_MAX, 0)

"""Load of other processes, which distorts measurements."""

import os
import resource
import time
from pathlib import Path

BUSY_SHARE = 0.1
TICK_HZ = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Return the processor time of all processes on all cores since the machine started.

    Interrupts are left out: over loopback they belong to the measured calls.
    """
    first = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system = map(int, first.split()[1:4])
    return (user + nice + system) / TICK_HZ


def own_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    scopes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(scope) for scope in scopes]
    return sum(each.ru_utime + each.ru_stime for each in used)


def wait(limit_s: float = 10.0, sample_s: float = 0.25) -> None:
    """Wait until other processes use less than a tenth of a core, or for `limit_s`."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        before_s = busy_s()
        time.sleep(sample_s)
        if busy_s() - before_s < BUSY_SHARE * sample_s + 1 / TICK_HZ:
            return


class Watch:
    """Measure how much of a core other processes use from the creation of the object."""

    def __init__(self) -> None:
        self.start = time.monotonic(), busy_s(), own_s()

    def others_share(self, more_own_s: float = 0.0) -> float:
        """Return the share in cores; `more_own_s` is time of own processes that `own_s` misses."""
        at_s, busy, own = self.start
        elapsed_s = time.monotonic() - at_s
        return max(0.0, (busy_s() - busy) - (own_s() - own) - more_own_s) / elapsed_s

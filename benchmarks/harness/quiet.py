"""Whether the machine has anything else to do: figures taken beside other work are not figures."""

import os
import resource
import time
from pathlib import Path

BUSY_SHARE = 0.1
TICK_HZ = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Processor time that processes have used on all cores together since the machine started.

    Interrupts are left out: over loopback they are the measured calls' own.
    """
    first = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system = map(int, first.split()[1:4])
    return (user + nice + system) / TICK_HZ


def own_s() -> float:
    """Processor time of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def wait(limit_s: float = 10.0, sample_s: float = 0.25) -> None:
    """Return when others use less than a tenth of a core, or after `limit_s`."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        before_s = busy_s()
        time.sleep(sample_s)
        if busy_s() - before_s < BUSY_SHARE * sample_s + 1 / TICK_HZ:
            return


class Watch:
    """How much of a core others used since this was made."""

    def __init__(self) -> None:
        self.start = time.monotonic(), busy_s(), own_s()

    def others_share(self, more_own_s: float = 0.0) -> float:
        """In cores; `more_own_s` is time of own processes that are not yet counted."""
        at_s, busy, own = self.start
        elapsed_s = time.monotonic() - at_s
        return max(0.0, (busy_s() - busy) - (own_s() - own) - more_own_s) / elapsed_s

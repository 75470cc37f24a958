"""Rates of calls: a caller that calls far more often than a learner needs has to wait.

Each call may add a line to the trace. Calls are delayed, so that no honest learner is lost if it
calls often for a short time. A call that would be delayed by more than `MAX_DELAY_S` is refused and
not counted; that happens only to callers that do not wait for their calls to end.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from melisma.errors import BusyError

CALLS_PER_S: Final = 50.0
BURST_CALLS: Final = 200
MAX_DELAY_S: Final = 10.0
MAX_CALLERS: Final = 10_000


class CallRates:
    """Delays the calls of each caller to `CALLS_PER_S`, after the first `BURST_CALLS`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # When each caller would have made its calls at the highest rate.
        self._paid_until: dict[str, float] = {}

    async def wait(self, caller: str) -> None:
        """Count a call, and wait if its caller made too many before."""
        if (delay_s := self.count(caller)) > 0:
            await asyncio.sleep(delay_s)

    def count(self, caller: str) -> float:
        """Count a call; return the seconds that it has to wait.

        Raises `BusyError` instead if these are more than `MAX_DELAY_S`.
        """
        now, burst_s = self._now(), BURST_CALLS / CALLS_PER_S
        if len(self._paid_until) >= MAX_CALLERS:
            self._paid_until = {name: at for name, at in self._paid_until.items() if at > now}
        paid_until = max(self._paid_until.get(caller, 0.0), now) + 1 / CALLS_PER_S
        delay_s = max(0.0, paid_until - now - burst_s)
        if delay_s > MAX_DELAY_S:
            raise BusyError(
                f"{caller} calls more than {CALLS_PER_S:g} times per second: call again in "
                f"{delay_s:.0f} s"
            )
        self._paid_until[caller] = paid_until
        return delay_s

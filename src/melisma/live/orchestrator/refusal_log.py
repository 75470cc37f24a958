"""Lines about callers that are refused, few enough that an attacker cannot fill a log by them."""

import time
from collections.abc import Callable
from typing import Final

from melisma.text import visible

INTERVAL_S: Final = 60.0
"""Time in which the same reason is said once for a host."""
MAX_LINES: Final = 20
"""Lines in that time for all hosts and reasons."""


class RefusalLog:
    """Says why callers are refused; further refusals are counted."""

    def __init__(
        self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._now = say, now
        self._said: set[tuple[str | None, str]] = set()
        self._began_at, self._unsaid = now(), 0

    def add(self, host: str | None, reason: str) -> None:
        """Say that a caller from `host` was refused, unless that was said before."""
        if self._now() - self._began_at > INTERVAL_S:
            self._begin_interval()
        if (host, reason) in self._said or len(self._said) >= MAX_LINES:
            self._unsaid += 1
            return
        self._said.add((host, reason))
        self._say(f"refused a caller from {host}: {visible(reason)}")

    def _begin_interval(self) -> None:
        if self._unsaid:
            count = "1 more call" if self._unsaid == 1 else f"{self._unsaid} more calls"
            reasons = "reasons stated before"
            if len(self._said) >= MAX_LINES:
                reasons = "these reasons or for others, which are not shown as there are many"
            self._say(f"refused {count}, for {reasons}")
        self._said.clear()
        self._began_at, self._unsaid = self._now(), 0

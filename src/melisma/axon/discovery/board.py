"""The notice board: workers sign in, callers list them; notices expire unless renewed."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from melisma.axon.client.remote import connect

BOARD_PORT: Final = 8002
LIFETIME_S: Final = 60.0
"""Time after which a notice expires, in seconds."""


@dataclass(frozen=True)
class Notice:
    """A worker that is signed in."""

    name: str
    address: str
    functions: list[str]


class NoticeBoard:
    """The notices by unique name; a ticket allows the worker to renew or remove its notice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notices: dict[str, tuple[Notice, str, float]] = {}
        self._lock = threading.Lock()

    def sign_in(
        self,
        name: str,
        address: str,
        functions: list[str],
        lifetime_s: float = LIFETIME_S,
        ticket: str = "",
    ) -> str:
        """Add or renew a notice and return its ticket."""
        with self._lock:
            self._expire()
            _, holder, _ = self._notices.get(name, (None, ticket, 0.0))
            if not secrets.compare_digest(holder.encode(), ticket.encode()):
                raise ValueError(f"a worker {name!r} is already signed in: choose another name")
            ticket = ticket or secrets.token_hex(16)
            expires_at = self._clock() + min(lifetime_s, LIFETIME_S)
            self._notices[name] = Notice(name, address, functions), ticket, expires_at
            return ticket

    def sign_out(self, name: str, ticket: str) -> None:
        """Remove a notice."""
        with self._lock:
            _, holder, _ = self._notices.get(name, (None, "", 0.0))
            if ticket and secrets.compare_digest(holder.encode(), ticket.encode()):
                del self._notices[name]

    def workers(self) -> list[Notice]:
        """Return the current notices, sorted by name."""
        with self._lock:
            self._expire()
            return [self._notices[name][0] for name in sorted(self._notices)]

    def _expire(self) -> None:
        now = self._clock()
        self._notices = {name: entry for name, entry in self._notices.items() if entry[2] > now}


def workers(board: str, *, token: str | None = None) -> list[Notice]:
    """Return the workers that are signed in at a notice board."""
    with connect(board, token=token, types=[Notice]) as remote:
        notices: list[Notice] = remote.workers()
        return notices

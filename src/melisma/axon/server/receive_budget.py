"""Memory for bodies that are being received; a body waits before it is read until it fits.

Sizes are reserved as declared, because a body that was begun must be able to end. One caller may
reserve a quarter of the memory, so that it cannot make all others wait by sending slowly. A body
that is larger than its limit is received when nothing else is, by its caller or by all.
"""

import asyncio
from collections import Counter, deque
from typing import Final

FREE_BYTES: Final = 64 << 10
"""Bodies up to this size never wait."""


class ReceiveBudget:
    """The memory of one server for bodies in transfer."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_caller: Counter[str] = Counter()
        self._waiting: deque[tuple[int, str, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int, caller: str) -> None:
        """Reserve memory; wait for it in the order of arrival."""
        if size <= FREE_BYTES:
            return
        if not self._waiting and self._fits(size, caller):
            self._reserve(size, caller)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size, caller, turn)
        self._waiting.append(waiting)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size, caller)
            else:
                self._waiting.remove(waiting)
                self._wake()
            raise

    def release(self, size: int, caller: str) -> None:
        """Return memory and let waiting bodies begin."""
        if size <= FREE_BYTES:
            return
        self._bytes -= size
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]
        self._wake()

    def _wake(self) -> None:
        for waiting in list(self._waiting):
            size, caller, turn = waiting
            if turn.done():  # Cancelled; its task removes it.
                continue
            if self._fits(size, caller):
                self._waiting.remove(waiting)
                self._reserve(size, caller)
                turn.set_result(None)
            elif not self._over_share(size, caller):
                return  # Smaller bodies must not overtake for ever.

    def _reserve(self, size: int, caller: str) -> None:
        self._bytes += size
        self._by_caller[caller] += size

    def _over_share(self, size: int, caller: str) -> bool:
        held = self._by_caller.get(caller, 0)
        return held > 0 and held + size > self._max_bytes // 4

    def _fits(self, size: int, caller: str) -> bool:
        if self._over_share(size, caller):
            return False
        return self._bytes == 0 or self._bytes + size <= self._max_bytes

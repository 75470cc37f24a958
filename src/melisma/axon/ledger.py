"""Which calls this worker knows: so that none runs twice and no result is lost.

A call has an id. A repeated id is answered from here: it joins the call that runs, or gets the
outcome again. What has been forgotten is never run on a retry: a retry says how long ago it was
first sent, and if a call of that age may already have been forgotten (or have run in an earlier
life of this worker), the answer is `LostError`. Durations are compared, never clocks.
"""

import asyncio
import heapq
import re
from collections.abc import Callable
from itertools import count
from typing import Final

from melisma.axon.context import CallContext
from melisma.axon.outcome import Outcome
from melisma.axon.spool import Kept
from melisma.errors import LostError, MalformedError

_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)

_NOBODY: Final[list[asyncio.Future[None]]] = []
"""Shared by the many calls that nobody waits for; never changed."""


class Entry:
    """One call: running, ended with its outcome, or ended and its outcome handed over."""

    __slots__ = ("_waiters", "context", "ended_at", "function", "id", "kept", "outcome", "task")

    def __init__(self, call_id: str, function: str, context: CallContext) -> None:
        self.id = call_id
        self.function = function
        self.context = context
        self.outcome: Outcome | None = None
        self.kept: Kept | None = None
        self.ended_at: float | None = None
        self.task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = _NOBODY

    def end(self, outcome: Outcome, now: float) -> None:
        """Record how it ended and wake who waits."""
        self.outcome, self.ended_at = outcome, now
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = _NOBODY

    async def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Its outcome, or None if it still runs after ``timeout_s``."""
        if self.ended_at is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters = [*self._waiters, waiter]
            try:
                if timeout_s is None:
                    await waiter
                elif not (await asyncio.wait([waiter], timeout=timeout_s))[0]:
                    return None
            finally:
                self._waiters = [other for other in self._waiters if other is not waiter]
        if self.outcome is None:
            raise LostError(f"the result of call {self.id} was handed over before")
        if self.kept is not None:
            return Outcome(
                self.outcome.status,
                self.outcome.content_type,
                self.kept.buffers(),
                self.outcome.label,
            )
        return self.outcome

    def hand_over(self) -> None:
        """The caller has the outcome: only the id is remembered."""
        if self.ended_at is not None:
            self.outcome = None
            if self.kept is not None:
                self.kept.discard()
                self.kept = None


class Ledger:
    """The calls of one worker, by id."""

    def __init__(self, max_calls: int, clock: Callable[[], float]) -> None:
        self._max_calls = max_calls
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._expiries: list[tuple[float, int, Entry]] = []
        self._order = count()
        self._forgotten_at = clock()
        """Calls that ended before this may have been forgotten."""

    def find(self, call_id: str, age_s: float | None, function: str | None = None) -> Entry | None:
        """The call with this id; None if it is certain that it never ran here."""
        if not _ID.fullmatch(call_id):
            raise MalformedError(f"{call_id!r} is not a call id: up to 64 letters, digits, . : _ -")
        self._forget()
        entry = self._entries.get(call_id)
        if entry is not None:
            if function is not None and entry.function != function:
                raise MalformedError(f"call id {call_id} was used for {entry.function}")
            return entry
        if age_s is not None and self._clock() - age_s <= self._forgotten_at:
            raise LostError(
                f"call {call_id} was first sent {age_s:.1f} s ago, before this worker's memory "
                "begins: whether it ran is not known. Call again if running it twice is harmless"
            )
        return None

    def open(self, call_id: str, function: str, context: CallContext) -> Entry:
        """Begin a call that `find` did not know."""
        entry = self._entries[call_id] = Entry(call_id, function, context)
        return entry

    def end(self, entry: Entry, outcome: Outcome, remember_s: float) -> None:
        """A call ended; it is remembered for ``remember_s``."""
        now = self._clock()
        entry.end(outcome, now)
        heapq.heappush(self._expiries, (now + remember_s, next(self._order), entry))

    def running(self) -> list[Entry]:
        """Calls that have not ended."""
        return [entry for entry in self._entries.values() if entry.ended_at is None]

    def _forget(self) -> None:
        now = self._clock()
        expiries = self._expiries
        while expiries and (expiries[0][0] <= now or len(expiries) > self._max_calls):
            entry = heapq.heappop(expiries)[2]
            entry.hand_over()
            self._entries.pop(entry.id, None)
            self._forgotten_at = max(self._forgotten_at, entry.ended_at or 0.0)

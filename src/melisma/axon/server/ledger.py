"""Which calls this worker knows: so that none runs twice and no result is lost.

A call has an id. A repeated id is answered from here: it joins the call that runs, or gets the
outcome again. What has been forgotten is never run on a retry: a retry says how long ago it was
first sent, and if a call of that age may already have been forgotten (or have run in an earlier
life of this worker), the answer is `LostError`. Durations are compared, never clocks.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from melisma.axon.address import check_call_id
from melisma.axon.codec.message import buffers_bytes
from melisma.axon.codec.outcome import Outcome
from melisma.axon.server.call_metrics import CallSlot
from melisma.axon.server.context import CallContext
from melisma.axon.server.result_spool import SpooledResult
from melisma.errors import LostError, MalformedError, SettingError

LARGE_OUTCOME_BYTES: Final = 16 << 10
"""Outcomes from this size on count against the bytes that are remembered."""
_NO_WAITERS: Final[list[asyncio.Future[None]]] = []
"""Shared by the many calls that nobody waits for; never changed."""


class CallEntry:
    """One call: arriving, begun, ended with its outcome, or ended and its outcome handed over."""

    __slots__ = (
        "_waiters",
        "begun",
        "context",
        "ended_at",
        "outcome",
        "outcome_bytes",
        "slot",
        "spooled",
        "task",
        "uploads",
    )

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.uploads = 0
        """Requests with this id whose bodies are under way."""
        self.begun = False
        self.slot: CallSlot | None = None
        self.task: asyncio.Task[None] | None = None
        """What to cancel with the call; a thread cannot be."""
        self.outcome: Outcome | None = None
        self.outcome_bytes = 0
        self.spooled: SpooledResult | None = None
        self.ended_at: float | None = None
        self._waiters: list[asyncio.Future[None]] = _NO_WAITERS

    @property
    def id(self) -> str:
        """The id of the call."""
        return self.context.id

    def end(self, outcome: Outcome, now: float) -> None:
        """Record how it ended and wake who waits."""
        self.outcome, self.ended_at = outcome, now
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = _NO_WAITERS

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
        if self.spooled is not None:
            return Outcome(
                self.outcome.status,
                self.outcome.content_type,
                self.spooled.buffers(),
                self.outcome.label,
            )
        return self.outcome

    def discard_outcome(self) -> None:
        """The caller has the outcome: only the id is remembered."""
        if self.ended_at is not None:
            self.outcome, self.outcome_bytes = None, 0
            if self.spooled is not None:
                self.spooled.discard()
                self.spooled = None


class Ledger:
    """The calls of one worker, by id: so many at the most, and so many bytes of outcomes."""

    def __init__(
        self, max_calls: int, clock: Callable[[], float], max_bytes: int = 64 << 20
    ) -> None:
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: dict[str, CallEntry] = {}
        self._expiries: list[tuple[float, int, CallEntry]] = []
        self._heavy: deque[CallEntry] = deque()
        """Calls whose outcomes count against the bytes, oldest first."""
        self._heavy_room = 64
        self._order = count()
        self._forgotten_at = clock()
        """Calls that ended before this may have been forgotten."""

    def find(
        self, call_id: str, age_s: float | None, function: str | None = None
    ) -> CallEntry | None:
        """The call with this id; None if it is certain that it never ran here."""
        try:
            check_call_id(call_id)
        except SettingError as error:
            raise MalformedError(str(error)) from None
        self.forget()
        entry = self._entries.get(call_id)
        if entry is not None:
            if function is not None and entry.context.function != function:
                raise MalformedError(f"call id {call_id} was used for {entry.context.function}")
            return entry
        if age_s is not None and self._clock() - age_s <= self._forgotten_at:
            raise LostError(
                f"call {call_id} was first sent {age_s:.1f} s ago, before this worker's memory "
                "begins: whether it ran is not known. Call again if running it twice is harmless"
            )
        return None

    def open(self, context: CallContext) -> CallEntry:
        """Note a call that `find` did not know."""
        entry = self._entries[context.id] = CallEntry(context)
        return entry

    def drop(self, entry: CallEntry) -> None:
        """Forget a call that never arrived: it may come again."""
        self._entries.pop(entry.id, None)

    def end(self, entry: CallEntry, outcome: Outcome, remember_s: float) -> None:
        """A call ended; it is remembered for ``remember_s``."""
        now = self._clock()
        entry.end(outcome, now)
        heapq.heappush(self._expiries, (now + remember_s, next(self._order), entry))
        size = buffers_bytes(outcome.buffers)
        if size >= LARGE_OUTCOME_BYTES and entry.spooled is None:
            entry.outcome_bytes = size
            self._heavy.append(entry)
            self._lighten()

    def running(self) -> list[CallEntry]:
        """Calls that have not ended."""
        return [entry for entry in self._entries.values() if entry.ended_at is None]

    def forget(self) -> float | None:
        """Forget what has expired; when the next will, None if there is nothing to forget."""
        now = self._clock()
        expiries = self._expiries
        while expiries and (expiries[0][0] <= now or len(expiries) > self._max_calls):
            entry = heapq.heappop(expiries)[2]
            entry.discard_outcome()
            self._entries.pop(entry.id, None)
            self._forgotten_at = max(self._forgotten_at, entry.ended_at or 0.0)
        self._lighten()
        return expiries[0][0] if expiries else None

    def _lighten(self) -> None:
        """Let go of the oldest large outcomes; the latest is still on its way to its caller."""
        heavy = self._heavy
        if len(heavy) > self._heavy_room:
            self._heavy = heavy = deque(entry for entry in heavy if entry.outcome_bytes)
            self._heavy_room = max(64, 2 * len(heavy))
        total = sum(entry.outcome_bytes for entry in heavy) if len(heavy) > 1 else 0
        while total > self._max_bytes and len(heavy) > 1:
            entry = heavy.popleft()
            total -= entry.outcome_bytes
            entry.discard_outcome()

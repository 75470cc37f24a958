"""The calls that a worker knows, so that no call runs twice and no result is lost.

A request with a known call id joins the running call or receives its outcome again. A retry states
the seconds since the call was first sent. If a call of that age may already be forgotten, or may
have run before the worker restarted, the worker answers with `LostError` and does not run it.
Only durations are compared, never the clocks of two machines.
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
from melisma.axon.server.calls.call_metrics import CallSlot
from melisma.axon.server.calls.context import CallContext
from melisma.axon.server.calls.result_spool import SpooledResult
from melisma.errors import LostError, MalformedError, SettingError

LARGE_OUTCOME_BYTES: Final = 16 << 10
"""Outcomes of at least this size count towards ``max_bytes``."""
_NO_WAITERS: Final[list[asyncio.Future[None]]] = []
"""Shared by all entries without waiters; never modified."""


class CallEntry:
    """One call: arriving, begun, ended with an outcome, or ended with a discarded outcome."""

    __slots__ = (
        "_waiters",
        "begun",
        "context",
        "deadline_timer",
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
        """The number of requests with this id whose bodies are being received."""
        self.begun = False
        self.slot: CallSlot | None = None
        self.task: asyncio.Task[None] | None = None
        """The task to cancel with the call; None for threads, which cannot be cancelled."""
        self.deadline_timer: asyncio.TimerHandle | None = None
        """Cancels the call at the caller's deadline; it keeps the entry in memory until then."""
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
        """Record the outcome and wake the waiters."""
        self.outcome, self.ended_at = outcome, now
        if self.deadline_timer is not None:
            self.deadline_timer.cancel()
            self.deadline_timer = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = _NO_WAITERS

    async def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Return the outcome, or None if the call still runs after ``timeout_s``."""
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
            raise LostError(
                f"the result of call {self.id} is gone: it was delivered, or over remember_bytes"
            )
        if self.spooled is not None:
            return Outcome(
                self.outcome.status,
                self.outcome.content_type,
                self.spooled.buffers(),
                self.outcome.label,
            )
        return self.outcome

    def discard_outcome(self) -> None:
        """Free the outcome after its delivery; only the id is remembered."""
        if self.ended_at is not None:
            self.outcome, self.outcome_bytes = None, 0
            if self.spooled is not None:
                self.spooled.discard()
                self.spooled = None


class Ledger:
    """The calls of one worker by id, limited in number and in bytes of outcomes."""

    def __init__(
        self, max_calls: int, clock: Callable[[], float], max_bytes: int = 64 << 20
    ) -> None:
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: dict[str, CallEntry] = {}
        self._expiries: list[tuple[float, int, CallEntry]] = []
        self._large: deque[CallEntry] = deque()
        """Calls with large outcomes, oldest first."""
        self._large_capacity = 64
        self._order = count()
        self._forgotten_at = clock()
        """Calls that ended before this may have been forgotten."""

    def find(
        self, call_id: str, age_s: float | None, function: str | None = None
    ) -> CallEntry | None:
        """Return the call with this id, or None if it certainly never ran on this worker."""
        try:
            check_call_id(call_id)
        except SettingError as error:
            raise MalformedError(str(error)) from None
        self.forget()
        entry = self._entries.get(call_id)
        if entry is not None:
            if function is not None and entry.context.function != function:
                raise MalformedError(
                    f"call id {call_id} is in use for {entry.context.function}: use another id"
                )
            return entry
        if age_s is not None and self._clock() - age_s <= self._forgotten_at:
            raise LostError(
                f"call {call_id} was first sent {age_s:.1f} s ago and may have run on this worker: "
                "call again with a new id if running it twice is harmless"
            )
        return None

    def open(self, context: CallContext) -> CallEntry:
        """Add a call that `find` did not return."""
        entry = self._entries[context.id] = CallEntry(context)
        return entry

    def drop(self, entry: CallEntry) -> None:
        """Remove a call whose request did not arrive completely, so that it can be sent again."""
        self._entries.pop(entry.id, None)

    def end(self, entry: CallEntry, outcome: Outcome, remember_s: float) -> None:
        """End a call and remember it for ``remember_s``."""
        now = self._clock()
        entry.end(outcome, now)
        heapq.heappush(self._expiries, (now + remember_s, next(self._order), entry))
        size = buffers_bytes(outcome.buffers)
        if size >= LARGE_OUTCOME_BYTES and entry.spooled is None:
            entry.outcome_bytes = size
            self._large.append(entry)
            self._limit_large()

    def running(self) -> list[CallEntry]:
        """Return the calls that have not ended."""
        return [entry for entry in self._entries.values() if entry.ended_at is None]

    def forget(self) -> float | None:
        """Remove expired calls; return the time of the next expiry, None without calls."""
        now = self._clock()
        expiries = self._expiries
        while expiries and (expiries[0][0] <= now or len(expiries) > self._max_calls):
            entry = heapq.heappop(expiries)[2]
            entry.discard_outcome()
            self._entries.pop(entry.id, None)
            self._forgotten_at = max(self._forgotten_at, entry.ended_at or 0.0)
        self._limit_large()
        return expiries[0][0] if expiries else None

    def _limit_large(self) -> None:
        """Discard the oldest large outcomes, except the last one, which is still being sent."""
        large = self._large
        if len(large) > self._large_capacity:
            self._large = large = deque(entry for entry in large if entry.outcome_bytes)
            self._large_capacity = max(64, 2 * len(large))
        total = sum(entry.outcome_bytes for entry in large) if len(large) > 1 else 0
        while total > self._max_bytes and len(large) > 1:
            entry = large.popleft()
            total -= entry.outcome_bytes
            entry.discard_outcome()

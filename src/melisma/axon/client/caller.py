"""Calls at the caller, from the arguments to the result, over any `ConnectionPool`.

After a broken connection, the call is retried with the same id, which the worker runs only once.
A retry states the seconds since the call was first sent, so that the worker can detect calls that
it may have forgotten (see ``server.ledger``).
"""

import asyncio
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from melisma.axon.address import check_call_id
from melisma.axon.call_record import CallRecord, TraceHook, call_hook
from melisma.axon.client.callbacks import CallbackServer
from melisma.axon.client.result_stream import ResultStream
from melisma.axon.codec.encoding import Types, decode, encode_arguments
from melisma.axon.codec.message import Buffer, buffers_bytes, message_buffers
from melisma.axon.codec.outcome import error_from_json, remote_exception
from melisma.axon.codec.stream_parts import STREAM_TYPE
from melisma.axon.transport.http_client import HttpAnswer, HttpClient
from melisma.axon.transport.pool import ConnectionPool
from melisma.errors import (
    AxonError,
    DeadlineError,
    MalformedError,
    SettingError,
    UnreachableError,
)

FIRST_POLL_S = 1.0
"""Time after which a caller first asks for a result that was not posted to it, in seconds."""
POLL_S: Final = 30.0
"""Time that one request for a duplex result waits at the worker, in seconds."""
MAX_FAILED_POLLS: Final = 8
"""Consecutive requests for a duplex result that may fail before the call fails."""


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options of a call.

    ``call_id``: an id chosen by the caller, for `resume`. ``comms_pattern``: "simplex" or "duplex"
    instead of the pattern of the function. ``retries``: attempts after a broken connection.
    """

    deadline_s: float | None = None
    call_id: str | None = None
    comms_pattern: str | None = None
    retries: int = 4

    def __post_init__(self) -> None:
        number: object = self.deadline_s
        if number is not None and not (isinstance(number, int | float) and 0 < number < math.inf):
            raise SettingError(f"deadline_s must be a positive number of seconds, not {number!r}")
        if self.call_id is not None:
            check_call_id(self.call_id)
        if self.retries < 0:
            raise SettingError(f"retries must be 0 or more, not {self.retries!r}")
        if self.comms_pattern not in (None, "simplex", "duplex"):
            raise SettingError(
                f"comms_pattern must be simplex or duplex, not {self.comms_pattern!r}"
            )


@dataclass(frozen=True)
class Caller:
    """Calls the functions of one worker."""

    http: HttpClient
    types: Types
    trace: TraceHook | None = None
    callbacks: CallbackServer | None = None

    async def call(
        self,
        pool: ConnectionPool,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Call a function and return its result, or a stream of its items."""
        body = message_buffers(encode_arguments(args, kwargs))
        attempts = _Attempts(self, pool, name, body, options)
        label = "returned"
        try:
            return await attempts.run()
        except (asyncio.CancelledError, KeyboardInterrupt):
            label = "cancelled"
            await self._cancel_or_discard(pool, attempts.call_id)
            raise
        except Exception as error:
            label = error.code if isinstance(error, AxonError) else "raised"
            raise
        finally:
            if self.callbacks is not None:
                self.callbacks.forget(attempts.call_id)
            if self.trace is not None:
                call_hook(self.trace, attempts.record(label))

    async def result(self, pool: ConnectionPool, call_id: str, deadline_at: float | None) -> Any:
        """Wait for the result of a duplex call; the worker then discards it."""
        posted = self.callbacks.expect(call_id) if self.callbacks else None
        failed_polls, callback_wait_s = 0, FIRST_POLL_S
        while True:
            wait_s = seconds_until(deadline_at, POLL_S)
            if posted is not None:
                if await pool.wait(posted, min(wait_s, callback_wait_s)):
                    return self.value(posted.result())
                callback_wait_s = min(2 * callback_wait_s, POLL_S)
                wait_s = 0.0
            target = f"/calls/{call_id}?wait_s={wait_s:.3f}"
            try:
                answer = await self.http.request(pool, "GET", target, deadline_at)
            except OSError as error:
                seconds_until(deadline_at, POLL_S)
                failed_polls += 1
                if failed_polls > MAX_FAILED_POLLS:
                    resume = f"; when it is back: axon.resume(worker, {call_id!r})"
                    raise UnreachableError(f"{self.unreachable(error)}{resume}") from error
                await pool.sleep(min(0.05 * 2**failed_polls, seconds_until(deadline_at, 5.0)))
                continue
            failed_polls = 0
            if answer[0] != 204:
                return await self._accept_result(pool, call_id, answer)

    async def _accept_result(self, pool: ConnectionPool, call_id: str, answer: HttpAnswer) -> Any:
        """Decode a fetched answer and discard it at the worker, unless it cannot be decoded."""
        try:
            value = self.value(answer)
        except MalformedError as error:
            kept = f"the worker still has the result: axon.resume(worker, {call_id!r})"
            raise type(error)(f"{error}; {kept}") from error
        except BaseException:
            await self._cancel_or_discard(pool, call_id)
            raise
        await self._cancel_or_discard(pool, call_id)
        return value

    def value(self, answer: HttpAnswer) -> Any:
        """Return the value in an answer, or raise the error in it."""
        status, body = answer
        if isinstance(body, bytearray):
            raise error_from_json(status, body)
        if status != 200:
            raise remote_exception(body, self.types)
        return decode(body, self.types)

    def unreachable(self, error: BaseException) -> UnreachableError:
        """Return the error for a worker that does not answer."""
        stated = error.strerror if isinstance(error, OSError) else None
        reason = stated[:1].lower() + stated[1:] if stated else repr(error)
        return UnreachableError(
            f"no answer from {self.http.address} ({reason}): check that the worker is running, "
            "that the address is right and reachable, and that both sides use http or both https"
        )

    async def _cancel_or_discard(self, pool: ConnectionPool, call_id: str) -> None:
        """Cancel a running call at the worker, or discard its result."""
        try:
            await self.http.request(pool, "DELETE", f"/calls/{call_id}", time.monotonic() + 2.0)
        except OSError:
            return  # The limits of the worker end the call.


class _Attempts:
    """The attempts at one call."""

    def __init__(
        self,
        caller: Caller,
        pool: ConnectionPool,
        name: str,
        body: Sequence[Buffer],
        options: CallOptions,
    ) -> None:
        self._caller = caller
        self._pool = pool
        self._name = name
        self._body = body
        self._options = options
        self.call_id = options.call_id or secrets.token_hex(16)
        self._started_at = time.monotonic()
        self._deadline_at = (
            None if options.deadline_s is None else self._started_at + options.deadline_s
        )
        self._sent_at: float | None = None
        """When the call may first have reached the worker."""
        self._received_bytes = 0

    async def run(self) -> Any:
        """Try until an answer arrives, the deadline passes, or the retries are used up."""
        for attempt in range(self._options.retries + 1):
            try:
                answer = await self._attempt()
                break
            except OSError as error:
                failure = error
            self._pool.close()  # Other idle connections are probably broken too.
            pause_s = seconds_until(self._deadline_at, min(0.02 * 5**attempt, 2.0))
            if attempt < self._options.retries:
                await self._pool.sleep(pause_s)
        else:
            raise self._caller.unreachable(failure) from failure
        # An OSError from here on was raised by the function.
        if isinstance(answer, ResultStream):
            return answer
        if answer[0] == 202:
            return await self._caller.result(self._pool, self.call_id, self._deadline_at)
        return self._caller.value(answer)

    def record(self, label: str) -> CallRecord:
        """Return the record of the call."""
        return CallRecord(
            self.call_id,
            self._name,
            "",
            label,
            self._received_bytes,
            buffers_bytes(self._body),
            time.monotonic() - self._started_at,
        )

    async def _attempt(self) -> HttpAnswer | ResultStream:
        caller, pool = self._caller, self._pool
        transport = await caller.http.connect(pool, self._deadline_at)
        headers = self._headers()
        self._sent_at = self._sent_at or time.monotonic()
        response = await caller.http.send(
            transport, "POST", _target(self._name), headers, self._body
        )
        if response.headers.get("content-type") == STREAM_TYPE:
            return ResultStream(transport, caller.types)
        self._received_bytes = response.body_bytes
        return await caller.http.read_answer(pool, transport, response)

    def _headers(self) -> dict[str, str]:
        headers = {"axon-call-id": self.call_id}
        if self._options.comms_pattern is not None:
            headers["axon-pattern"] = self._options.comms_pattern
        if self._deadline_at is not None:
            headers["axon-deadline-s"] = f"{seconds_until(self._deadline_at, 1e9):.6f}"
        if self._sent_at is not None:
            headers["axon-age-s"] = f"{time.monotonic() - self._sent_at:.6f}"
        if self._caller.callbacks is not None:
            self._caller.callbacks.expect(self.call_id)
            headers["axon-reply-to"] = self._caller.callbacks.reply_to
        return headers


@lru_cache
def _target(name: str) -> str:
    return f"/rpc/{quote(name)}"


def seconds_until(deadline_at: float | None, max_s: float) -> float:
    """Return the seconds to the deadline, at most ``max_s``; raise `DeadlineError` after it."""
    if deadline_at is None:
        return max_s
    seconds = deadline_at - time.monotonic()
    if seconds <= 0:
        raise DeadlineError(
            "the deadline passed before the result arrived: allow more time with deadline_s"
        ) from None
    return min(seconds, max_s)

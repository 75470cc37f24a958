"""Calls at a worker: from a request to an outcome, on the executor that the function asks for."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from melisma.axon.codec import decode_arguments
from melisma.axon.context import CallContext, enter, leave
from melisma.axon.functions import Exposed, Functions
from melisma.axon.http import STREAM_TYPE
from melisma.axon.ledger import Entry, Ledger
from melisma.axon.limits import Limits
from melisma.axon.message import Message, buffers_bytes
from melisma.axon.metrics import CallRecord, Metrics
from melisma.axon.outcome import Outcome, failed, perform, raised, returned
from melisma.axon.returns import post_result
from melisma.axon.server import Exchange, Reply
from melisma.axon.spool import Spool
from melisma.axon.streams import CallStream
from melisma.axon.threads import Threads
from melisma.axon.tokens import OWNER
from melisma.errors import (
    AxonError,
    BusyError,
    CallCancelledError,
    DeadlineError,
    LostError,
    MalformedError,
    StorageError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from melisma.axon.processes import ProcessPool

MAX_POLL_S = 60.0
"""The longest that one request waits for a duplex result."""


class Calls:
    """Every call of one worker."""

    def __init__(self, functions: Functions, limits: Limits, metrics: Metrics) -> None:
        self._functions = functions
        self._limits = limits
        self._metrics = metrics
        self._ledger = Ledger(limits.remember_calls, time.monotonic)
        self._spool = Spool(limits.keep_memory_bytes, limits.keep_disk_bytes)
        self._threads = Threads()
        self._processes: ProcessPool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def call(self, exchange: Exchange, name: str, caller: str) -> Reply:
        """Serve ``POST /rpc/NAME``."""
        headers = exchange.request.headers
        exposed = self._functions[name]
        call_id = headers.get("axon-call-id") or secrets.token_hex(16)
        age_s = _seconds(headers, "axon-age-s")
        duplex = "duplex" in (exposed.pattern, headers.get("axon-pattern"))
        entry = self._find(call_id, caller, age_s, name)
        if entry is None:
            now, body_bytes = time.monotonic(), exchange.request.body_bytes
            deadline_s = _seconds(headers, "axon-deadline-s")
            deadline_at = None if deadline_s is None else now + deadline_s
            context = CallContext(call_id, name, caller, deadline_at, now, body_bytes)
            waits = not exchange.whole
            self._take_place()
            try:
                message = await exchange.read_message()
            except BaseException:
                self._metrics.active -= 1
                raise
            if waits:
                # A copy of this call may have begun while the body of this one arrived.
                age_s = (age_s or 0.0) + time.monotonic() - now
                entry = self._find_again(call_id, caller, age_s, name)
            if entry is not None:
                self._metrics.active -= 1
            elif "generator" in exposed.kind:
                return self._stream(exposed, message, context)
            else:
                entry = self._begin(exposed, message, context, exchange, duplex=duplex)
        if "generator" in exposed.kind:
            raise LostError(f"call {call_id} is a stream, which cannot be repeated")
        if duplex:
            return Reply(202, headers={"axon-call-id": call_id})
        outcome = await entry.wait()
        assert outcome is not None
        exchange.after = entry.hand_over
        return Reply.of(outcome)

    async def wait(self, call_id: str, query: Mapping[str, str], caller: str) -> Reply:
        """Serve ``GET /calls/ID``: the result of a duplex call as soon as it is there."""
        wait_s = _seconds(query, "wait_s") or 0.0
        entry = self._find(call_id, caller)
        if entry is None:
            raise LostError(
                f"no call {call_id} here: it never arrived, was fetched before, waited longer "
                f"than {self._limits.keep_s:g} s, or the worker was started again"
            )
        outcome = await entry.wait(min(wait_s, MAX_POLL_S))
        return Reply(204) if outcome is None else Reply.of(outcome)

    def dismiss(self, call_id: str, caller: str) -> Reply:
        """Serve ``DELETE /calls/ID``: cancel what runs, forget what was delivered."""
        entry = self._find(call_id, caller)
        if entry is not None and entry.ended_at is None:
            self._cancel(entry, CallCancelledError(f"call {call_id} was cancelled"))
        elif entry is not None:
            entry.hand_over()
        return Reply(204)

    async def drain(self) -> None:
        """Take on no more calls; let running ones end, for a while, then cancel them."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.shutdown_s)
        for entry in self._ledger.running():
            self._cancel(entry, CallCancelledError("the worker is stopping"))

    def close(self) -> None:
        """Give back threads and processes."""
        if self._processes is not None:
            self._processes.close()
        self._threads.close()

    def _find(
        self,
        call_id: str,
        caller: str,
        age_s: float | None = None,
        function: str | None = None,
    ) -> Entry | None:
        """A call that is known, if it is this caller's: its outcome is nobody else's business."""
        entry = self._ledger.find(call_id, age_s, function)
        if entry is not None and caller not in (entry.context.caller, OWNER):
            raise UnauthorizedError(f"call {call_id} is not one of {caller}'s")
        return entry

    def _find_again(self, call_id: str, caller: str, age_s: float, function: str) -> Entry | None:
        try:
            return self._find(call_id, caller, age_s, function)
        except AxonError:
            self._metrics.active -= 1
            raise

    def _take_place(self) -> None:
        """Count one more among the concurrent calls, or refuse it before its body is received."""
        if self._stopping:
            raise BusyError("this worker is stopping; the call did not run")
        if self._metrics.active >= self._limits.max_calls:
            raise BusyError(
                f"this worker is at its limit of {self._limits.max_calls} calls at once "
                "(max_calls); the call did not run"
            )
        self._metrics.active += 1

    def _begin(
        self,
        exposed: Exposed,
        message: Message,
        context: CallContext,
        exchange: Exchange,
        *,
        duplex: bool,
    ) -> Entry:
        entry = self._ledger.open(context.id, exposed.name, context)
        if exposed.executor == "inline" and exposed.kind == "function" and not duplex:
            outcome = _perform_in(context, exposed, message)
            self._finish(entry, outcome, self._limits.remember_s)
            return entry
        run = self._run_duplex if duplex else self._run_simplex
        task = asyncio.get_running_loop().create_task(run(entry, exposed, message))
        entry.task = task if exposed.kind == "coroutine" or exposed.executor == "process" else None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if context.deadline_at is not None:
            late = DeadlineError(f"{exposed.name} did not end by the caller's deadline")
            asyncio.get_running_loop().call_at(context.deadline_at, self._cancel, entry, late)
        reply_to = exchange.request.headers.get("axon-reply-to")
        if duplex and reply_to and (peer := exchange.peer_host):
            posting = asyncio.get_running_loop().create_task(post_result(entry, peer, reply_to))
            self._tasks.add(posting)
            posting.add_done_callback(self._tasks.discard)
        return entry

    def _finish(self, entry: Entry, outcome: Outcome, remember_s: float) -> None:
        """The function has ended; so has the call, unless it was cancelled before."""
        self._metrics.active -= 1
        if entry.ended_at is None:
            self._ledger.end(entry, outcome, remember_s)
        elif entry.outcome is not None:
            outcome = entry.outcome
        self._metrics.record(
            CallRecord(
                entry.id,
                entry.function,
                entry.context.caller,
                outcome.label,
                entry.context.bytes_in,
                buffers_bytes(outcome.buffers),
                time.monotonic() - entry.context.started_at,
            )
        )

    async def _run_simplex(self, entry: Entry, exposed: Exposed, message: Message) -> None:
        outcome = await self._execute(entry, exposed, message)
        self._finish(entry, outcome, self._limits.remember_s)

    async def _run_duplex(self, entry: Entry, exposed: Exposed, message: Message) -> None:
        outcome = await self._execute(entry, exposed, message)
        try:
            if entry.ended_at is None:
                entry.kept = await self._threads.run(self._spool.keep, outcome.buffers)
        except StorageError as error:
            outcome = failed(error)
        self._finish(entry, outcome, self._limits.keep_s)
        if entry.kept is not None and entry.outcome is not None:
            entry.outcome = msgspec.structs.replace(entry.outcome, buffers=())

    async def _execute(self, entry: Entry, exposed: Exposed, message: Message) -> Outcome:
        try:
            if exposed.kind == "coroutine":
                enter(entry.context)
                return await self._perform_coroutine(exposed, message)
            if exposed.executor == "process":
                return await self._pool().run(exposed, message)
            if exposed.executor == "inline":
                return _perform_in(entry.context, exposed, message)
            return await self._threads.run(_perform_in, entry.context, exposed, message)
        except asyncio.CancelledError:
            return failed(CallCancelledError(f"call {entry.id} was cancelled"))
        except Exception as error:  # noqa: BLE001 - no thread, no memory: the caller must hear it
            return failed(AxonError(f"the worker could not run {exposed.name}: {error!r}"))

    def _pool(self) -> "ProcessPool":
        if self._processes is None:
            from melisma.axon.processes import ProcessPool

            self._processes = ProcessPool(self._threads)
        return self._processes

    async def _perform_coroutine(self, exposed: Exposed, message: Message) -> Outcome:
        try:
            args, kwargs = decode_arguments(message, exposed.types)
        except AxonError as error:
            return failed(error)
        try:
            value = await exposed.function(*args, **kwargs)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it raises is the caller's
            return raised(error)
        try:
            return returned(value)
        except AxonError as error:
            return failed(error)

    def _cancel(self, entry: Entry, error: AxonError) -> None:
        """End a call for whoever waits; a thread that serves it is told, and ends by itself."""
        if entry.ended_at is not None:
            return
        entry.context.cancel()
        self._ledger.end(entry, failed(error), self._limits.remember_s)
        if entry.task is not None:
            entry.task.cancel()

    def _stream(self, exposed: Exposed, message: Message, context: CallContext) -> Reply:
        entry = self._ledger.open(context.id, exposed.name, context)
        stream = CallStream(exposed, message, context, self._threads)
        stream.on_end = lambda outcome: self._finish(entry, outcome, self._limits.remember_s)
        return Reply(200, STREAM_TYPE, stream=stream)


def _perform_in(context: CallContext, exposed: Exposed, message: Message) -> Outcome:
    token = enter(context)
    try:
        return perform(exposed, message)
    finally:
        leave(token)


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds < float("inf"):
        raise MalformedError(f"{name}: {text!r} is not a number of seconds")
    return seconds

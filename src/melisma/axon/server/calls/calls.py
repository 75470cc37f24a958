"""Calls at the worker, from the request to the outcome, on the executor of the function."""

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from melisma.axon.call_record import CallRecord
from melisma.axon.codec.message import Message, buffers_bytes
from melisma.axon.codec.outcome import Outcome, error_outcome, exception_outcome, result_outcome
from melisma.axon.codec.stream_parts import STREAM_TYPE
from melisma.axon.server.authentication import ANONYMOUS, OWNER
from melisma.axon.server.calls.call_metrics import CallMetrics, CallSlot
from melisma.axon.server.calls.context import CallContext, enter, leave
from melisma.axon.server.calls.functions import (
    LARGE_TREE_BYTES,
    ExposedFunction,
    Functions,
    decode_off_loop,
    run_function,
    run_with_arguments,
)
from melisma.axon.server.calls.ledger import CallEntry, Ledger
from melisma.axon.server.calls.result_posting import post_result
from melisma.axon.server.calls.result_spool import ResultSpool
from melisma.axon.server.calls.streams import CallStream
from melisma.axon.server.calls.thread_pool import ThreadPool
from melisma.axon.server.exchange import Exchange, Reply
from melisma.axon.server.limits import Limits
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
    from melisma.axon.server.calls.process_pool import ProcessPool

_log = logging.getLogger("melisma.axon")
QUIET_S = 1.0
"""Time that a stopping worker waits for running calls before it logs a warning, in seconds."""
MAX_POLL_S = 60.0
"""The longest wait of one request for a duplex result, in seconds."""


class Calls:
    """The calls of one worker."""

    def __init__(self, functions: Functions, limits: Limits, metrics: CallMetrics) -> None:
        self._functions = functions
        self._limits = limits
        self._metrics = metrics
        self._ledger = Ledger(limits.remember_calls, time.monotonic, limits.remember_bytes)
        self._sweep: asyncio.TimerHandle | None = None
        self._spool = ResultSpool(limits.keep_memory_bytes, limits.keep_disk_bytes)
        self._threads = ThreadPool()
        self._processes: ProcessPool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def call(self, exchange: Exchange, name: str, caller: str) -> Reply:
        """Serve ``POST /rpc/NAME``."""
        headers = exchange.request.headers
        exposed = self._functions[name]
        call_id = headers.get("axon-call-id") or secrets.token_hex(16)
        entry = self._find(call_id, caller, _parse_seconds(headers, "axon-age-s"), name)
        duplex = "duplex" in (exposed.pattern, headers.get("axon-pattern"))
        if entry is None or not entry.begun:
            exposed.rules.check(caller, exchange.request.body_bytes, name)
            context = _context(exchange, call_id, name, caller)
            # Callers without names are told apart by their host.
            account = caller if caller != ANONYMOUS else exchange.peer_host or caller
            slot = self._acquire_slot(account)
            entry = entry or self._ledger.open(context)
            message = await self._receive_arguments(
                exchange, entry, slot, spool=exposed.rules.spool
            )
            # During the upload, a retry may have begun the call, or it may have been cancelled.
            if entry.begun or entry.ended_at is not None:
                slot.release()
            else:
                entry.begun, entry.slot = True, slot
                if "generator" in exposed.kind:
                    return self._stream(entry, exposed, message, slot)
                self._begin(entry, exposed, message, exchange, duplex=duplex)
        if "generator" in exposed.kind:
            raise LostError(
                f"call {call_id} is a stream, which cannot be retried: call again with a new id"
            )
        if duplex:
            return Reply(202, headers={"axon-call-id": call_id})
        outcome = await entry.wait()
        assert outcome is not None
        exchange.on_delivered = entry.discard_outcome
        return Reply.from_outcome(outcome)

    async def wait_for_result(self, call_id: str, query: Mapping[str, str], caller: str) -> Reply:
        """Serve ``GET /calls/ID``: wait for the result of a duplex call."""
        wait_s = _parse_seconds(query, "wait_s") or 0.0
        entry = self._find(call_id, caller)
        if entry is None:
            raise LostError(
                f"unknown call {call_id}: it never arrived, was fetched before, waited longer than "
                f"{self._limits.keep_s:g} s (keep_s), or the worker restarted; call again"
            )
        outcome = await entry.wait(min(wait_s, MAX_POLL_S))
        return Reply(204) if outcome is None else Reply.from_outcome(outcome)

    def cancel_or_discard(self, call_id: str, caller: str) -> Reply:
        """Serve ``DELETE /calls/ID``: cancel a running call, discard a delivered result."""
        entry = self._find(call_id, caller)
        if entry is not None and entry.ended_at is None:
            self._cancel(entry, CallCancelledError(f"call {call_id} was cancelled"))
        elif entry is not None:
            entry.discard_outcome()
        return Reply(204)

    async def drain(self) -> None:
        """Refuse new calls, wait up to ``shutdown_s`` for running ones, then cancel them."""
        self._stopping = True
        # Calls that end at once, such as the polls of callers that leave now, need no warning.
        quiet_s = min(QUIET_S, self._limits.shutdown_s / 2)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=quiet_s)
        if self._tasks:
            left_s = self._limits.shutdown_s - quiet_s
            _log.warning("waiting up to %g s for %d calls to end", left_s, len(self._tasks))
            await asyncio.wait(self._tasks, timeout=left_s)
        for entry in self._ledger.running():
            self._cancel(entry, CallCancelledError("the worker is stopping"))

    def close(self) -> None:
        """Release threads and processes."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._processes is not None:
            self._processes.close()
        self._threads.close()

    def _find(
        self,
        call_id: str,
        caller: str,
        age_s: float | None = None,
        function: str | None = None,
    ) -> CallEntry | None:
        """Return a known call; raise `UnauthorizedError` if it belongs to another caller."""
        entry = self._ledger.find(call_id, age_s, function)
        if entry is not None and caller not in (entry.context.caller, OWNER):
            raise UnauthorizedError(
                f"call {call_id} does not belong to {caller}: use the token it was made with"
            )
        return entry

    def _acquire_slot(self, account: str) -> CallSlot:
        """Reserve one of the concurrent calls; raise `BusyError` before the body is received."""
        if self._stopping:
            raise BusyError("the worker is stopping; the call did not run, so call another worker")
        if self._metrics.active >= self._limits.max_calls:
            raise BusyError(
                f"the worker is at its limit of {self._limits.max_calls} concurrent calls "
                "(max_calls); the call did not run, so call again later"
            )
        limit = self._limits.max_calls_per_caller
        if self._metrics.active_by_account[account] >= limit and account != OWNER:
            raise BusyError(
                f"{account} is at its limit of {limit} concurrent calls (max_calls_per_caller); "
                "the call did not run, so call again when another has ended"
            )
        return self._metrics.acquire_slot(account)

    async def _receive_arguments(
        self, exchange: Exchange, entry: CallEntry, slot: CallSlot, *, spool: bool
    ) -> Message:
        """Receive the arguments of a call; if that fails, forget the call."""
        entry.uploads += 1
        try:
            return await exchange.read_message(slot.account, spool=spool)
        except BaseException:
            slot.release()
            if entry.uploads == 1 and not entry.begun and entry.ended_at is None:
                self._ledger.drop(entry)
            raise
        finally:
            entry.uploads -= 1

    def _begin(
        self,
        entry: CallEntry,
        exposed: ExposedFunction,
        message: Message,
        exchange: Exchange,
        *,
        duplex: bool,
    ) -> None:
        small = len(message.tree) <= LARGE_TREE_BYTES
        if exposed.executor == "inline" and exposed.kind == "function" and small and not duplex:
            outcome = _run_in_context(entry.context, exposed, message)
            self._finish(entry, outcome, self._limits.remember_s)
            self._on_done(entry)
            return
        run = self._run_duplex if duplex else self._run_simplex
        task = self._start(run(entry, exposed, message))
        task.add_done_callback(lambda _: self._on_done(entry))
        if exposed.kind == "coroutine" or exposed.executor == "process":
            entry.task = task
        if entry.context.deadline_at is not None:
            late = DeadlineError(
                f"{exposed.name} did not end by the caller's deadline, which is at most "
                f"{self._limits.max_deadline_s:g} s (max_deadline_s) after the start of the call"
            )
            entry.deadline_timer = asyncio.get_running_loop().call_at(
                entry.context.deadline_at, self._cancel, entry, late
            )
        reply_to = exchange.request.headers.get("axon-reply-to")
        if duplex and reply_to and (peer := exchange.peer_host):
            self._start(post_result(entry, peer, reply_to))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_done(self, entry: CallEntry) -> None:
        """Free the slot of a call whose function no longer runs."""
        if entry.ended_at is None:
            self._ledger.end(
                entry,
                error_outcome(AxonError("the call ended unexpectedly")),
                self._limits.remember_s,
            )
        if entry.slot is not None:
            entry.slot.release()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(1.0, self._forget_expired)

    def _forget_expired(self) -> None:
        """Forget expired calls, also if no further calls arrive."""
        self._sweep = None
        if (next_at := self._ledger.forget()) is not None:
            pause_s = max(1.0, next_at - time.monotonic())
            self._sweep = asyncio.get_running_loop().call_later(pause_s, self._forget_expired)

    def _finish(self, entry: CallEntry, outcome: Outcome, remember_s: float) -> None:
        """Record the outcome of a function; a call that was cancelled before keeps its outcome."""
        if entry.ended_at is None:
            self._ledger.end(entry, outcome, remember_s)
        elif entry.outcome is not None:
            outcome = entry.outcome
        self._metrics.record(
            CallRecord(
                entry.id,
                entry.context.function,
                entry.context.caller,
                outcome.label,
                entry.context.bytes_in,
                buffers_bytes(outcome.buffers),
                time.monotonic() - entry.context.started_at,
            )
        )

    async def _run_simplex(
        self, entry: CallEntry, exposed: ExposedFunction, message: Message
    ) -> None:
        outcome = await self._execute(entry, exposed, message)
        self._finish(entry, outcome, self._limits.remember_s)

    async def _run_duplex(
        self, entry: CallEntry, exposed: ExposedFunction, message: Message
    ) -> None:
        outcome = await self._execute(entry, exposed, message)
        entry.task = None  # The function has ended; storing its result is not cancelled.
        try:
            spooled = await self._threads.run(self._spool.keep, outcome.buffers)
        except StorageError as error:
            outcome = error_outcome(error)
        else:
            if entry.ended_at is None:
                entry.spooled = spooled
                outcome = msgspec.structs.replace(outcome, buffers=())
            else:
                spooled.discard()
        self._finish(entry, outcome, self._limits.keep_s)

    async def _execute(
        self, entry: CallEntry, exposed: ExposedFunction, message: Message
    ) -> Outcome:
        try:
            if exposed.kind == "coroutine":
                enter(entry.context)
                return await self._run_coroutine(exposed, message)
            if exposed.executor == "process":
                return await self._process_pool().run(exposed, message, entry.context)
            if exposed.executor == "inline":
                enter(entry.context)
                return await self._run_inline(exposed, message)
            return await self._threads.run(_run_in_context, entry.context, exposed, message)
        except asyncio.CancelledError:
            return error_outcome(CallCancelledError(f"call {entry.id} was cancelled"))
        except Exception as error:  # noqa: BLE001 - such as no memory for a thread
            return error_outcome(AxonError(f"the worker could not run {exposed.name}: {error!r}"))

    def _process_pool(self) -> "ProcessPool":
        if self._processes is None:
            from melisma.axon.server.calls.process_pool import ProcessPool

            self._processes = ProcessPool(self._threads)
        return self._processes

    async def _run_inline(self, exposed: ExposedFunction, message: Message) -> Outcome:
        try:
            args, kwargs = await decode_off_loop(exposed, message, self._threads)
        except AxonError as error:
            return error_outcome(error)
        return run_with_arguments(exposed, args, kwargs)

    async def _run_coroutine(self, exposed: ExposedFunction, message: Message) -> Outcome:
        try:
            args, kwargs = await decode_off_loop(exposed, message, self._threads)
        except AxonError as error:
            return error_outcome(error)
        try:
            value = await exposed.function(*args, **kwargs)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - sent to the caller
            return exception_outcome(error)
        try:
            return result_outcome(value)
        except AxonError as error:
            return error_outcome(error)

    def _cancel(self, entry: CallEntry, error: AxonError) -> None:
        """End a call for its caller; a thread that runs it sees `cancelled` and ends by itself."""
        if entry.ended_at is not None:
            return
        entry.context.cancel()
        self._ledger.end(entry, error_outcome(error), self._limits.remember_s)
        if entry.task is not None:
            entry.task.cancel()

    def _stream(
        self, entry: CallEntry, exposed: ExposedFunction, message: Message, slot: CallSlot
    ) -> Reply:
        stream = CallStream(exposed, message, entry.context, self._threads)
        stream.on_end = lambda outcome: self._finish(entry, outcome, self._limits.remember_s)
        stream.on_closed = slot.release
        return Reply(200, STREAM_TYPE, stream=stream, deadline_at=entry.context.deadline_at)


def _context(exchange: Exchange, call_id: str, name: str, caller: str) -> CallContext:
    now, request = time.monotonic(), exchange.request
    deadline_s = _parse_seconds(request.headers, "axon-deadline-s")
    if deadline_s is not None:
        deadline_s = min(deadline_s, exchange.limits.max_deadline_s)
    return CallContext(
        call_id,
        name,
        caller,
        None if deadline_s is None else now + deadline_s,
        now,
        request.body_bytes,
        exchange.transport.peer_fingerprint,
        exchange.peer_host,
    )


def _run_in_context(context: CallContext, exposed: ExposedFunction, message: Message) -> Outcome:
    token = enter(context)
    try:
        return run_function(exposed, message)
    finally:
        leave(token)


def _parse_seconds(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds < float("inf"):
        raise MalformedError(f"{name}: {text!r} is not a duration in seconds")
    return seconds

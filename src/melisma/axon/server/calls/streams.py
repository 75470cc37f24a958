"""Streamed results of generators at the worker, in the format of ``stream_parts``."""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from melisma.axon.codec.encoding import encode
from melisma.axon.codec.message import Buffer, Message, buffers_bytes, message_buffers
from melisma.axon.codec.outcome import (
    REFUSALS,
    Outcome,
    error_outcome,
    exception_outcome,
    result_outcome,
)
from melisma.axon.codec.stream_parts import END, FAILED, ITEM, PART, RAISED
from melisma.axon.server.calls.context import CallContext, enter
from melisma.axon.server.calls.functions import ExposedFunction, decode_off_loop
from melisma.axon.server.calls.thread_pool import ThreadPool
from melisma.errors import CallCancelledError, DeadlineError, EncodingError

_EXHAUSTED: Final = object()
_Step = tuple[int, Any]
"""The kind of a part, and its item or outcome."""
_log = logging.getLogger("melisma.axon")


class CallStream:
    """The parts of one streamed call, generated while they are sent."""

    on_end: Callable[[Outcome], None]
    """Called with the outcome when the call ends."""
    on_closed: Callable[[], None]
    """Called when the generator is closed, which may be later than `on_end`."""

    def __init__(
        self, exposed: ExposedFunction, message: Message, context: CallContext, threads: ThreadPool
    ) -> None:
        self._exposed = exposed
        self._message: Message | None = message
        self._context = context
        self._threads = threads
        self._source: Any = None
        self._step: asyncio.Future[_Step] | None = None
        self._outcome: Outcome | None = None
        self._variables = contextvars.copy_context()
        self._variables.run(enter, context)

    def __aiter__(self) -> AsyncIterator[Sequence[Buffer]]:
        return self

    async def __anext__(self) -> Sequence[Buffer]:
        if self._outcome is not None:
            raise StopAsyncIteration
        self._step = asyncio.ensure_future(self._next())
        left_s = self._context.seconds_left
        if not (await asyncio.wait([self._step], timeout=left_s))[0]:
            late = f"{self._exposed.name} did not end by the caller's deadline"
            return self._end(FAILED, error_outcome(DeadlineError(late)))
        kind, value = self._step.result()
        self._step = None
        if kind == ITEM:
            try:
                return _part(ITEM, message_buffers(encode(value, "item")))
            except EncodingError as error:
                return self._end(FAILED, error_outcome(error))
        return self._end(kind, value)

    async def aclose(self) -> None:
        """End the call; the generator is closed when its running step ends."""
        self._context.cancel()
        if self._outcome is None:
            self._end(FAILED, error_outcome(CallCancelledError("the caller closed the stream")))
        if self._step is None or self._step.done():
            await self._close_source()
            return
        if self._exposed.kind == "async generator":
            self._step.cancel()
        self._step.add_done_callback(lambda _: asyncio.ensure_future(self._close_source()))

    async def _next(self) -> "_Step":
        """Return the next part; all exceptions, even SystemExit, are sent to the caller."""
        try:
            item = await self._next_item()
        except asyncio.CancelledError:
            raise
        except REFUSALS as error:
            return FAILED, error_outcome(error)
        except BaseException as error:  # noqa: BLE001 - sent to the caller
            return RAISED, exception_outcome(error)
        return (END, result_outcome(None)) if item is _EXHAUSTED else (ITEM, item)

    async def _next_item(self) -> Any:
        if self._message is not None:
            args, kwargs = await decode_off_loop(self._exposed, self._message, self._threads)
            self._message = None
            self._source = self._exposed.function(*args, **kwargs)
        if self._exposed.kind == "async generator":
            return await anext(self._source, _EXHAUSTED)
        return await self._threads.run(self._variables.run, next, self._source, _EXHAUSTED)

    async def _close_source(self) -> None:
        try:
            if self._source is None:
                return
            if self._exposed.kind == "async generator":
                await self._source.aclose()
            else:
                await self._threads.run(self._variables.run, self._source.close)
        except BaseException:  # noqa: BLE001 - the caller has left, so log it
            _log.exception("%s raised when it was closed", self._exposed.name)
        finally:
            self.on_closed()

    def _end(self, kind: int, outcome: Outcome) -> Sequence[Buffer]:
        self._outcome = outcome
        self.on_end(outcome)
        return _part(kind, outcome.buffers)


def _part(kind: int, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    return [PART.pack(kind, buffers_bytes(buffers)), *buffers]

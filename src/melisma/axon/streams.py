"""Results of generators: one message an item, until one says that it was the last.

Before each message stand one byte (its meaning) and eight (its length, little-endian): 0 an item,
1 the end, 2 the exception that the generator raised, 3 an error of the call, as JSON. A stream
that stops without 1, 2 or 3 was cut off.
"""

import asyncio
import contextvars
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from melisma.axon.codec import decode_arguments, encode
from melisma.axon.context import CallContext, enter
from melisma.axon.functions import Exposed
from melisma.axon.message import Buffer, Message, buffers_bytes, message_buffers
from melisma.axon.outcome import Outcome, failed, raised, returned
from melisma.axon.threads import Threads
from melisma.errors import AxonError, CallCancelledError, DeadlineError

PART: Final = struct.Struct("<BQ")
ITEM, END, RAISED, FAILED = range(4)
_EXHAUSTED: Final = object()


class CallStream:
    """The parts of one streamed call, made as they are sent."""

    on_end: Callable[[Outcome], None]

    def __init__(
        self, exposed: Exposed, message: Message, context: CallContext, threads: Threads
    ) -> None:
        self._exposed = exposed
        self._message: Message | None = message
        self._context = context
        self._threads = threads
        self._source: Any = None
        self._outcome: Outcome | None = None
        self._variables = contextvars.copy_context()
        self._variables.run(enter, context)

    def __aiter__(self) -> AsyncIterator[Sequence[Buffer]]:
        return self

    async def __anext__(self) -> Sequence[Buffer]:
        if self._outcome is not None:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout_at(self._context.deadline_at) as timeout:
                item = await self._next_item()
            if item is _EXHAUSTED:
                return self._end(END, returned(None))
            return _part(ITEM, message_buffers(encode(item, "item")))
        except TimeoutError as error:
            if not timeout.expired():
                return self._end(RAISED, raised(error))
            late = f"{self._exposed.name} did not end by the caller's deadline"
            return self._end(FAILED, failed(DeadlineError(late)))
        except AxonError as error:
            return self._end(FAILED, failed(error))
        except Exception as error:  # noqa: BLE001 - whatever it raises is the caller's
            return self._end(RAISED, raised(error))

    async def aclose(self) -> None:
        """Close the generator; the call has ended."""
        self._context.cancel()
        if self._outcome is None:
            self._end(FAILED, failed(CallCancelledError("the caller left the stream")))
        if self._source is not None:
            with suppress(Exception):
                if self._exposed.kind == "async generator":
                    await self._source.aclose()
                else:
                    await self._threads.run(self._variables.run, self._source.close)

    async def _next_item(self) -> Any:
        if self._message is not None:
            args, kwargs = decode_arguments(self._message, self._exposed.types)
            self._message = None
            self._source = self._exposed.function(*args, **kwargs)
        if self._exposed.kind == "async generator":
            return await anext(self._source, _EXHAUSTED)
        return await self._threads.run(self._variables.run, next, self._source, _EXHAUSTED)

    def _end(self, meaning: int, outcome: Outcome) -> Sequence[Buffer]:
        self._outcome = outcome
        self.on_end(outcome)
        return _part(meaning, outcome.buffers)


def _part(meaning: int, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    return [PART.pack(meaning, buffers_bytes(buffers)), *buffers]

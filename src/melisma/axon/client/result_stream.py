"""Streamed results at the caller: the items of a remote generator as they come."""

from contextlib import suppress
from typing import Any

from melisma.axon.codec.encoding import Types, decode
from melisma.axon.codec.message import MAX_TREE_BYTES, Message
from melisma.axon.codec.outcome import error_from_json, remote_exception
from melisma.axon.codec.stream_parts import END, FAILED, ITEM, PART
from melisma.axon.transport.interface import Transport, close_on_error, run_blocking
from melisma.axon.transport.wire import read_bytes, read_message
from melisma.errors import DeadlineError, MalformedError, UnreachableError


class ResultStream:
    """Reads the parts of a streamed result; closing it ends the remote generator."""

    def __init__(self, transport: Transport, types: Types) -> None:
        self._transport = transport
        self._types = types
        self._ended = False

    async def next(self) -> tuple[bool, Any]:
        """(True, the next item), or (False, None) after the last."""
        if self._ended:
            return False, None
        try:
            with close_on_error(self._transport):
                meaning, body = await self._read_part()
        except TimeoutError:
            self._ended = True
            raise DeadlineError("the deadline passed before the stream ended") from None
        except OSError as error:
            self._ended = True
            raise UnreachableError(f"the stream was cut off: {error}") from error
        if meaning == ITEM:
            return True, decode(body, self._types)
        self.close()
        if meaning == END:
            return False, None
        raise remote_exception(body, self._types)

    def __del__(self) -> None:
        if not self._ended:
            with suppress(RuntimeError):  # Its loop may have closed before.
                self.close()

    def close(self) -> None:
        """Leave the stream."""
        self._ended = True
        self._transport.close()

    async def _read_part(self) -> tuple[int, Message]:
        meaning, size = PART.unpack(await read_bytes(self._transport, PART.size))
        if meaning == FAILED:
            self._ended = True
            raise error_from_json(500, await read_bytes(self._transport, size))
        if meaning > FAILED:
            raise MalformedError(f"a stream part of meaning {meaning}")
        return meaning, await read_message(self._transport, size, MAX_TREE_BYTES)


class ResultIterator:
    """A streamed result for a blocking caller: iterate over it, or close it early."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    def __iter__(self) -> "ResultIterator":
        return self

    def __next__(self) -> Any:
        more, item = run_blocking(self._stream.next())
        if not more:
            raise StopIteration
        return item

    def close(self) -> None:
        """Leave the stream; the remote generator is closed."""
        self._stream.close()


class AsyncResultIterator:
    """A streamed result on an event loop: iterate over it with ``async for``."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    def __aiter__(self) -> "AsyncResultIterator":
        return self

    async def __anext__(self) -> Any:
        more, item = await self._stream.next()
        if not more:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Leave the stream; the remote generator is closed."""
        self._stream.close()

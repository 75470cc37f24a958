"""Streamed results at the caller: the items of a remote generator."""

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
    """Reads the parts of a streamed result; closing it closes the remote generator."""

    def __init__(self, transport: Transport, types: Types) -> None:
        self._transport = transport
        self._types = types
        self._ended = False

    async def next(self) -> tuple[bool, Any]:
        """Return (True, the next item), or (False, None) after the last one."""
        if self._ended:
            return False, None
        try:
            with close_on_error(self._transport):
                kind, body = await self._read_part()
        except TimeoutError:
            self._ended = True
            raise DeadlineError(
                "the deadline passed before the stream ended: allow more time with deadline_s"
            ) from None
        except OSError as error:
            self._ended = True
            raise UnreachableError(
                f"the connection broke before the stream ended: {error}; call again"
            ) from error
        if kind == ITEM:
            return True, decode(body, self._types)
        self.close()
        if kind == END:
            return False, None
        raise remote_exception(body, self._types)

    def __del__(self) -> None:
        if not self._ended:
            with suppress(RuntimeError):  # Its loop may be closed.
                self.close()

    def close(self) -> None:
        """Close the stream."""
        self._ended = True
        self._transport.close()

    async def _read_part(self) -> tuple[int, Message]:
        kind, size = PART.unpack(await read_bytes(self._transport, PART.size))
        if kind == FAILED:
            self._ended = True
            raise error_from_json(500, await read_bytes(self._transport, size))
        if kind > FAILED:
            raise MalformedError(f"unknown kind {kind} of stream part")
        return kind, await read_message(self._transport, size, MAX_TREE_BYTES)


class ResultIterator:
    """A streamed result for ``for`` loops."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    def __iter__(self) -> "ResultIterator":
        return self

    def __next__(self) -> Any:
        has_item, item = run_blocking(self._stream.next())
        if not has_item:
            raise StopIteration
        return item

    def close(self) -> None:
        """Close the stream and the remote generator."""
        self._stream.close()


class AsyncResultIterator:
    """A streamed result for ``async for`` loops."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    def __aiter__(self) -> "AsyncResultIterator":
        return self

    async def __anext__(self) -> Any:
        has_item, item = await self._stream.next()
        if not has_item:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Close the stream and the remote generator."""
        self._stream.close()

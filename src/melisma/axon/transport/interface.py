"""Bytes in and out, over blocking sockets or the event loop, behind one interface.

What speaks HTTP is written once, as coroutines over a `Transport`. Over a `BlockingTransport`
they never suspend, so that `run_blocking` runs them to their end in the calling thread without
an event loop: that is how one client serves blocking and awaiting callers alike.
"""

import socket
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from melisma.axon.codec.message import Buffer
from melisma.axon.transport.http import MAX_HEAD_BYTES
from melisma.errors import MalformedError

JOIN_BYTES: Final = 16 << 10
"""Neighbouring buffers up to this size go out in one piece."""

_TLS: Final = 0x16
"""The first byte of a caller that means https."""
T = TypeVar("T")


class EndOfStreamError(ConnectionError):
    """The other side closed the connection where more had to come."""


class Transport(Protocol):
    """One connection. Operations raise TimeoutError once ``deadline_at`` (monotonic) is past."""

    deadline_at: float | None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have come and nobody took yet."""

    @property
    def ended(self) -> bool:
        """Whether it is known that the other side has closed."""

    def take_buffered(self, count: int) -> bytearray:
        """``count`` of those bytes."""

    async def wait_readable(self) -> bool:
        """Wait for bytes; False when the other side has closed."""

    async def read_head(self) -> bytes:
        """Everything up to and including the next blank line."""

    async def read_into(self, view: memoryview) -> None:
        """Fill the whole of ``view``."""

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers."""

    def close(self) -> None:
        """Close the connection."""


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        value: T = result.value
        return value
    coroutine.close()
    raise RuntimeError("a blocking call suspended")


class close_on_error:  # noqa: N801 - read as a verb; a class, since each call passes here twice
    """Close a connection that something goes wrong with."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._transport.close()


class ReceiveBuffer:
    """Bytes received ahead of what was asked for."""

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def free_space(self) -> memoryview:
        """Where to receive; empty when full."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer) and self._start:
            count = len(self)
            self._view[:count] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, count
        return self._view[self._end :]

    def commit(self, count: int) -> None:
        """``count`` bytes were received into `space`."""
        self._end += count

    def take_head(self) -> bytes | None:
        """A whole head, if it is there."""
        end = self._buffer.find(b"\r\n\r\n", self._start, self._end)
        if end < 0:
            if len(self) and self._buffer[self._start] == _TLS:
                raise MalformedError("this is TLS, and HTTP without TLS is spoken here")
            if len(self) == len(self._buffer):
                raise MalformedError(f"the head of the message exceeds {MAX_HEAD_BYTES} bytes")
            return None
        head = bytes(self._view[self._start : end + 4])
        self._start = end + 4
        return head

    def take(self, count: int) -> bytearray:
        """``count`` bytes that are there."""
        self._start += count
        return self._buffer[self._start - count : self._start]

    def take_into(self, view: memoryview) -> int:
        """Move as much as there is into ``view``."""
        count = min(len(self), view.nbytes)
        view[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count


def tune(sock: Any) -> None:
    """Send at once, and notice within half a minute that the other side is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def join_small_buffers(buffers: Sequence[Buffer]) -> list[memoryview]:
    """The buffers with small neighbours joined: fewer calls into the kernel."""
    if sum(map(len, buffers)) <= JOIN_BYTES:
        return [memoryview(b"".join(buffers))]
    pieces: list[memoryview] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= JOIN_BYTES:
            small.append(buffer)
            continue
        if small:
            pieces.append(memoryview(b"".join(small)))
            small = []
        pieces.append(memoryview(buffer).cast("B"))
    if small:
        pieces.append(memoryview(b"".join(small)))
    return pieces

"""The interface of transports over blocking sockets and over asyncio.

HTTP is implemented once, as coroutines over a `Transport`. Over a `SocketTransport` they never
suspend, so that `run_blocking` runs them in the calling thread without an event loop. Blocking and
async callers thus share one client.
"""

import socket
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from melisma.axon.codec.message import Buffer
from melisma.axon.transport.http import MAX_HEAD_BYTES
from melisma.errors import MalformedError

JOIN_BYTES: Final = 16 << 10
"""Adjacent buffers of up to this size are joined before they are sent."""

_TLS_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection."""
T = TypeVar("T")


class EndOfStreamError(ConnectionError):
    """The peer closed the connection before all expected bytes arrived."""


class Transport(Protocol):
    """One connection. Operations raise TimeoutError after ``deadline_at`` (monotonic)."""

    deadline_at: float | None

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes that have not been read."""

    @property
    def ended(self) -> bool:
        """Whether the peer is known to have closed the connection."""

    def take_buffered(self, count: int) -> bytearray:
        """Return ``count`` of the buffered bytes."""

    async def wait_readable(self) -> bool:
        """Wait for bytes; return False if the peer has closed the connection."""

    async def read_head(self) -> bytes:
        """Read up to and including the next blank line."""

    async def read_into(self, view: memoryview) -> None:
        """Fill the whole of ``view``."""

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers."""

    def close(self) -> None:
        """Close the connection."""


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        value: T = result.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over a blocking transport suspended")


class close_on_error:  # noqa: N801 - a class for speed: each call enters it twice
    """Close the transport if the block raises."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._transport.close()


class ReceiveBuffer:
    """A buffer for bytes received before they are read."""

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._start = self._end = 0
        self._allocate(MAX_HEAD_BYTES)

    def __len__(self) -> int:
        return self._end - self._start

    def _allocate(self, size_bytes: int) -> None:
        """Replace the memory by an empty one."""
        self._buffer = bytearray(size_bytes)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def free_space(self) -> memoryview:
        """Return the free memory to receive into; empty if the buffer is full."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > MAX_HEAD_BYTES:
                self._allocate(MAX_HEAD_BYTES)
        elif self._end == len(self._buffer) and self._start:
            count = len(self)
            self._view[:count] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, count
        return self._view[self._end :]

    def grow(self) -> memoryview:
        """Double a buffer that is full until it is empty again; return its free memory."""
        kept = bytes(self._view[self._start : self._end])
        self._allocate(2 * len(self._buffer))
        self._view[: len(kept)] = kept
        self._end = len(kept)
        return self._view[self._end :]

    def commit(self, count: int) -> None:
        """Mark the first ``count`` bytes of `free_space` as received."""
        self._end += count

    def take_head(self) -> bytes | None:
        """Return the next complete head, or None."""
        end = self._buffer.find(b"\r\n\r\n", self._start, self._end)
        if end < 0:
            if len(self) and self._buffer[self._start] == _TLS_HANDSHAKE:
                raise MalformedError(
                    "received TLS on a port without TLS: use http:// in the address"
                )
            if len(self) >= MAX_HEAD_BYTES:
                raise MalformedError(f"the HTTP head exceeds {MAX_HEAD_BYTES} bytes")
            return None
        head = bytes(self._view[self._start : end + 4])
        self._start = end + 4
        return head

    def take(self, count: int) -> bytearray:
        """Return the next ``count`` received bytes."""
        self._start += count
        return self._buffer[self._start - count : self._start]

    def take_into(self, view: memoryview) -> int:
        """Move received bytes into ``view`` and return their number."""
        count = min(len(self), view.nbytes)
        view[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count


SOCKET_TIMEOUTS: Final = {
    "TCP_KEEPIDLE": 5,  # seconds without data before the first probe
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 20_000,  # milliseconds that data or probes may be unacknowledged
}


def set_socket_options(sock: Any) -> None:
    """Disable Nagle's algorithm; detect a vanished peer, or a lost address, in 20 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SOCKET_TIMEOUTS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def join_small_buffers(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Join small adjacent buffers, to save system calls."""
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

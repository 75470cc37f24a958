"""Bytes in and out, over blocking sockets or the event loop, behind one interface.

What speaks HTTP is written once, as coroutines over a `Transport`. Over a `BlockingTransport`
they never suspend, so that `run_blocking` runs them to their end in the calling thread without
an event loop: that is how one client serves blocking and awaiting callers alike.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from melisma.axon.http import MAX_HEAD_BYTES
from melisma.axon.message import Buffer
from melisma.errors import MalformedError

CHUNK_BYTES: Final = 256 << 10
"""What is handed to the event loop at once: it copies what the socket does not take."""
JOIN_BYTES: Final = 16 << 10
"""Neighbouring buffers up to this size go out in one piece."""

T = TypeVar("T")


class EndOfStreamError(ConnectionError):
    """The other side closed the connection where more had to come."""


class Transport(Protocol):
    """One connection. Operations raise TimeoutError once ``deadline_at`` (monotonic) is past."""

    deadline_at: float | None

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


class closed_on_error:  # noqa: N801 - read as a verb; a class, since each call passes here twice
    """Close a connection that something goes wrong with."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._transport.close()


class Inbox:
    """Bytes received ahead of what was asked for."""

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def space(self) -> memoryview:
        """Where to receive; empty when full."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer) and self._start:
            count = len(self)
            self._view[:count] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, count
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """``count`` bytes were received into `space`."""
        self._end += count

    def take_head(self) -> bytes | None:
        """A whole head, if it is there."""
        end = self._buffer.find(b"\r\n\r\n", self._start, self._end)
        if end < 0:
            if len(self) == len(self._buffer):
                raise MalformedError(f"the head of the message exceeds {MAX_HEAD_BYTES} bytes")
            return None
        head = bytes(self._view[self._start : end + 4])
        self._start = end + 4
        return head

    def take_into(self, view: memoryview) -> int:
        """Move as much as there is into ``view``."""
        count = min(len(self), view.nbytes)
        view[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count


class BlockingTransport:
    """A connection over a blocking socket, plain or TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self.deadline_at: float | None = None
        self._sock = sock
        self._timeout_s = sock.gettimeout()
        self._inbox = Inbox()

    async def wait_readable(self) -> bool:
        return len(self._inbox) > 0 or self._receive_more()

    async def read_head(self) -> bytes:
        while (head := self._inbox.take_head()) is None:
            if not self._receive_more():
                raise EndOfStreamError("the connection closed")
        return head

    async def read_into(self, view: memoryview) -> None:
        filled = self._inbox.take_into(view)
        while filled < view.nbytes:
            self._set_timeout()
            received = self._sock.recv_into(view[filled:])
            if not received:
                raise EndOfStreamError(f"the connection closed, {view.nbytes - filled} bytes short")
            filled += received

    async def write(self, buffers: Sequence[Buffer]) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            for piece in _pieces(buffers):
                self._set_timeout()
                self._sock.sendall(piece)
            return
        pending = [memoryview(buffer).cast("B") for buffer in buffers]
        while pending:
            self._set_timeout()
            sent = self._sock.sendmsg(pending[:64])
            while pending and sent >= pending[0].nbytes:
                sent -= pending.pop(0).nbytes
            if sent:
                pending[0] = pending[0][sent:]

    def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from here on."""
        self._set_timeout()
        self._sock = context.wrap_socket(self._sock, server_hostname=host)

    def peer_certificate(self) -> bytes | None:
        """The certificate of the other side (DER)."""
        sock = self._sock
        return sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None

    def close(self) -> None:
        self._sock.close()

    def _receive_more(self) -> bool:
        self._set_timeout()
        received = self._sock.recv_into(self._inbox.space())
        self._inbox.filled(received)
        return received > 0

    def _set_timeout(self) -> None:
        left_s = None
        if self.deadline_at is not None:
            left_s = self.deadline_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
        if left_s != self._timeout_s:
            self._sock.settimeout(left_s)
            self._timeout_s = left_s


class EventTransport(asyncio.BufferedProtocol):
    """A connection on the event loop, plain or TLS; the same for both ends."""

    def __init__(self) -> None:
        self.deadline_at: float | None = None
        self.on_data: Callable[[], None] | None = None
        """Called when bytes or the end came that nobody waits for."""
        self.relayed = False
        """Whether a relay stands between this end and the other."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox()
        self._target: memoryview | None = None
        self._some = False
        self._ended = False
        self._error: Exception | None = None
        self._reading_paused = False
        self._writable = True
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        # `write` returns when the kernel has everything: whoever owns the memory may reuse it.
        # TLS pauses at its limit and not above it, so that 0 would pause for ever.
        tls = self.transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(high=1 if tls else 0, low=0)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._inbox.space() if not self._target else self._target

    def buffer_updated(self, count: int) -> None:
        if self._target:
            self._target = self._target[count:]
            if self._some or not self._target.nbytes:
                self._notify()
            return
        self._inbox.filled(count)
        if not self._inbox.space().nbytes:
            self._reading_paused = True
            self.transport.pause_reading()
        self._notify()

    def eof_received(self) -> bool:
        self._ended = True
        self._notify()
        # A peer that only closed its own direction still gets its answer.
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._error = error or ConnectionResetError("the connection closed")
        self._writable = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._notify()
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        _wake(self._writer)

    # What the speakers of HTTP call.

    @property
    def readable(self) -> bool:
        """Whether there are bytes to read."""
        return len(self._inbox) > 0

    @property
    def ended(self) -> bool:
        """Whether the other side has closed."""
        return self._ended

    def expect_more(self) -> None:
        """Read on, if that was paused because nobody took what had come."""
        if self._reading_paused and (self._target or self._inbox.space()):
            self._reading_paused = False
            self.transport.resume_reading()

    async def wait_readable(self) -> bool:
        while not self.readable:
            if self._ended:
                return False
            await self._wait_reader()
        return True

    async def read_head(self) -> bytes:
        while (head := self._inbox.take_head()) is None:
            if self._ended:
                raise EndOfStreamError("the connection closed")
            await self._wait_reader()
        return head

    async def read_into(self, view: memoryview) -> None:
        left = await self._read(view, some=False)
        if left:
            raise EndOfStreamError(f"the connection closed, {left} bytes short")

    async def read_some(self, view: memoryview) -> int:
        """Read what there is into ``view``; 0 at the end."""
        return view.nbytes - await self._read(view, some=True)

    async def write(self, buffers: Sequence[Buffer]) -> None:
        for piece in _pieces(buffers):
            for start in range(0, piece.nbytes, CHUNK_BYTES):
                if self._error is not None:
                    raise self._error
                self.transport.write(piece[start : start + CHUNK_BYTES])
                while not self._writable:
                    self._writer = self._loop.create_future()
                    await self._wait(self._writer)
        if self._error is not None:
            raise self._error

    def peer_certificate(self) -> bytes | None:
        """The certificate of the other side (DER)."""
        tls = self.transport.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True) if tls else None

    def close(self) -> None:
        # All has been written; TLS would wait for the other side to agree.
        self.transport.abort()

    async def start_tls(
        self, context: ssl.SSLContext, *, server_side: bool = False, host: str | None = None
    ) -> None:
        """Speak TLS from here on."""
        inner = await self._loop.start_tls(
            self.transport, self, context, server_side=server_side, server_hostname=host
        )
        assert inner is not None
        EventTransport.connection_made(self, inner)

    async def _read(self, view: memoryview, *, some: bool) -> int:
        """Fill ``view``, or a part of it; the bytes that it lacks."""
        filled = self._inbox.take_into(view)
        if filled == view.nbytes or (some and filled):
            return view.nbytes - filled
        self._target, self._some = view[filled:], some
        # With ``some`` the first bytes are enough, else the last ones are awaited.
        enough = view.nbytes - 1 if some else 0
        try:
            while self._target.nbytes > enough and not self._ended:
                await self._wait_reader()
            return self._target.nbytes
        finally:
            self._target = None

    async def _wait_reader(self) -> None:
        self.expect_more()
        self._reader = self._loop.create_future()
        await self._wait(self._reader)

    async def _wait(self, future: "asyncio.Future[None]") -> None:
        if self.deadline_at is not None:
            self._watch(self.deadline_at)
        await future

    def _watch(self, deadline_at: float) -> None:
        """See to it that somebody looks at the time by then; one timer serves many waits."""
        if self._watchdog is not None:
            if self._watchdog.when() <= deadline_at:
                return
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(deadline_at, self._look_at_time)

    def _look_at_time(self) -> None:
        self._watchdog = None
        waiting = [f for f in (self._reader, self._writer) if f is not None and not f.done()]
        if self.deadline_at is None or not waiting:
            return
        if self._loop.time() < self.deadline_at:
            self._watch(self.deadline_at)
            return
        for future in waiting:
            future.set_exception(TimeoutError())

    def _notify(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        elif self.on_data is not None:
            self.on_data()


def tune(sock: Any) -> None:
    """Send at once, and notice within half a minute that the other side is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _pieces(buffers: Sequence[Buffer]) -> list[memoryview]:
    """The buffers with small neighbours joined: fewer calls into the kernel."""
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

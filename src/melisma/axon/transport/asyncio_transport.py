"""The transport over asyncio, for clients and servers."""

import asyncio
import asyncio.sslproto
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from melisma.axon.codec.message import Buffer
from melisma.axon.transport.interface import EndOfStreamError, ReceiveBuffer, join_small_buffers
from melisma.axon.transport.tls import fingerprint

CHUNK_BYTES: Final = 256 << 10
"""The most passed to the event loop at once: it copies bytes that the socket does not accept."""

TLS_BUFFER_BYTES: Final = 32 << 10
"""Memory of a connection for received bytes that are not decrypted yet: two records of TLS.

asyncio reserves 256 KiB from the handshake on, and has no setting for it but this attribute, which
Python 3.10 does not have: there the buffer is as large as what was received.
"""
if hasattr(asyncio.sslproto.SSLProtocol, "max_size"):
    asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


class AsyncioTransport(asyncio.BufferedProtocol):
    """A connection, plain or TLS, that receives directly into the memory of the reader."""

    def __init__(self) -> None:
        self.deadline_at: float | None = None
        self.on_data: Callable[[], None] | None = None
        """Called when bytes or the end of the stream arrive while no read is waiting."""
        self.on_peer_closed: Callable[[], object] | None = None
        """Called when the peer closes the connection while a response is sent."""
        self._min_rate: tuple[float, float] | None = None
        self._moved_bytes = 0
        self.relayed = False
        """Whether the connection runs through a relay."""
        self.peer_fingerprint: str | None = None
        """The fingerprint of the peer's certificate; None without one."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._received = ReceiveBuffer()
        self._target: memoryview | None = None
        self._partial = False
        self._ended = False
        self._error: Exception | None = None
        self._reading_paused = False
        self._writable = True
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        # `write` returns once the kernel has all bytes, so that the caller may reuse the memory.
        # TLS pauses at its limit, not above it: a limit of 0 would pause for ever.
        tls = self.transport.get_extra_info("ssl_object") is not None
        certificate = self.peer_certificate()
        self.peer_fingerprint = fingerprint(certificate) if certificate else None
        self.transport.set_write_buffer_limits(high=1 if tls else 0, low=0)

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._target:
            return self._target
        # With TLS, Python 3.10 passes on all that it has decrypted, also if reading was paused.
        return self._received.free_space() or self._received.grow()

    def buffer_updated(self, count: int) -> None:
        self._moved_bytes += count
        if self._target:
            self._target = self._target[count:]
            if self._partial or not self._target.nbytes:
                self._notify()
            return
        self._received.commit(count)
        if not self._received.free_space().nbytes:
            self._reading_paused = True
            self.transport.pause_reading()
        self._notify()

    def eof_received(self) -> bool:
        self._ended = True
        self._notify()
        # A peer that closed only its sending side still receives the response.
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._error = error or ConnectionResetError("the peer closed the connection")
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

    # Operations of the HTTP client and server.

    def set_min_rate(self, min_rate: tuple[float, float] | None) -> None:
        """Require a minimum of (seconds, bytes) sent and received from now on; None: no minimum."""
        self._min_rate = min_rate
        if min_rate is not None:
            self._moved_bytes = 0
            self.deadline_at = self._loop.time() + min_rate[0]

    @property
    def buffered_bytes(self) -> int:
        return len(self._received)

    @property
    def ended(self) -> bool:
        """Whether the peer has closed the connection."""
        return self._ended

    def take_buffered(self, count: int) -> bytearray:
        return self._received.take(count)

    def resume_reading(self) -> None:
        """Resume reading if it was paused because the receive buffer was full."""
        if self._reading_paused and (self._target or self._received.free_space()):
            self._reading_paused = False
            self.transport.resume_reading()

    async def wait_readable(self) -> bool:
        while not len(self._received):
            if self._ended:
                return False
            await self._wait_reader()
        return True

    async def read_head(self) -> bytes:
        while (head := self._received.take_head()) is None:
            if self._ended:
                raise EndOfStreamError("the peer closed the connection")
            await self._wait_reader()
        return head

    async def read_into(self, view: memoryview) -> None:
        missing_bytes = await self._read(view, partial=False)
        if missing_bytes:
            raise EndOfStreamError(f"the peer closed the connection {missing_bytes} bytes early")

    async def read_some(self, view: memoryview) -> int:
        """Read available bytes into ``view`` and return their number, 0 at the end."""
        return view.nbytes - await self._read(view, partial=True)

    async def write(self, buffers: Sequence[Buffer]) -> None:
        for piece in join_small_buffers(buffers):
            for start in range(0, piece.nbytes, CHUNK_BYTES):
                if self._error is not None:
                    raise self._error
                chunk = piece[start : start + CHUNK_BYTES]
                self._moved_bytes += chunk.nbytes
                self.transport.write(chunk)
                while not self._writable:
                    self._writer = self._loop.create_future()
                    await self._wait(self._writer)
        if self._error is not None:
            raise self._error

    def peer_certificate(self) -> bytes | None:
        """Return the certificate of the peer (DER)."""
        tls = self.transport.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True) if tls else None

    def close(self) -> None:
        # All data is written; a graceful close of TLS would wait for the peer.
        self.transport.abort()

    async def start_tls(
        self, context: ssl.SSLContext, *, server_side: bool = False, host: str | None = None
    ) -> None:
        """Use TLS from now on."""
        inner = await self._loop.start_tls(
            self.transport, self, context, server_side=server_side, server_hostname=host
        )
        assert inner is not None
        AsyncioTransport.connection_made(self, inner)

    async def _read(self, view: memoryview, *, partial: bool) -> int:
        """Fill ``view``, or a part of it, and return the number of missing bytes."""
        filled = self._received.take_into(view)
        if filled == view.nbytes or (partial and filled):
            return view.nbytes - filled
        self._target, self._partial = view[filled:], partial
        # A partial read needs at least one byte, a full read all of them.
        missing_limit = view.nbytes - 1 if partial else 0
        try:
            while self._target.nbytes > missing_limit and not self._ended:
                await self._wait_reader()
            return self._target.nbytes
        finally:
            self._target = None

    async def _wait_reader(self) -> None:
        self.resume_reading()
        self._reader = self._loop.create_future()
        await self._wait(self._reader)

    async def _wait(self, future: "asyncio.Future[None]") -> None:
        if self.deadline_at is not None:
            self._watch(self.deadline_at)
        await future

    def _watch(self, deadline_at: float) -> None:
        """Schedule a check of the deadline; one timer serves many waits."""
        if self._watchdog is not None:
            if self._watchdog.when() <= deadline_at:
                return
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(deadline_at, self._check_deadline)

    def _check_deadline(self) -> None:
        self._watchdog = None
        waiting = [f for f in (self._reader, self._writer) if f is not None and not f.done()]
        if self.deadline_at is None or not waiting:
            return
        if self._min_rate is not None and self._moved_bytes >= self._min_rate[1]:
            self.set_min_rate(self._min_rate)
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


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)

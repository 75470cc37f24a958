"""An HTTP server: connections, request heads, limits and replies.

The server passes each request to one handler, which returns the reply. Workers, relays and callers
that listen for results provide the handlers.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final

import msgspec

from melisma.axon.codec.message import Buffer, Message, buffers_bytes
from melisma.axon.codec.outcome import JSON_TYPE, Outcome, error_outcome
from melisma.axon.server.authentication import Credentials, OnRefused
from melisma.axon.server.limits import Limits
from melisma.axon.server.listener import Listener, Slot, Slots, open_transport
from melisma.axon.server.receive_budget import ReceiveBudget
from melisma.axon.transport import eager
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import Request, parse_request, response_head
from melisma.axon.transport.interface import JOIN_BYTES, set_socket_options
from melisma.axon.transport.tls import describe_failed_handshake
from melisma.axon.transport.wire import discard, read_bytes, read_message
from melisma.errors import (
    AxonError,
    MalformedError,
    SettingError,
    TooLargeError,
    TooSlowError,
)

_log = logging.getLogger("melisma.axon")
_MAX_DISCARD_BYTES: Final = 1 << 20
"""The most that is read of a refused body, so that the sender receives the reply."""


class Exchange(msgspec.Struct):
    """One request on its connection; the handler may read the body."""

    request: Request
    transport: AsyncioTransport
    limits: Limits
    budget: ReceiveBudget
    unread_bytes: int = 0
    accept: Callable[[], None] = lambda: None
    """Records that the caller is authorized, so that others do not displace its connection.

    Called by the handler.
    """
    on_delivered: Callable[[], None] | None = None
    """Called when the next request on the connection shows that the reply arrived."""

    @property
    def peer_host(self) -> str | None:
        """The host that sent the request; None through a relay."""
        if self.transport.relayed:
            return None
        # A connection that was closed before it was accepted has no peer any more.
        peer = self.transport.transport.get_extra_info("peername")
        return str(peer[0]) if peer else None

    @property
    def credentials(self) -> Credentials:
        """The token and the certificate of the caller."""
        authorization = self.request.headers.get("authorization")
        return Credentials(authorization, self.transport.peer_fingerprint, self.peer_host)

    async def read_message(self, account: str = "", *, spool: bool = False) -> Message:
        """Receive the body as a message, in memory counted for ``account`` or in a file."""
        size = self._check_size()
        reserved = 0 if spool or self.transport.buffered_bytes >= size else size
        await self.budget.acquire(reserved, account)
        try:
            await self._begin_body(size)
            return await read_message(self.transport, size, self.limits.max_tree_bytes, spool=spool)
        finally:
            self.budget.release(reserved, account)

    async def read_bytes(self) -> bytearray:
        """Receive the body as bytes."""
        size = self._check_size()
        await self.budget.acquire(size, "")
        try:
            await self._begin_body(size)
            return await read_bytes(self.transport, size)
        finally:
            self.budget.release(size, "")

    @property
    def discardable(self) -> bool:
        """Whether reading the rest of the body is cheaper than closing the connection."""
        if self.unread_bytes > _MAX_DISCARD_BYTES or "expect" in self.request.headers:
            return self.unread_bytes == 0
        return True

    async def discard_body(self) -> None:
        """Discard the unread body."""
        if self.discardable:
            await discard(self.transport, self.unread_bytes)
            self.unread_bytes = 0

    def _check_size(self) -> int:
        """Return the size of the body, from the head of the request."""
        size = self.unread_bytes
        if size > self.limits.max_body_bytes:
            raise TooLargeError(
                f"the request has {size} bytes, the limit is {self.limits.max_body_bytes}: send "
                "less at once, or raise max_body_bytes"
            )
        return size

    async def _begin_body(self, size: int) -> None:
        """Ask for the body, whose bytes must arrive at the minimum rate from now on."""
        self.unread_bytes = 0
        if self.transport.buffered_bytes >= size:
            return
        self.transport.set_min_rate(self.limits.min_rate)
        if self.request.headers.get("expect", "").lower() == "100-continue":
            await self.transport.write([response_head(100, {})])


class Reply(msgspec.Struct):
    """A response: buffers, a stream of buffers, or a function that takes over the connection."""

    status: int
    content_type: str = JSON_TYPE
    buffers: Sequence[Buffer] = ()
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[Sequence[Buffer]] | None = None
    takeover: Callable[[AsyncioTransport], Awaitable[None]] | None = None
    deadline_at: float | None = None
    """The deadline of a stream."""

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> "Reply":
        """Return the reply for an outcome."""
        return cls(outcome.status, outcome.content_type, outcome.buffers)


Handler = Callable[[Exchange], Awaitable[Reply]]
AfterExchange = tuple[bool, Callable[[], None] | None]
"""Whether to keep the connection, and the callback for its next request."""


class HttpServer:
    """Listens and passes each request to the handler.

    ``on_refused`` receives each caller whose TLS handshake fails.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        on_refused: OnRefused = lambda _host, _reason: None,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self.tls = tls
        self._on_refused = on_refused
        self._listener: Listener | None = None
        self._slots = Slots(limits.max_connections)
        self._budget = ReceiveBudget(limits.max_receiving_bytes)
        self._connections: set[_Connection] = set()

    async def listen(self, host: str, port: int) -> int:
        """Start listening and return the port; port 0 selects a free one."""
        self._listener = Listener(self._slots, self._accept)
        try:
            return await self._listener.listen(host, port)
        except OSError as error:
            raise SettingError(
                f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error

    def serve(self, transport: AsyncioTransport) -> None:
        """Serve requests on a connection that was opened to a relay."""
        self._add(_Connection(self._exchange, self._limits)).begin(transport)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.close()

    def _accept(self, sock: socket.socket, network: bytes) -> None:
        """Serve requests on an accepted socket, after the TLS handshake if there is one."""
        connection = self._add(_Connection(self._exchange, self._limits, self._slots))
        connection.slot = Slot(network, connection)
        self._slots.add(connection.slot)
        protocol = _AcceptedTransport(connection.begin)
        connection.open(sock, protocol, self.tls, self._on_refused)

    def _add(self, connection: "_Connection") -> "_Connection":
        self._connections.add(connection)
        connection.on_close = lambda: self._connections.discard(connection)
        return connection

    async def drain(self, timeout_s: float) -> None:
        """Stop listening and wait up to ``timeout_s`` for replies in progress."""
        self.stop_listening()
        tasks = [c.task for c in self._connections if c.task is not None and c.idle_since is None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self.stop_listening()
        tasks = [c.task for c in self._connections if c.task is not None]
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _exchange(self, connection: "_Connection") -> AfterExchange:
        """Serve one request."""
        exchange: Exchange | None = None
        transport = connection.transport
        try:
            transport.set_min_rate(None)
            transport.deadline_at = time.monotonic() + self._limits.head_s
            request = parse_request(await transport.read_head())
            exchange = Exchange(
                request,
                transport,
                self._limits,
                self._budget,
                request.body_bytes,
                connection.prove,
            )
            reply = await self._handler(exchange)
        except TimeoutError:
            slow = (
                f"the request arrived at less than {self._limits.min_bytes_per_s:g} bytes/s: "
                "lower min_bytes_per_s on the worker"
            )
            reply, exchange = Reply.from_outcome(error_outcome(TooSlowError(slow))), None
        except ConnectionError:
            cut = "the connection closed before the request was complete"
            reply, exchange = Reply.from_outcome(error_outcome(MalformedError(cut))), None
        except AxonError as error:
            reply = Reply.from_outcome(error_outcome(error))
            # After a partly read body, the start of the next request is unknown.
            if exchange is not None and exchange.unread_bytes == 0 and exchange.request.body_bytes:
                exchange = None
        keep = exchange is not None and exchange.request.keep_alive and reply.stream is None
        after = exchange.on_delivered if exchange is not None else None
        return await self._answer(transport, reply, exchange, keep), after

    async def _answer(
        self, transport: AsyncioTransport, reply: Reply, exchange: Exchange | None, keep: bool
    ) -> bool:
        if reply.takeover is not None:
            transport.set_min_rate(None)
            transport.deadline_at = None
            await transport.write([response_head(reply.status, reply.headers)])
            await reply.takeover(transport)
            return False
        unread = exchange if exchange is not None and exchange.unread_bytes else None
        if unread is not None:
            keep = keep and unread.discardable
            if buffers_bytes(reply.buffers) > JOIN_BYTES:
                # The caller may read a large reply only after it has sent its body.
                await unread.discard_body()
        headers = {"content-type": reply.content_type, **reply.headers}
        if exchange is not None and exchange.request.method == "GET":
            # So that callers can compare clocks, also those that are refused.
            headers["date"] = formatdate(usegmt=True)
        if not keep:
            headers["connection"] = "close"
        if reply.stream is not None:
            await eager.ensure_task()
            transport.set_min_rate(None)
            transport.deadline_at = reply.deadline_at
            head = response_head(reply.status, headers)
            await self._answer_stream(transport, reply.stream, head)
            return False
        headers["content-length"] = str(buffers_bytes(reply.buffers))
        transport.set_min_rate(self._limits.min_rate)
        await transport.write([response_head(reply.status, headers), *reply.buffers])
        if unread is not None:
            await unread.discard_body()
        return keep

    async def _answer_stream(
        self, transport: AsyncioTransport, stream: AsyncIterator[Sequence[Buffer]], head: bytes
    ) -> None:
        """Send a stream without a minimum rate, up to the deadline of the call."""
        task = asyncio.current_task()
        assert task is not None
        transport.on_peer_closed = task.cancel
        try:
            await transport.write([head])
            async for buffers in stream:
                await transport.write(buffers)
        finally:
            with suppress(Exception):
                await stream.aclose()  # type: ignore[attr-defined]


class _Connection:
    """A connection of the server: opening, idle or serving one request."""

    on_close: Callable[[], None]
    transport: AsyncioTransport

    def __init__(
        self,
        exchange: "Callable[[_Connection], Coroutine[Any, Any, AfterExchange]]",
        limits: Limits,
        slots: Slots | None = None,
    ) -> None:
        self.slot: Slot | None = None
        self._slots = slots
        self._exchange = exchange
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._begun = False
        self._closed = False
        self._delivered: Callable[[], None] | None = None
        self._idle_since = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        """Opens the connection, or serves a request that has to wait."""

    @property
    def idle_since(self) -> float | None:
        """The time of the last request, None while one is served."""
        return None if self._busy else self._idle_since

    def open(
        self,
        sock: socket.socket,
        protocol: AsyncioTransport,
        tls: ssl.SSLContext | None,
        on_refused: OnRefused,
    ) -> None:
        """Connect the transport to an accepted socket, after the TLS handshake if there is one."""
        self.task = self._loop.create_task(self._open(sock, protocol, tls, on_refused))
        self.task.add_done_callback(lambda _: self._on_opened(sock))

    def begin(self, transport: AsyncioTransport) -> None:
        """Serve requests on the transport, which is connected."""
        self.transport = transport
        if self._closed:
            transport.close()
            return
        self._begun, self.task = True, None
        self._idle_since = self._loop.time()
        self._check_idle_time()
        transport.on_data = self.serve_buffered
        self.serve_buffered()

    def prove(self) -> None:
        """Record that a request was accepted."""
        if self._slots is not None and self.slot is not None:
            self._slots.prove(self.slot)

    def serve_buffered(self) -> None:
        """Serve the buffered requests as far as possible without waiting."""
        while self.transport.buffered_bytes and not self._busy and not self._closed:
            self._busy = True
            if self._delivered is not None:
                self._delivered()
                self._delivered = None
            self.task = eager.start(self._serve(), self._on_served)
        if self._busy:
            if self.transport.ended and self.transport.on_peer_closed is not None:
                self.transport.on_peer_closed()
            return
        if self.transport.ended:
            self.close()
        else:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the connection, even during a request."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()
        if self._begun:
            self.transport.close()
        if self._slots is not None and self.slot is not None:
            self._slots.remove(self.slot)
        self.on_close()

    async def _open(
        self,
        sock: socket.socket,
        protocol: AsyncioTransport,
        tls: ssl.SSLContext | None,
        on_refused: OnRefused,
    ) -> None:
        with suppress(OSError):  # The caller went away, or the handshake took too long.
            host = str(sock.getpeername()[0])
            try:
                await open_transport(sock, protocol, tls, self._limits.head_s)
            except ssl.SSLError as error:
                on_refused(host, describe_failed_handshake(error))

    def _on_opened(self, sock: socket.socket) -> None:
        if not self._begun:
            sock.close()
            self.close()

    async def _serve(self) -> bool:
        try:
            keep, self._delivered = await self._exchange(self)
        except (TimeoutError, OSError, asyncio.CancelledError):
            return False
        except Exception:  # noqa: BLE001 - other connections must go on
            _log.exception("unexpected error on a connection")
            return False
        return keep

    def _on_served(self, keep: bool) -> None:
        """Continue after a request: close the connection or serve the next request."""
        resumed, self.task = self.task is not None, None
        self._busy = False
        self._idle_since = self._loop.time()
        if not keep:
            self.close()
        elif resumed:
            # Not inside the task that ends here: the next request may need its own task.
            self._loop.call_soon(self.serve_buffered)

    def _check_idle_time(self) -> None:
        proven = self.slot is None or self.slot.proven
        idle_until = self._loop.time() if self._busy else self._idle_since
        idle_until += (
            self._limits.idle_s if proven else min(self._limits.head_s, self._limits.idle_s)
        )
        if idle_until <= self._loop.time():
            self.close()
        else:
            self._timer = self._loop.call_at(idle_until, self._check_idle_time)


class _AcceptedTransport(AsyncioTransport):
    """A transport that is served as soon as it is connected."""

    def __init__(self, begin: Callable[[AsyncioTransport], None]) -> None:
        super().__init__()
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        set_socket_options(transport.get_extra_info("socket"))
        self._begin(self)

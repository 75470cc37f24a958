"""The HTTP side of whatever listens: connections, heads, limits, answers.

A server has one handler: request in, reply out. It knows nothing of calls; workers, relays and
callers that wait for posted results are handlers.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from melisma.axon.codec.message import Buffer, Message, buffers_bytes
from melisma.axon.codec.outcome import JSON_TYPE, Outcome, error_outcome
from melisma.axon.server.limits import Limits
from melisma.axon.transport import eager
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import Request, parse_request, response_head
from melisma.axon.transport.interface import tune
from melisma.axon.transport.wire import discard, read_bytes, read_message
from melisma.errors import (
    AxonError,
    MalformedError,
    SettingError,
    TooLargeError,
    TooSlowError,
)

_log = logging.getLogger("melisma.axon")
_DRAIN_BYTES: Final = 1 << 20
"""What is read and thrown away of a refused request, so that its sender hears why."""


class Exchange(msgspec.Struct):
    """One request on its connection; the handler reads the body, or leaves it."""

    request: Request
    transport: AsyncioTransport
    limits: Limits
    unread_bytes: int = 0
    on_delivered: Callable[[], None] | None = None
    """Called when the caller has shown that the reply arrived: by its next request."""

    @property
    def peer_host(self) -> str | None:
        """The host that the request came from; None through a relay."""
        if self.transport.relayed:
            return None
        host: str = self.transport.transport.get_extra_info("peername")[0]
        return host

    async def read_message(self) -> Message:
        """Receive the body as a message."""
        size = await self._begin_body()
        return await read_message(self.transport, size, self.limits.max_tree_bytes)

    async def read_bytes(self) -> bytearray:
        """Receive the body as it is."""
        return await read_bytes(self.transport, await self._begin_body())

    async def discard_body(self) -> bool:
        """Read past what is left of the body; False where closing is the better way."""
        if self.unread_bytes > _DRAIN_BYTES or "expect" in self.request.headers:
            return self.unread_bytes == 0
        await discard(self.transport, self.unread_bytes)
        self.unread_bytes = 0
        return True

    async def _begin_body(self) -> int:
        size, self.unread_bytes = self.unread_bytes, 0
        if size > self.limits.max_body_bytes:
            self.unread_bytes = size
            raise TooLargeError(
                f"a request of {size} bytes; the limit here is {self.limits.max_body_bytes} "
                "(max_body_bytes)"
            )
        if self.transport.buffered_bytes >= size:
            return size
        self.transport.set_min_rate(self.limits.min_rate)
        if self.request.headers.get("expect", "").lower() == "100-continue":
            await self.transport.write([response_head(100, {})])
        return size


class Reply(msgspec.Struct):
    """What is answered: buffers, or a stream of them, or a connection that changes its use."""

    status: int
    content_type: str = JSON_TYPE
    buffers: Sequence[Buffer] = ()
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[Sequence[Buffer]] | None = None
    takeover: Callable[[AsyncioTransport], Awaitable[None]] | None = None
    deadline_at: float | None = None
    """When a stream has to be over."""

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> "Reply":
        """The reply that carries an outcome."""
        return cls(outcome.status, outcome.content_type, outcome.buffers)


Handler = Callable[[Exchange], Awaitable[Reply]]
AfterExchange = tuple[bool, Callable[[], None] | None]
"""Whether another request may follow on a connection, and what to call when it does."""


class HttpServer:
    """Listens, and gives each request to its handler."""

    def __init__(self, handler: Handler, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._limits = limits
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def listen(self, host: str, port: int) -> int:
        """Start to listen; the port, chosen by the system where ``port`` is 0."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _AcceptedTransport(self), host, port, ssl=self._tls, backlog=1024
            )
        except OSError as error:
            # The loop's own words say the address once more.
            _, _, why = (error.strerror or str(error)).rpartition(": ")
            raise SettingError(f"cannot listen on {host}:{port}: {why}") from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def serve(self, transport: AsyncioTransport) -> None:
        """Serve requests on a connection, accepted or dialled."""
        connection = _Connection(transport, self._exchange, self._limits.idle_s)
        self._connections.add(connection)
        connection.on_close = lambda: self._connections.discard(connection)
        transport.on_data = connection.serve_buffered
        connection.serve_buffered()

    def stop_listening(self) -> None:
        """Take no further connections."""
        if self._server is not None:
            self._server.close()

    async def drain(self, timeout_s: float) -> None:
        """Take no further connections, and let those that are busy answer, for a while."""
        self.stop_listening()
        tasks = [c.task for c in self._connections if c.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """Stop to listen and close every connection."""
        self.stop_listening()
        tasks = [c.task for c in self._connections if c.task is not None]
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _exchange(self, transport: AsyncioTransport) -> AfterExchange:
        """Serve one request."""
        exchange: Exchange | None = None
        try:
            transport.set_min_rate(None)
            transport.deadline_at = time.monotonic() + self._limits.head_s
            request = parse_request(await transport.read_head())
            exchange = Exchange(request, transport, self._limits, request.body_bytes)
            reply = await self._handler(exchange)
        except TimeoutError:
            slow = (
                f"the request came too slowly (at least {self._limits.min_bytes_per_s:g} bytes/s)"
            )
            reply, exchange = Reply.from_outcome(error_outcome(TooSlowError(slow))), None
        except ConnectionError:
            cut = "the connection was cut before the request was whole"
            reply, exchange = Reply.from_outcome(error_outcome(MalformedError(cut))), None
        except AxonError as error:
            reply = Reply.from_outcome(error_outcome(error))
            # After a body that was read in part, the next request's start is not known.
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
        if exchange is not None and exchange.unread_bytes:
            keep = await exchange.discard_body() and keep
        headers = {"content-type": reply.content_type, **reply.headers}
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
        return keep

    async def _answer_stream(
        self, transport: AsyncioTransport, stream: AsyncIterator[Sequence[Buffer]], head: bytes
    ) -> None:
        """Send a stream; its reader may take its time, up to the call's own deadline."""
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
    """One connection that serves: idle, or busy with one request."""

    on_close: Callable[[], None]

    def __init__(
        self,
        transport: AsyncioTransport,
        exchange: Callable[[AsyncioTransport], Coroutine[Any, Any, AfterExchange]],
        idle_s: float,
    ) -> None:
        self._transport = transport
        self._exchange = exchange
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._closed = False
        self._delivered: Callable[[], None] | None = None
        self._idle_since = self._loop.time()
        self._timer = self._loop.call_later(idle_s, self._look_at_time)
        self.task: asyncio.Task[None] | None = None

    def serve_buffered(self) -> None:
        """Serve what has come, as far as that goes without waiting."""
        while self._transport.buffered_bytes and not self._busy and not self._closed:
            self._busy = True
            if self._delivered is not None:
                self._delivered()
                self._delivered = None
            self.task = eager.start(self._serve(), self._ready)
        if self._busy:
            if self._transport.ended and self._transport.on_peer_closed is not None:
                self._transport.on_peer_closed()
            return
        if self._transport.ended:
            self.close()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection, whatever it does."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        if self.task is not None:
            self.task.cancel()
        self._transport.close()
        self.on_close()

    async def _serve(self) -> bool:
        try:
            keep, self._delivered = await self._exchange(self._transport)
        except (TimeoutError, OSError, asyncio.CancelledError):
            return False
        except Exception:  # noqa: BLE001 - one connection must not end the others
            _log.exception("a connection failed")
            return False
        return keep

    def _ready(self, keep: bool) -> None:
        """A request was served."""
        resumed, self.task = self.task is not None, None
        self._busy = False
        self._idle_since = self._loop.time()
        if not keep:
            self.close()
        elif resumed:
            # Not from inside the task that ends here: the next request may need one of its own.
            self._loop.call_soon(self.serve_buffered)

    def _look_at_time(self) -> None:
        idle_until = self._loop.time() if self._busy else self._idle_since
        idle_until += self._idle_s
        if idle_until <= self._loop.time():
            self.close()
        else:
            self._timer = self._loop.call_at(idle_until, self._look_at_time)


class _AcceptedTransport(AsyncioTransport):
    """A connection that serves as soon as it is made."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__()
        self._owner = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        tune(transport.get_extra_info("socket"))
        self._owner.serve(self)

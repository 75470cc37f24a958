"""An HTTP server: its connections, and the exchange of requests and replies on them.

The server passes each request to one handler, which returns the reply. Workers, relays and callers
that listen for results provide the handlers.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from email.utils import formatdate

from melisma.axon.codec.message import Buffer, buffers_bytes
from melisma.axon.codec.outcome import error_outcome
from melisma.axon.server.authentication import OnRefused
from melisma.axon.server.exchange import Exchange, Handler, Reply
from melisma.axon.server.limits import Limits
from melisma.axon.server.listener import Listener, Slot, Slots
from melisma.axon.server.receive_budget import ReceiveBudget
from melisma.axon.server.server_connection import AcceptedTransport, AfterExchange, ServerConnection
from melisma.axon.transport import eager
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import parse_request, response_head
from melisma.axon.transport.interface import JOIN_BYTES
from melisma.errors import AxonError, MalformedError, SettingError, TooSlowError


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
        self._connections: set[ServerConnection] = set()

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
        self._add(ServerConnection(self._exchange, self._limits)).begin(transport)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.close()

    def _accept(self, sock: socket.socket, network: bytes) -> None:
        """Serve requests on an accepted socket, after the TLS handshake if there is one."""
        connection = self._add(ServerConnection(self._exchange, self._limits, self._slots))
        connection.slot = Slot(network, connection)
        self._slots.add(connection.slot)
        protocol = AcceptedTransport(connection.begin)
        connection.open(sock, protocol, self.tls, self._on_refused)

    def _add(self, connection: ServerConnection) -> ServerConnection:
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

    async def _exchange(self, connection: ServerConnection) -> AfterExchange:
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

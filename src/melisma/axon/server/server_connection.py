"""A connection of the server, from its TLS handshake to its last request."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from melisma.axon.server.authentication import OnRefused
from melisma.axon.server.limits import Limits
from melisma.axon.server.listener import Slot, Slots, open_transport
from melisma.axon.transport import eager
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.interface import set_socket_options
from melisma.axon.transport.tls import describe_failed_handshake

_log = logging.getLogger("melisma.axon")

AfterExchange = tuple[bool, Callable[[], None] | None]
"""Whether to keep the connection, and the callback for its next request."""


class ServerConnection:
    """A connection of the server: opening, idle or serving one request."""

    on_close: Callable[[], None]
    transport: AsyncioTransport

    def __init__(
        self,
        exchange: "Callable[[ServerConnection], Coroutine[Any, Any, AfterExchange]]",
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


class AcceptedTransport(AsyncioTransport):
    """A transport that is served as soon as it is connected."""

    def __init__(self, begin: Callable[[AsyncioTransport], None]) -> None:
        super().__init__()
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        set_socket_options(transport.get_extra_info("socket"))
        self._begin(self)

"""Connections to one address, opened and reused, over blocking sockets or asyncio."""

import asyncio
import concurrent.futures
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from melisma.axon.address import Address
from melisma.axon.codec.outcome import error_from_json
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import parse_response, request_head
from melisma.axon.transport.interface import Transport, close_on_error, set_socket_options
from melisma.axon.transport.socket_transport import SocketTransport
from melisma.axon.transport.tls import check_fingerprint, client_context
from melisma.axon.transport.wire import read_bytes
from melisma.backports import timeout
from melisma.errors import UnauthorizedError

CONNECT_S = 10.0
"""Timeout for opening a connection, in seconds."""


class ConnectionPool(Protocol):
    """Connections to one address, and ways to wait in the same execution model."""

    async def open(self, deadline_at: float | None) -> Transport:
        """Open a connection, ready for HTTP."""

    def take_idle(self) -> Transport | None:
        """Return an idle connection, or None."""

    def release(self, transport: Transport) -> None:
        """Keep a connection for the next request."""

    def close(self) -> None:
        """Close the idle connections."""

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""

    async def wait(self, future: "concurrent.futures.Future[Any]", timeout_s: float) -> bool:
        """Wait for a future up to ``timeout_s``; return whether it is done."""


class _IdleConnections:
    """Idle connections for the next requests; a forked child does not use those of its parent."""

    def __init__(self, address: Address, certificate: Path | None = None) -> None:
        self._address = address
        self._certificate = certificate
        self._idle: list[Transport] = []
        self._process = os.getpid()

    @cached_property
    def _context(self) -> ssl.SSLContext:
        pinned = self._address.fingerprint
        if self._certificate is None:
            return _shared_context(pinned)
        return client_context(pinned, self._certificate)

    def take_idle(self) -> Transport | None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._idle.clear()
        while self._idle:
            try:
                transport = self._idle.pop()
            except IndexError:  # Another thread took the last one.
                break
            if not transport.ended:
                return transport
            transport.close()
        return None

    def release(self, transport: Transport) -> None:
        self._idle.append(transport)

    def close(self) -> None:
        _close_all(self._idle)


class SocketPool(_IdleConnections):
    """Connections over blocking sockets."""

    def __init__(self, address: Address, certificate: Path | None = None) -> None:
        super().__init__(address, certificate)
        # Sockets are also closed if the user forgets to close the worker.
        weakref.finalize(self, _close_all, self._idle)

    async def open(self, deadline_at: float | None) -> Transport:
        address, limit_s = self._address, _connect_s(deadline_at)
        limit_at = time.monotonic() + limit_s
        sock = socket.create_connection((address.host, address.port), limit_s)
        set_socket_options(sock)
        transport = SocketTransport(sock)
        transport.deadline_at = limit_at
        with close_on_error(transport):
            if address.tls:
                _start_socket_tls(transport, address, self._context)
            if address.via:
                await _enter_tunnel(transport, address)
                if address.fingerprint and not address.tls:
                    _start_socket_tls(transport, address, self._context)
        return transport

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this pool blocks by design

    async def wait(self, future: "concurrent.futures.Future[Any]", timeout_s: float) -> bool:
        return bool(concurrent.futures.wait([future], timeout_s).done)


class AsyncioPool(_IdleConnections):
    """Connections of one event loop."""

    async def close_with_loop(self) -> None:
        """Close idle connections when the pool is collected or the running loop shuts down."""
        loop = asyncio.get_running_loop()
        finalizer = weakref.finalize(self, _close_soon, loop, self._idle)
        self._guard = _close_with_generator(self._idle, finalizer)
        await anext(self._guard)

    async def open(self, deadline_at: float | None) -> Transport:
        address, limit_s = self._address, _connect_s(deadline_at)
        loop = asyncio.get_running_loop()
        async with timeout(limit_s):
            transport = await self._connect(loop)
            transport.deadline_at = time.monotonic() + limit_s
            with close_on_error(transport):
                pinned = address.fingerprint if address.tls else None
                certificate = transport.peer_certificate()
                check_fingerprint(pinned, certificate, str(address.without_token()))
                if address.via:
                    await _enter_tunnel(transport, address)
                    if address.fingerprint and not address.tls:
                        await self._tunnel_tls(transport)
        return transport

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, future: "concurrent.futures.Future[Any]", timeout_s: float) -> bool:
        wrapped = asyncio.wrap_future(future)
        await asyncio.wait([wrapped], timeout=timeout_s)
        return future.done()

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> AsyncioTransport:
        address = self._address
        context = self._context if address.tls else None
        try:
            _, transport = await loop.create_connection(
                AsyncioTransport, address.host, address.port, ssl=context
            )
        except ssl.SSLCertVerificationError as error:
            raise _certificate_error(address, error) from error
        set_socket_options(transport.transport.get_extra_info("socket"))
        return transport

    async def _tunnel_tls(self, transport: AsyncioTransport) -> None:
        await transport.start_tls(self._context, host=self._address.host)
        certificate = transport.peer_certificate()
        check_fingerprint(
            self._address.fingerprint, certificate, str(self._address.without_token())
        )


def _start_socket_tls(
    transport: SocketTransport, address: Address, context: ssl.SSLContext
) -> None:
    try:
        transport.start_tls(context, address.host)
    except ssl.SSLCertVerificationError as error:
        raise _certificate_error(address, error) from error
    certificate = transport.peer_certificate()
    check_fingerprint(address.fingerprint, certificate, str(address.without_token()))


async def _enter_tunnel(transport: Transport, address: Address) -> None:
    """Ask the relay for a connection to the worker; further bytes go to the worker."""
    headers = {"host": address.host, "upgrade": "axon", "connection": "upgrade"}
    await transport.write([request_head("GET", f"/via/{address.via}", headers)])
    response = parse_response(await transport.read_head())
    if response.status != 101:
        body = await read_bytes(transport, response.body_bytes)
        raise error_from_json(response.status, body)


async def _close_with_generator(
    transports: list[Transport], finalizer: "weakref.finalize[..., AsyncioPool]"
) -> AsyncGenerator[None, None]:
    # A loop closes its asynchronous generators on shutdown; it offers no other hook.
    try:
        yield
    finally:
        finalizer.detach()
        _close_all(transports)


def _close_soon(loop: asyncio.AbstractEventLoop, transports: list[Transport]) -> None:
    if transports and not loop.is_closed():
        loop.call_soon_threadsafe(_close_all, transports)


def _close_all(transports: list[Transport]) -> None:
    while transports:
        transports.pop().close()


def _connect_s(deadline_at: float | None) -> float:
    if deadline_at is None:
        return CONNECT_S
    left_s = deadline_at - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return min(left_s, CONNECT_S)


@lru_cache
def _shared_context(pinned: str | None) -> ssl.SSLContext:
    return client_context(pinned)


def _certificate_error(address: Address, error: ssl.SSLCertVerificationError) -> UnauthorizedError:
    return UnauthorizedError(
        f"the certificate of {address.without_token()} is not trusted "
        f"({error.verify_message}): use the address with its #sha256: fingerprint"
    )


class _BackgroundLoop:
    """An event loop in a background thread, for calls made without a running loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(
                    target=self._loop.run_forever, name="axon-background", daemon=True
                ).start()
            return self._loop


background = _BackgroundLoop()

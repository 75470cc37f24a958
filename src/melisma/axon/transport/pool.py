"""How a caller opens connections, keeps them, and waits: in its own thread, or on a loop."""

import asyncio
import concurrent.futures
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator
from functools import lru_cache
from typing import Any, Protocol

from melisma.axon.address import Address
from melisma.axon.codec.outcome import error_from_json
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import parse_response, request_head
from melisma.axon.transport.interface import Transport, close_on_error, tune
from melisma.axon.transport.socket_transport import SocketTransport
from melisma.axon.transport.tls import check_fingerprint, client_context
from melisma.axon.transport.wire import read_bytes
from melisma.errors import UnauthorizedError

CONNECT_S = 10.0
"""Seconds that a connection may take to be made."""


class ConnectionPool(Protocol):
    """Connections to one address, and the caller's way to wait."""

    async def open(self, deadline_at: float | None) -> Transport:
        """A new connection, ready for HTTP."""

    def take_idle(self) -> Transport | None:
        """A kept connection, if there is one."""

    def release(self, transport: Transport) -> None:
        """Keep a connection for the next call."""

    def close(self) -> None:
        """Close what is kept."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def wait(self, future: "concurrent.futures.Future[Any]", timeout_s: float) -> bool:
        """Wait for a future; whether it is done."""


class _IdleConnections:
    """Connections kept for the next call; a forked child does not touch its parent's."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Transport] = []
        self._process = os.getpid()

    def take_idle(self) -> Transport | None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._idle.clear()
        while self._idle:
            try:
                transport = self._idle.pop()
            except IndexError:  # Another thread was sooner.
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
    """Blocking sockets: for callers without an event loop."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        # Whoever forgets to close a worker leaves no open sockets behind.
        weakref.finalize(self, _close_all, self._idle)

    async def open(self, deadline_at: float | None) -> Transport:
        address, limit_s = self._address, _connect_s(deadline_at)
        limit_at = time.monotonic() + limit_s
        sock = socket.create_connection((address.host, address.port), limit_s)
        tune(sock)
        transport = SocketTransport(sock)
        transport.deadline_at = limit_at
        with close_on_error(transport):
            if address.tls:
                _start_socket_tls(transport, address)
            if address.via:
                await _enter_tunnel(transport, address)
                if address.fingerprint and not address.tls:
                    _start_socket_tls(transport, address)
        return transport

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this network blocks, that is its point

    async def wait(self, future: "concurrent.futures.Future[Any]", timeout_s: float) -> bool:
        return bool(concurrent.futures.wait([future], timeout_s).done)


class AsyncioPool(_IdleConnections):
    """Transports of the running event loop."""

    async def close_with_loop(self) -> None:
        """Close what is kept when this is forgotten or the running loop shuts down."""
        loop = asyncio.get_running_loop()
        finalizer = weakref.finalize(self, _close_soon, loop, self._idle)
        self._guard = _close_with_generator(self._idle, finalizer)
        await anext(self._guard)

    async def open(self, deadline_at: float | None) -> Transport:
        address, limit_s = self._address, _connect_s(deadline_at)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(limit_s):
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
        context = _context(address.fingerprint) if address.tls else None
        try:
            _, transport = await loop.create_connection(
                AsyncioTransport, address.host, address.port, ssl=context
            )
        except ssl.SSLCertVerificationError as error:
            raise _untrusted_error(address, error) from error
        tune(transport.transport.get_extra_info("socket"))
        return transport

    async def _tunnel_tls(self, transport: AsyncioTransport) -> None:
        await transport.start_tls(_context(self._address.fingerprint), host=self._address.host)
        certificate = transport.peer_certificate()
        check_fingerprint(
            self._address.fingerprint, certificate, str(self._address.without_token())
        )


def _start_socket_tls(transport: SocketTransport, address: Address) -> None:
    try:
        transport.start_tls(_context(address.fingerprint), address.host)
    except ssl.SSLCertVerificationError as error:
        raise _untrusted_error(address, error) from error
    certificate = transport.peer_certificate()
    check_fingerprint(address.fingerprint, certificate, str(address.without_token()))


async def _enter_tunnel(transport: Transport, address: Address) -> None:
    """Ask the relay for a connection to the worker; from then on its bytes pass through."""
    headers = {"host": address.host, "upgrade": "axon", "connection": "upgrade"}
    await transport.write([request_head("GET", f"/via/{address.via}", headers)])
    response = parse_response(await transport.read_head())
    if response.status != 101:
        body = await read_bytes(transport, response.body_bytes)
        raise error_from_json(response.status, body)


async def _close_with_generator(
    transports: list[Transport], finalizer: "weakref.finalize[..., AsyncioPool]"
) -> AsyncGenerator[None, None]:
    # A loop closes its asynchronous generators before it ends: the one hook that it offers.
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
def _context(pinned: str | None) -> ssl.SSLContext:
    return client_context(pinned)


def _untrusted_error(address: Address, error: ssl.SSLCertVerificationError) -> UnauthorizedError:
    return UnauthorizedError(
        f"the certificate of {address.without_token()} is not trusted here "
        f"({error.verify_message}): use the address with its #sha256: fingerprint"
    )


class _BackgroundLoop:
    """The event loop of this process for calls that nobody awaits on a loop of their own."""

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

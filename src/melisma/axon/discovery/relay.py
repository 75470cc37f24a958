"""A relay forwards calls to workers that cannot accept connections, such as those behind NAT.

1. The worker opens a few connections to the relay with ``GET /dial/NAME``. The relay acknowledges
   each with 100 and parks it.
2. A caller connects with ``GET /via/NAME``. The relay answers 101 to the caller and on one of the
   parked connections.
3. The worker sends one line feed when it is ready for the bytes of the caller.
4. The relay then forwards bytes in both directions without parsing them, so that arrays are
   streamed and TLS can run from caller to worker.

The header ``axon-claim`` of ``/dial`` holds a random secret: the first worker that uses a name
keeps it, and other workers are refused until its last connection is closed.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from melisma.axon.address import Address
from melisma.axon.codec.outcome import error_from_json
from melisma.axon.server.exchange import Exchange, Reply
from melisma.axon.server.http_server import HttpServer
from melisma.axon.server.limits import Limits
from melisma.axon.server.service import Service
from melisma.axon.server.tokens import TokenChecker
from melisma.axon.transport import tls as axon_tls
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.eager import ensure_task
from melisma.axon.transport.http import parse_response, request_head, response_head
from melisma.axon.transport.interface import close_on_error
from melisma.axon.transport.pool import AsyncioPool
from melisma.axon.transport.wire import read_bytes
from melisma.backports import timeout
from melisma.errors import AxonError, RefusedError, SettingError, UnreachableError

RELAY_PORT: Final = 8001
PARKED_CONNECTIONS: Final = 2
"""Connections that a worker keeps parked, so that callers need not wait for a new one."""
PARKED_WAIT_S: Final = 5.0
"""Time that a caller waits for a parked connection, in seconds."""
HANDSHAKE_S: Final = 10.0
"""Time for the handshake with a caller, in seconds."""
_READY: Final = b"\n"
"""Sent by the worker once it can receive bytes of the caller; TLS must be listening."""
_log = logging.getLogger("melisma.axon")
_UPGRADE: Final = {"upgrade": "axon", "connection": "upgrade"}


@dataclass(eq=False)
class _ParkedConnection:
    """A connection of a worker that waits for a caller."""

    transport: AsyncioTransport
    taken: "asyncio.Future[None]"
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False


@dataclass
class _RelayedWorker:
    """A worker at the relay and its connections."""

    secret: str
    connections: int = 0
    parked: list[_ParkedConnection] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def park(self, parked: _ParkedConnection) -> None:
        """Add a parked connection and wake waiting callers."""
        self.parked.append(parked)
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(kw_only=True)
class Relay(Service):
    """A relay; workers need its ``token``, callers only the name of the worker."""

    host: str = "127.0.0.1"
    port: int = RELAY_PORT
    token: str | None = field(default=None, repr=False)
    tls: bool | str | Path = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self._tokens = TokenChecker(self.token)
        self._identity = axon_tls.identity_file(self.tls)
        self._workers: dict[str, _RelayedWorker] = {}

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on the running event loop inside an ``async with``; yield the address."""
        identity = self._identity
        context = axon_tls.server_context(identity) if identity else None
        server = HttpServer(self._handle, self.limits, context)
        port = await server.listen(self.host, self.port)
        fingerprint = axon_tls.identity_fingerprint(identity) if identity else None
        try:
            yield str(Address(self.host, port, bool(identity), fingerprint))
        finally:
            await server.close()

    async def _handle(self, exchange: Exchange) -> Reply:
        request = exchange.request
        kind, _, name = request.path.lstrip("/").partition("/")
        await ensure_task()
        if request.method == "GET" and kind == "via":
            reply = await self._via(name)
            exchange.accept()
            return reply
        if request.method == "GET" and kind == "dial":
            self._tokens.check(exchange.credentials)
            exchange.accept()
            return await self._dial(exchange, name, request.headers.get("axon-claim", ""))
        raise RefusedError(
            f"unknown endpoint {request.path}: a relay serves GET /via/NAME and /dial/NAME"
        )

    async def _dial(self, exchange: Exchange, name: str, claim: str) -> Reply:
        worker, transport = self._workers.get(name), exchange.transport
        if worker is None:
            worker = self._workers[name] = _RelayedWorker(claim)
        elif not secrets.compare_digest(worker.secret.encode(), claim.encode()):
            raise RefusedError(
                f"another worker is called {name!r} at this relay: pass another name="
            )
        worker.connections += 1
        parked = _ParkedConnection(transport, asyncio.get_running_loop().create_future())
        try:
            transport.deadline_at = None
            await transport.write([response_head(100, {})])
            worker.park(parked)
            await self._wait_until_taken(parked)
        except BaseException:
            self._remove(name, worker, parked)
            raise

        async def carry(_: AsyncioTransport) -> None:
            try:
                transport.deadline_at = time.monotonic() + self.limits.head_s
                await read_bytes(transport, len(_READY))
                parked.ready.set()
                await parked.done.wait()
            finally:
                self._remove(name, worker, parked)

        return Reply(101, headers=_UPGRADE, takeover=carry)

    async def _wait_until_taken(self, parked: _ParkedConnection) -> None:
        closed = asyncio.ensure_future(parked.transport.wait_readable())
        closed.add_done_callback(lambda _: parked.taken.cancel())
        await asyncio.wait([parked.taken])
        if parked.taken.cancelled():
            raise UnreachableError("the worker closed its connection to the relay")
        closed.cancel()

    async def _via(self, name: str) -> Reply:
        parked = await self._take(name)

        async def carry(caller: AsyncioTransport) -> None:
            try:
                await parked.ready.wait()
                if not parked.closed:
                    await _splice(caller, parked.transport)
            finally:
                parked.done.set()

        return Reply(101, headers=_UPGRADE, takeover=carry)

    async def _take(self, name: str) -> _ParkedConnection:
        try:
            async with timeout(PARKED_WAIT_S):
                while (worker := self._workers.get(name)) is not None:
                    for parked in worker.parked:
                        if not parked.taken.done():
                            parked.taken.set_result(None)
                            worker.parked.remove(parked)
                            return parked
                    await worker.changed.wait()
        except TimeoutError:
            pass
        raise RefusedError(
            f"no worker {name!r} is connected to this relay and free: check its name"
        )

    def _remove(self, name: str, worker: _RelayedWorker, parked: _ParkedConnection) -> None:
        """Remove a closed connection of a worker and wake its waiters."""
        parked.closed = True
        parked.ready.set()
        if parked in worker.parked:
            worker.parked.remove(parked)
        worker.connections -= 1
        if not worker.connections and self._workers.get(name) is worker:
            del self._workers[name]
            worker.changed.set()


async def _splice(first: AsyncioTransport, second: AsyncioTransport) -> None:
    """Forward bytes in both directions until either side closes."""
    pumps = [asyncio.create_task(_pump(first, second)), asyncio.create_task(_pump(second, first))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        first.close()
        second.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: AsyncioTransport, sink: AsyncioTransport) -> None:
    source.deadline_at = sink.deadline_at = None
    buffer = memoryview(bytearray(256 << 10))
    while count := await source.read_some(buffer):
        await sink.write([buffer[:count]])


@contextlib.asynccontextmanager
async def dial_relay(
    relay: str, name: str, server: HttpServer, identity: Path | None
) -> AsyncIterator[Address]:
    """Accept calls through a relay inside an ``async with``; yield the address to call."""
    relay_address = Address.parse(relay)
    if relay_address.tls and identity:
        raise SettingError(
            "a worker with TLS needs a relay without TLS: use http:// in relay=; TLS then runs "
            "from caller to worker, and the relay cannot decrypt it"
        )
    dialler = _Dialler(relay_address, name, server)
    try:
        await dialler.start()
    except OSError as error:
        raise UnreachableError(
            f"no relay answers at {relay_address.without_token()} ({error}): check relay="
        ) from error
    try:
        pinned = axon_tls.identity_fingerprint(identity) if identity else relay_address.fingerprint
        yield replace(relay_address.without_token(), via=name, fingerprint=pinned)
    finally:
        await dialler.close()


class _Dialler:
    """Keeps connections parked at a relay and serves callers on them."""

    def __init__(self, relay: Address, name: str, server: HttpServer) -> None:
        self._relay = relay
        self._name = name
        self._server = server
        self._claim = secrets.token_hex(16)
        self._tasks: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Park the first connection, which raises errors at once, then the others."""
        first = await self._park()
        self._tasks = [
            asyncio.create_task(self._keep_parked(first if number == 0 else None))
            for number in range(PARKED_CONNECTIONS)
        ]

    async def close(self) -> None:
        """Close all connections to the relay."""
        tasks = [*self._tasks, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_parked(self, parked: AsyncioTransport | None) -> None:
        pause_s = 0.1
        while True:
            try:
                transport, parked = parked or await self._park(), None
                await self._serve(transport)
                pause_s = 0.1
            except (OSError, AxonError):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 10.0)

    async def _park(self) -> AsyncioTransport:
        transport = await AsyncioPool(self._relay).open(None)
        assert isinstance(transport, AsyncioTransport)
        headers = {"host": self._relay.host, "axon-claim": self._claim, **_UPGRADE}
        if self._relay.token:
            headers["authorization"] = f"Bearer {self._relay.token}"
        with close_on_error(transport):
            await transport.write([request_head("GET", f"/dial/{self._name}", headers)])
            response = parse_response(await transport.read_head())
            if response.status != 100:
                body = await read_bytes(transport, response.body_bytes)
                raise error_from_json(response.status, body)
        transport.deadline_at = None
        return transport

    async def _serve(self, transport: AsyncioTransport) -> None:
        """Wait for a caller, then serve it in its own task."""
        with close_on_error(transport):
            response = parse_response(await transport.read_head())
            if response.status != 101:
                raise UnreachableError("the relay closed the connection")
        task = asyncio.ensure_future(self._handshake(transport))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, transport: AsyncioTransport) -> None:
        """Complete the handshake with a caller; a silent caller must not delay the others."""
        try:
            with close_on_error(transport):
                async with timeout(HANDSHAKE_S):
                    transport.transport.pause_reading()
                    await transport.write([_READY])
                    if self._server.tls is None:
                        transport.transport.resume_reading()
                    else:
                        await transport.start_tls(self._server.tls, server_side=True)
        except OSError as error:
            _log.info("the handshake with a caller through the relay failed: %r", error)
            return
        transport.relayed = True
        self._server.serve(transport)

"""The relay: workers that cannot be reached dial out to it and are called through it.

A worker keeps a few connections parked at the relay: ``GET /dial/NAME``, answered 101 when a
caller takes it, whereupon the worker says with one byte that it is ready. A caller asks for one
with ``GET /via/NAME``. From then on the relay passes bytes both ways and understands none of
them: arrays stream, and TLS runs from caller to worker.
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
from melisma.axon.server.http_server import Exchange, HttpServer, Reply
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
from melisma.errors import AxonError, RefusedError, SettingError, UnreachableError

RELAY_PORT: Final = 8001
PARKED_CONNECTIONS: Final = 2
"""Connections that a worker keeps parked: the next caller does not wait for a new one."""
REPLENISH_S: Final = 5.0
"""How long a caller waits for a connection of a worker that is there."""
HANDSHAKE_S: Final = 10.0
"""How long a caller through the relay may take to begin."""
_READY: Final = b"\n"
"""What a worker says before bytes of the caller may follow: TLS must be listening by then."""
_log = logging.getLogger("melisma.axon")
_UPGRADE: Final = {"upgrade": "axon", "connection": "upgrade"}


@dataclass(eq=False)
class _ParkedConnection:
    """A worker's connection that waits for a caller."""

    transport: AsyncioTransport
    taken: "asyncio.Future[None]"
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False


@dataclass
class _RelayedWorker:
    """A worker's name at the relay: who holds it, and its connections."""

    secret: str
    connections: int = 0
    parked: list[_ParkedConnection] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def park(self, parked: _ParkedConnection) -> None:
        """One more connection waits; so may callers."""
        self.parked.append(parked)
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(kw_only=True)
class Relay(Service):
    """Serves a relay; ``token`` is for workers that dial in, callers need only the name."""

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
        """Serve on the running event loop inside an ``async with``; gives the address."""
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
            return await self._via(name)
        if request.method == "GET" and kind == "dial":
            self._tokens.check(request.headers.get("authorization"))
            return await self._dial(exchange, name, request.headers.get("axon-claim", ""))
        raise RefusedError(f"a relay answers /via/NAME and /dial/NAME, not {request.path}")

    async def _dial(self, exchange: Exchange, name: str, claim: str) -> Reply:
        worker, transport = self._workers.get(name), exchange.transport
        if worker is None:
            worker = self._workers[name] = _RelayedWorker(claim)
        elif not secrets.compare_digest(worker.secret.encode(), claim.encode()):
            raise RefusedError(f"another worker is called {name!r} at this relay: pass name=")
        worker.connections += 1
        parked = _ParkedConnection(transport, asyncio.get_running_loop().create_future())
        try:
            transport.deadline_at = None
            await transport.write([response_head(100, {})])
            worker.park(parked)
            await self._wait_until_taken(parked)
        except BaseException:
            self._leave(name, worker, parked)
            raise

        async def carry(_: AsyncioTransport) -> None:
            try:
                transport.deadline_at = time.monotonic() + self.limits.head_s
                await read_bytes(transport, len(_READY))
                parked.ready.set()
                await parked.done.wait()
            finally:
                self._leave(name, worker, parked)

        return Reply(101, headers=_UPGRADE, takeover=carry)

    async def _wait_until_taken(self, parked: _ParkedConnection) -> None:
        gone = asyncio.ensure_future(parked.transport.wait_readable())
        gone.add_done_callback(lambda _: parked.taken.cancel())
        await asyncio.wait([parked.taken])
        if parked.taken.cancelled():
            raise UnreachableError("the worker left the relay")
        gone.cancel()

    async def _via(self, name: str) -> Reply:
        parked = await self._take(name)

        async def carry(caller: AsyncioTransport) -> None:
            try:
                await parked.ready.wait()
                if not parked.gone:
                    await _splice(caller, parked.transport)
            finally:
                parked.done.set()

        return Reply(101, headers=_UPGRADE, takeover=carry)

    async def _take(self, name: str) -> _ParkedConnection:
        try:
            async with asyncio.timeout(REPLENISH_S):
                while (worker := self._workers.get(name)) is not None:
                    for parked in worker.parked:
                        if not parked.taken.done():
                            parked.taken.set_result(None)
                            worker.parked.remove(parked)
                            return parked
                    await worker.changed.wait()
        except TimeoutError:
            pass
        raise RefusedError(f"no worker {name!r} is free to be called at this relay")

    def _leave(self, name: str, worker: _RelayedWorker, parked: _ParkedConnection) -> None:
        """A connection of a worker is over, whoever waits for it."""
        parked.gone = True
        parked.ready.set()
        if parked in worker.parked:
            worker.parked.remove(parked)
        worker.connections -= 1
        if not worker.connections and self._workers.get(name) is worker:
            del self._workers[name]
            worker.changed.set()


async def _splice(one: AsyncioTransport, other: AsyncioTransport) -> None:
    """Pass bytes both ways until either side closes."""
    pumps = [asyncio.create_task(_pump(one, other)), asyncio.create_task(_pump(other, one))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        one.close()
        other.close()
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
    """Be reachable through a relay while inside; gives the address of the worker there."""
    worker = Address.parse(relay)
    if worker.tls and identity:
        raise SettingError(
            "a worker with TLS is called through a relay without: TLS then runs from caller to "
            "worker, and the relay cannot read it"
        )
    dialler = _Dialler(worker, name, server, identity)
    try:
        await dialler.start()
    except OSError as error:
        raise UnreachableError(f"no relay answers at {worker.without_token()}: {error}") from error
    try:
        pinned = axon_tls.identity_fingerprint(identity) if identity else worker.fingerprint
        yield replace(worker.without_token(), via=name, fingerprint=pinned)
    finally:
        await dialler.close()


class _Dialler:
    """Keeps connections parked at a relay and serves those that are taken."""

    def __init__(
        self, relay: Address, name: str, server: HttpServer, identity: Path | None
    ) -> None:
        self._relay = relay
        self._name = name
        self._server = server
        self._context = axon_tls.server_context(identity) if identity else None
        self._claim = secrets.token_hex(16)
        self._tasks: list[asyncio.Task[None]] = []
        self._welcomes: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Park the first connection, so that a mistake is known at once, then the others."""
        first = await self._park()
        self._tasks = [
            asyncio.create_task(self._keep(first if number == 0 else None))
            for number in range(PARKED_CONNECTIONS)
        ]

    async def close(self) -> None:
        """Leave the relay."""
        tasks = [*self._tasks, *self._welcomes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, parked: AsyncioTransport | None) -> None:
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
        """Wait for a caller, then serve it beside the next one."""
        with close_on_error(transport):
            response = parse_response(await transport.read_head())
            if response.status != 101:
                raise UnreachableError("the relay ended the connection")
        task = asyncio.ensure_future(self._welcome(transport))
        self._welcomes.add(task)
        task.add_done_callback(self._welcomes.discard)

    async def _welcome(self, transport: AsyncioTransport) -> None:
        """Make ready for a caller; one that says nothing must not hold up the others."""
        try:
            with close_on_error(transport):
                async with asyncio.timeout(HANDSHAKE_S):
                    transport.transport.pause_reading()
                    await transport.write([_READY])
                    if self._context is None:
                        transport.transport.resume_reading()
                    else:
                        await transport.start_tls(self._context, server_side=True)
        except OSError as error:
            _log.info("a caller through the relay did not get through: %r", error)
            return
        transport.relayed = True
        self._server.serve(transport)

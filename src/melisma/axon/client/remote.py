"""Remote workers, whose attributes are their functions.

``worker.f(x)`` blocks, ``await worker.aio.f(x)`` awaits, ``worker.submit.f(x)`` returns a
`concurrent.futures.Future`. ``worker(deadline_s=2).f(x)`` sets options of the call.
"""

import asyncio
import concurrent.futures
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from melisma.axon.address import Address, check_call_id, host_and_port
from melisma.axon.call_record import TraceHook
from melisma.axon.client.callbacks import CallbackServer
from melisma.axon.client.caller import Caller, CallOptions
from melisma.axon.client.result_stream import AsyncResultIterator, ResultIterator, ResultStream
from melisma.axon.codec.records import record_types
from melisma.axon.transport import tls
from melisma.axon.transport.http_client import HttpClient
from melisma.axon.transport.interface import run_blocking
from melisma.axon.transport.pool import AsyncioPool, SocketPool, background
from melisma.errors import SettingError


@dataclass
class Connections:
    """A caller and its connection pools: one for blocking calls, one per event loop."""

    caller: Caller
    socket_pool: SocketPool
    certificate: Path | None = None
    asyncio_pools: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncioPool]" = field(
        default_factory=weakref.WeakKeyDictionary
    )

    async def asyncio_pool(self) -> AsyncioPool:
        """Return the pool of the running loop, which is closed when the loop shuts down."""
        loop = asyncio.get_running_loop()
        if (pool := self.asyncio_pools.get(loop)) is None:
            pool = self.asyncio_pools[loop] = AsyncioPool(
                self.caller.http.address, self.certificate
            )
            await pool.close_with_loop()
        return pool

    def close(self) -> None:
        """Close all idle connections."""
        self.socket_pool.close()
        for loop, pool in list(self.asyncio_pools.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(pool.close)
        if self.caller.callbacks is not None:
            self.caller.callbacks.close()


Call = Callable[[Connections, str, tuple[Any, ...], dict[str, Any], CallOptions], Any]


def _block(
    connections: Connections,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CallOptions,
) -> Any:
    result = run_blocking(
        connections.caller.call(connections.socket_pool, name, args, kwargs, options)
    )
    return ResultIterator(result) if isinstance(result, ResultStream) else result


class _AwaitableCall:
    """A call on the running loop: await the result, or iterate over a streamed one."""

    def __init__(self, call: Awaitable[Any]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, Any]:
        return self._call.__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        items = await self._call
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()


async def _await(
    connections: Connections,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CallOptions,
) -> Any:
    result = await connections.caller.call(
        await connections.asyncio_pool(), name, args, kwargs, options
    )
    return AsyncResultIterator(result) if isinstance(result, ResultStream) else result


def _aio(
    connections: Connections,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CallOptions,
) -> _AwaitableCall:
    return _AwaitableCall(_await(connections, name, args, kwargs, options))


def _submit(
    connections: Connections,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CallOptions,
) -> "concurrent.futures.Future[Any]":
    async def collect() -> Any:
        result = await _await(connections, name, args, kwargs, options)
        return (
            [item async for item in result] if isinstance(result, AsyncResultIterator) else result
        )

    return asyncio.run_coroutine_threadsafe(collect(), background.loop())


class RemoteFunction:
    """A function of a remote worker; its attributes are functions with dotted names."""

    def __init__(
        self, connections: Connections, name: str, call: Call, options: CallOptions
    ) -> None:
        self._parts = connections, name, call, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        connections, name, call, options = self._parts
        return call(connections, name, args, kwargs, options)

    def __getattr__(self, name: str) -> "RemoteFunction":
        if name.startswith("_"):
            raise AttributeError(name)
        connections, prefix, call, options = self._parts
        return RemoteFunction(connections, f"{prefix}.{name}", call, options)

    def __repr__(self) -> str:
        connections, name, _, _ = self._parts
        return f"<{name} at {connections.caller.http.address}>"


class Remote:
    """A remote worker, returned by `connect`. ``worker["name"]`` is the same as ``worker.name``."""

    def __init__(self, connections: Connections, options: CallOptions, call: Call = _block) -> None:
        self._connections = connections
        self._options = options
        self._call = call

    @property
    def aio(self) -> "Remote":
        """The same worker with awaitable calls; streamed results support ``async for``."""
        return Remote(self._connections, self._options, _aio)

    @property
    def submit(self) -> "Remote":
        """The same worker with calls that return futures; cancelling one cancels the call."""
        return Remote(self._connections, self._options, _submit)

    def __call__(self, **options: Any) -> "Remote":
        """Return the same worker with other `CallOptions`."""
        try:
            return Remote(self._connections, replace(self._options, **options), self._call)
        except TypeError:
            names = ", ".join(CallOptions.__dataclass_fields__)
            raise SettingError(
                f"{sorted(options)} contains unknown call options: use {names}"
            ) from None

    def __getitem__(self, name: str) -> RemoteFunction:
        return RemoteFunction(self._connections, name, self._call, self._options)

    def __getattr__(self, name: str) -> RemoteFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __dir__(self) -> list[str]:
        return ["aio", "submit", *(function["name"] for function in describe(self))]

    def __repr__(self) -> str:
        return f"<worker at {self._connections.caller.http.address}>"

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()


def connect(  # noqa: PLR0913 - options, by name
    address: str,
    *,
    token: str | None = None,
    certificate: str | Path | None = None,
    types: Iterable[type] = (),
    deadline_s: float | None = None,
    callbacks: str | None = None,
    trace: TraceHook | None = None,
) -> Remote:
    """Return the worker at an address; nothing is sent before the first call.

    ``certificate``: the file of an identity to present (`axon.create_identity`), which needs TLS.
    ``types``: dataclasses and structs that results may contain. ``deadline_s``: for each call.
    ``callbacks``: ``HOST:PORT`` on which this process listens for duplex results; without it they
    are fetched, which works behind NAT. ``trace``: a hook that receives each `CallRecord`.
    """
    parsed = Address.parse(address)
    server = None
    if callbacks is not None:
        host, port = host_and_port(callbacks)
        server = CallbackServer(host, port, tls.default_identity() if parsed.tls else None)
    http = HttpClient(parsed.without_token(), token or parsed.token)
    caller = Caller(http, record_types(types), trace, server)
    identity = _identity_to_present(parsed, certificate)
    connections = Connections(caller, SocketPool(http.address, identity), identity)
    return Remote(connections, CallOptions(deadline_s=deadline_s))


def _identity_to_present(address: Address, certificate: str | Path | None) -> Path | None:
    if certificate is None:
        return None
    if not (address.tls or address.fingerprint):
        raise SettingError(
            f"{address.without_token()} does not use TLS, so a certificate cannot be presented: "
            "use an https:// address, or remove certificate="
        )
    return Path(certificate)


def resume(
    worker: Remote, call_id: str, *, deadline_s: float | None = None
) -> "concurrent.futures.Future[Any]":
    """Return a future for the result of a duplex call made with ``worker(call_id=...)``."""
    check_call_id(call_id)
    connections = worker._connections

    async def fetch() -> Any:
        deadline_at = None if deadline_s is None else time.monotonic() + deadline_s
        return await connections.caller.result(
            await connections.asyncio_pool(), call_id, deadline_at
        )

    return asyncio.run_coroutine_threadsafe(fetch(), background.loop())


def describe(worker: Remote) -> list[dict[str, str]]:
    """Return name, signature, doc, kind, pattern and executor of each function of a worker."""
    connections = worker._connections
    deadline_at = time.monotonic() + 10.0
    try:
        answer = run_blocking(
            connections.caller.http.request(connections.socket_pool, "GET", "/", deadline_at)
        )
    except OSError as error:
        raise connections.caller.unreachable(error) from error
    if answer[0] != 200 or not isinstance(answer[1], bytearray):
        connections.caller.value(answer)
    profile: dict[str, list[dict[str, str]]] = msgspec.json.decode(answer[1])  # type: ignore[arg-type]
    return profile["functions"]

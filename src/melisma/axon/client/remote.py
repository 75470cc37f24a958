"""A worker as its callers see it: attributes are functions.

``worker.f(x)`` blocks, ``await worker.aio.f(x)`` awaits, ``worker.submit.f(x)`` gives a
`concurrent.futures.Future`. ``worker(deadline_s=2).f(x)`` says more about a call.
"""

import asyncio
import concurrent.futures
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from melisma.axon.address import Address, check_call_id, host_and_port
from melisma.axon.call_record import Trace
from melisma.axon.client.callbacks import ReturnServer
from melisma.axon.client.caller import Caller, Options
from melisma.axon.client.result_stream import AsyncItems, Items, ResultStream
from melisma.axon.codec.records import record_types
from melisma.axon.transport import tls
from melisma.axon.transport.http_client import Requests
from melisma.axon.transport.interface import run_blocking
from melisma.axon.transport.pool import BlockingNetwork, EventNetwork, background
from melisma.errors import SettingError


@dataclass
class Line:
    """A caller and its connections: one set for blocking calls, one for each event loop."""

    caller: Caller
    blocking: BlockingNetwork
    events: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, EventNetwork]" = field(
        default_factory=weakref.WeakKeyDictionary
    )

    async def network(self) -> EventNetwork:
        """The connections of the running loop, closed when the loop shuts down."""
        loop = asyncio.get_running_loop()
        if (network := self.events.get(loop)) is None:
            network = self.events[loop] = EventNetwork(self.caller.requests.address)
            await network.close_with_loop()
        return network

    def close(self) -> None:
        """Close every kept connection."""
        self.blocking.close()
        for loop, network in list(self.events.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(network.close)
        if self.caller.returns is not None:
            self.caller.returns.close()


Call = Callable[[Line, str, tuple[Any, ...], dict[str, Any], Options], Any]


def _block(
    line: Line, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Any:
    result = run_blocking(line.caller.call(line.blocking, name, args, kwargs, options))
    return Items(result) if isinstance(result, ResultStream) else result


class _Awaited:
    """A call on the running loop: await its result, or iterate over a streamed one."""

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
    line: Line, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Any:
    result = await line.caller.call(await line.network(), name, args, kwargs, options)
    return AsyncItems(result) if isinstance(result, ResultStream) else result


def _aio(
    line: Line, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> _Awaited:
    return _Awaited(_await(line, name, args, kwargs, options))


def _submit(
    line: Line, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> "concurrent.futures.Future[Any]":
    async def collect() -> Any:
        result = await _await(line, name, args, kwargs, options)
        return [item async for item in result] if isinstance(result, AsyncItems) else result

    return asyncio.run_coroutine_threadsafe(collect(), background.loop())


class RemoteFunction:
    """One function of a worker; its attributes are functions below its name."""

    def __init__(self, line: Line, name: str, call: Call, options: Options) -> None:
        self._parts = line, name, call, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        line, name, call, options = self._parts
        return call(line, name, args, kwargs, options)

    def __getattr__(self, name: str) -> "RemoteFunction":
        if name.startswith("_"):
            raise AttributeError(name)
        line, mine, call, options = self._parts
        return RemoteFunction(line, f"{mine}.{name}", call, options)

    def __repr__(self) -> str:
        line, name, _, _ = self._parts
        return f"<{name} at {line.caller.requests.address}>"


class Remote:
    """A worker somewhere else; made by `connect`. ``worker["name"]`` is ``worker.name``."""

    def __init__(self, line: Line, options: Options, call: Call = _block) -> None:
        self._line = line
        self._options = options
        self._call = call

    @property
    def aio(self) -> "Remote":
        """The same worker; calls are awaited, streamed results iterated with ``async for``."""
        return Remote(self._line, self._options, _aio)

    @property
    def submit(self) -> "Remote":
        """The same worker; calls give a future. Cancelling it cancels the call."""
        return Remote(self._line, self._options, _submit)

    def __call__(self, **options: Any) -> "Remote":
        """The same worker with other `Options` for the calls made through it."""
        try:
            return Remote(self._line, replace(self._options, **options), self._call)
        except TypeError:
            known = ", ".join(Options.__dataclass_fields__)
            raise SettingError(
                f"{sorted(options)} are not all options of a call: {known}"
            ) from None

    def __getitem__(self, name: str) -> RemoteFunction:
        return RemoteFunction(self._line, name, self._call, self._options)

    def __getattr__(self, name: str) -> RemoteFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __dir__(self) -> list[str]:
        return ["aio", "submit", *(function["name"] for function in describe(self))]

    def __repr__(self) -> str:
        return f"<worker at {self._line.caller.requests.address}>"

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()


def connect(
    address: str,
    *,
    token: str | None = None,
    types: Iterable[type] = (),
    deadline_s: float | None = None,
    returns: str | None = None,
    trace: Trace | None = None,
) -> Remote:
    """A worker by its address; nothing is sent before the first call.

    ``types``: dataclasses and structs that results may hold. ``deadline_s``: for each call.
    ``returns``: ``HOST:PORT`` where this process listens for duplex results; without it they are
    fetched, which works from behind NAT. ``trace`` sees each call.
    """
    place = Address.parse(address)
    server = None
    if returns is not None:
        host, port = host_and_port(returns)
        server = ReturnServer(host, port, tls.default_identity() if place.tls else None)
    requests = Requests(place.without_token(), token or place.token)
    caller = Caller(requests, record_types(types), trace, server)
    line = Line(caller, BlockingNetwork(requests.address))
    return Remote(line, Options(deadline_s=deadline_s))


def resume(
    worker: Remote, call_id: str, *, deadline_s: float | None = None
) -> "concurrent.futures.Future[Any]":
    """The result of a duplex call that was begun with ``worker(call_id=...)``, maybe long ago."""
    check_call_id(call_id)
    line = worker._line

    async def fetch() -> Any:
        deadline_at = None if deadline_s is None else time.monotonic() + deadline_s
        return await line.caller.result(await line.network(), call_id, deadline_at)

    return asyncio.run_coroutine_threadsafe(fetch(), background.loop())


def describe(worker: Remote) -> list[dict[str, str]]:
    """The functions of a worker: name, signature, doc, kind, pattern, executor."""
    line = worker._line
    deadline_at = time.monotonic() + 10.0
    try:
        answer = run_blocking(line.caller.requests.ask(line.blocking, "GET", "/", deadline_at))
    except OSError as error:
        raise line.caller.unreachable(error) from error
    if answer[0] != 200 or not isinstance(answer[1], bytearray):
        line.caller.value(answer)
    profile: dict[str, list[dict[str, str]]] = msgspec.json.decode(answer[1])  # type: ignore[arg-type]
    return profile["functions"]

"""The worker: serves functions over HTTP.

::

    @axon.worker.rpc()
    def simple_hello(name):
        return f"Hello {name}!!"

    axon.worker.init()

Endpoints: ``POST /rpc/NAME`` calls, ``GET /calls/ID`` waits for a duplex result, ``DELETE
/calls/ID`` cancels a call or says that its result arrived, ``GET /files/NAME`` gives a file or a
part of it, ``GET /`` lists the functions, ``GET /metrics`` the counters.
"""

import contextlib
import logging
import multiprocessing
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from melisma.axon.address import DEFAULT_PORT, Address, check_name
from melisma.axon.call_record import TraceHook
from melisma.axon.discovery.board import BOARD_PORT, NoticeBoard
from melisma.axon.discovery.registration import Registration
from melisma.axon.server.call_metrics import CallMetrics
from melisma.axon.server.calls import Calls
from melisma.axon.server.file_server import FileLookup, serve_file
from melisma.axon.server.functions import POOL_PROCESS, F, Functions
from melisma.axon.server.http_server import Exchange, HttpServer, Reply
from melisma.axon.server.limits import Limits
from melisma.axon.server.service import Service
from melisma.axon.server.tokens import TokenChecker
from melisma.axon.transport import tls as axon_tls
from melisma.errors import RefusedError, SettingError

_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - to be named, not to be bound
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_log = logging.getLogger("melisma.axon")


@dataclass(kw_only=True)
class Worker(Service):
    """Serves functions at an address.

    ``token``: callers must show it (or one issued from it). ``tls``: True, or the file where
    certificate and key are kept. ``trace`` sees each call. ``announce``: be found by `discover`.
    ``board`` and ``relay``: addresses of a notice board to sign in at and of a relay to be called
    through; ``name`` is what the worker is called there. ``advertise``: the host name by which
    callers reach it. ``files`` says which path a name stands for, for `fetch`.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    name: str = field(default_factory=lambda: re.sub(r"[^\w.-]", "-", socket.gethostname()))
    token: str | None = field(default=None, repr=False)
    tls: bool | str | Path = False
    limits: Limits = field(default_factory=Limits)
    trace: TraceHook | None = None
    announce: bool = False
    board: str | None = field(default=None, repr=False)
    relay: str | None = field(default=None, repr=False)
    advertise: str | None = None
    functions: Functions = field(default_factory=Functions)
    files: FileLookup | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        self.metrics = CallMetrics(self.trace)
        self._tokens = TokenChecker(self.token, self.limits.remember_s)
        self._identity = axon_tls.identity_file(self.tls)
        self._calls: Calls

    def rpc(
        self, comms_pattern: str = "simplex", *, executor: str = "thread", name: str | None = None
    ) -> Callable[[F], F]:
        """Decorate a function to expose it; see `Functions.rpc`."""
        return self.functions.rpc(comms_pattern, executor=executor, name=name)

    def expose(self, subject: object, methods: Iterable[str], *, name: str | None = None) -> None:
        """Expose the named methods of an object."""
        self.functions.expose(subject, methods, name=name)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on the running event loop inside an ``async with``; gives the address."""
        identity = self._identity
        if self.host not in _LOOPBACK and self.token is None:
            _log.warning("whoever reaches %s may call this worker: pass token=", self.host)
        context = axon_tls.server_context(identity) if identity else None
        fingerprint = axon_tls.identity_fingerprint(identity) if identity else None
        self._calls = Calls(self.functions, self.limits, self.metrics)
        server = HttpServer(self._handle, self.limits, context)
        port = await server.listen(self.host, self.port)
        host = socket.gethostname() if self.host in _EVERYWHERE else self.host
        address = Address(self.advertise or host, port, bool(identity), fingerprint)
        registration = Registration(self.name, self.announce, self.board, self.relay)
        try:
            async with registration.register(
                address, self.functions, server, identity
            ) as public_address:
                _log.info(
                    "serving %s at %s", ", ".join(f.name for f in self.functions), public_address
                )
                yield str(public_address)
            server.stop_listening()
            await self._calls.drain()
            await server.drain(self.limits.shutdown_s)
        finally:
            await server.close()
            self._calls.close()

    async def _handle(self, exchange: Exchange) -> Reply:
        request = exchange.request
        kind, _, rest = request.path[1:].partition("/")
        runs = kind == "rpc"
        call_id = request.headers.get("axon-call-id", "") if runs else rest
        caller = self._tokens.check(request.headers.get("authorization"), call_id, runs=runs)
        if runs and request.method == "POST":
            return await self._calls.call(exchange, rest, caller)
        match request.method, kind, rest:
            case "GET", "calls", _:
                return await self._calls.wait_for_result(rest, request.query, caller)
            case "DELETE", "calls", _:
                return self._calls.cancel_or_discard(rest, caller)
            case "GET", "files", _:
                return serve_file(self.files, rest, request)
            case "GET", "", "":
                return Reply(200, buffers=[msgspec.json.encode(self._profile())])
            case "GET", "metrics", "":
                text = self.metrics.prometheus_text().encode()
                return Reply(200, "text/plain; version=0.0.4", [text])
        raise RefusedError(f"nothing answers {request.method} {request.path} here")

    def _profile(self) -> dict[str, Any]:
        return {"axon": 1, "functions": [exposed.describe() for exposed in self.functions]}


def board_worker(*, port: int = BOARD_PORT, **settings: Any) -> Worker:
    """A worker that serves a notice board; the settings are those of `Worker`."""
    if "board" in settings:
        raise SettingError("a notice board does not sign in at another")
    worker = Worker(port=port, **settings)
    worker.expose(NoticeBoard(), ["sign_in", "sign_out", "workers"], name="")
    return worker


_functions = Functions()
rpc = _functions.rpc
expose = _functions.expose


def init(*, on_started: Callable[[str], None] | None = None, **settings: Any) -> None:
    """Serve what was decorated with `rpc`, on port 8000 of this machine, until interrupted.

    Takes the settings of `Worker`; ``on_started`` is called with the address (try ``print``).
    """
    if multiprocessing.current_process().name == POOL_PROCESS:
        return  # It imports this script to find its functions.
    if not len(_functions):
        raise SettingError("nothing to serve: decorate a function with @axon.worker.rpc() first")
    Worker(functions=_functions, **settings).serve(on_started=on_started)

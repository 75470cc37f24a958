"""Workers: functions served over HTTP.

::

    @axon.worker.rpc()
    def simple_hello(name):
        return f"Hello {name}!!"

    axon.worker.init()

Endpoints: ``POST /rpc/NAME`` calls a function, ``GET /calls/ID`` waits for a duplex result,
``DELETE /calls/ID`` cancels a call or discards its delivered result, ``GET /files/NAME`` returns a
file or a range of it, ``GET /`` lists the functions, ``GET /metrics`` returns the counters.
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
from melisma.axon.server.authentication import ANONYMOUS, OWNER, Authenticator, OnRefused
from melisma.axon.server.calls.call_metrics import CallMetrics
from melisma.axon.server.calls.calls import Calls
from melisma.axon.server.calls.functions import POOL_PROCESS, CheckCaller, F, Functions
from melisma.axon.server.exchange import Exchange, Reply
from melisma.axon.server.file_server import FileLookup, serve_file
from melisma.axon.server.http_server import HttpServer
from melisma.axon.server.limits import Limits
from melisma.axon.server.service import Service
from melisma.axon.server.tokens import TokenChecker
from melisma.axon.transport import tls as axon_tls
from melisma.errors import RefusedError, SettingError, UnauthorizedError

_ALL_INTERFACES: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_log = logging.getLogger("melisma.axon")


@dataclass(kw_only=True)
class Worker(Service):
    """Serves functions at an address.

    ``token``: callers must send it, or a token issued from it. ``authenticator``: names the caller
    of each request instead, by its token or its certificate. ``prefer_credentials``: treat
    connections of callers that the authenticator names `ANONYMOUS` as if they had sent no request:
    they are closed first and soon. ``tls``: True, or the file of certificate and key. ``trace``: a
    hook that receives each `CallRecord`. ``announce``: answer `discover`. ``board``, ``relay``:
    addresses of a notice board to sign in at and of a relay to be called through, under ``name``.
    ``advertise``: the host name in the address, if it differs from ``host``. ``files``: maps the
    name that `fetch` asks for, and the caller, to a path. ``on_refused``: receives the host of each
    caller whose TLS handshake fails, such as one that sends plain HTTP, and the reason.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    name: str = field(default_factory=lambda: re.sub(r"[^\w.-]", "-", socket.gethostname()))
    token: str | None = field(default=None, repr=False)
    authenticator: Authenticator | None = field(default=None, repr=False)
    prefer_credentials: bool = False
    tls: bool | str | Path = False
    limits: Limits = field(default_factory=Limits)
    trace: TraceHook | None = None
    announce: bool = False
    board: str | None = field(default=None, repr=False)
    relay: str | None = field(default=None, repr=False)
    advertise: str | None = None
    functions: Functions = field(default_factory=Functions)
    files: FileLookup | None = None
    on_refused: OnRefused = field(default=lambda _host, _reason: None, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        self.metrics = CallMetrics(self.trace)
        if self.token is not None and self.authenticator is not None:
            raise SettingError("token= and authenticator= exclude each other: pass one of them")
        self._authenticator = self.authenticator or TokenChecker(self.token, self.limits.remember_s)
        self._requires_credentials = self.token is not None or self.authenticator is not None
        self._identity = axon_tls.identity_file(self.tls)
        self._calls: Calls

    def rpc(
        self,
        comms_pattern: str = "simplex",
        *,
        executor: str = "thread",
        name: str | None = None,
        max_body_bytes: int | None = None,
        spool: bool = False,
        check_caller: CheckCaller | None = None,
    ) -> Callable[[F], F]:
        """Decorate a function to expose it; see `Functions.rpc`."""
        return self.functions.rpc(
            comms_pattern,
            executor=executor,
            name=name,
            max_body_bytes=max_body_bytes,
            spool=spool,
            check_caller=check_caller,
        )

    def expose(
        self,
        subject: object,
        methods: Iterable[str],
        *,
        name: str | None = None,
        max_body_bytes: int | None = None,
        spool: bool = False,
        check_caller: CheckCaller | None = None,
    ) -> None:
        """Expose the named methods of an object; see `Functions.expose`."""
        self.functions.expose(
            subject,
            methods,
            name=name,
            max_body_bytes=max_body_bytes,
            spool=spool,
            check_caller=check_caller,
        )

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on the running event loop inside an ``async with``; yield the address."""
        identity = self._identity
        if self.host not in _LOOPBACK and not self._requires_credentials:
            _log.warning("any host that reaches %s can call this worker: pass token=", self.host)
        request = self.authenticator is not None
        context = (
            axon_tls.server_context(identity, request_certificates=request) if identity else None
        )
        fingerprint = axon_tls.identity_fingerprint(identity) if identity else None
        self._calls = Calls(self.functions, self.limits, self.metrics)
        server = HttpServer(self._handle, self.limits, context, self.on_refused)
        port = await server.listen(self.host, self.port)
        host = socket.gethostname() if self.host in _ALL_INTERFACES else self.host
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
        is_call = kind == "rpc"
        call_id = request.headers.get("axon-call-id", "") if is_call else rest
        caller = self._authenticator.check(exchange.credentials, call_id, starts_call=is_call)
        if caller != ANONYMOUS or not self.prefer_credentials:
            exchange.accept()
        if is_call and request.method == "POST":
            return await self._calls.call(exchange, rest, caller)
        match request.method, kind, rest:
            case "GET", "calls", _:
                return await self._calls.wait_for_result(rest, request.query, caller)
            case "DELETE", "calls", _:
                return self._calls.cancel_or_discard(rest, caller)
            case "GET", "files", _:
                return serve_file(self.files, rest, caller, request)
            case "GET", "", "":
                return Reply(200, buffers=[msgspec.json.encode(self._profile())])
            case "GET", "metrics", "":
                return self._counters(caller)
        raise RefusedError(
            f"unknown endpoint {request.method} {request.path}: GET / lists functions"
        )

    def _counters(self, caller: str) -> Reply:
        if caller != OWNER and self._requires_credentials:
            raise UnauthorizedError(
                f"{caller} may not read the counters of this worker: use the token of its owner"
            )
        text = self.metrics.prometheus_text().encode()
        return Reply(200, "text/plain; version=0.0.4", [text])

    def _profile(self) -> dict[str, Any]:
        return {"axon": 1, "functions": [exposed.describe() for exposed in self.functions]}


def board_worker(*, port: int = BOARD_PORT, **settings: Any) -> Worker:
    """Return a worker that serves a notice board; takes the settings of `Worker`."""
    if "board" in settings:
        raise SettingError("a notice board cannot sign in at another board: remove board=")
    worker = Worker(port=port, **settings)
    worker.expose(NoticeBoard(), ["sign_in", "sign_out", "workers"], name="")
    return worker


_functions = Functions()
rpc = _functions.rpc
expose = _functions.expose


def init(*, on_started: Callable[[str], None] | None = None, **settings: Any) -> None:
    """Serve the functions decorated with `rpc` until interrupted, by default on 127.0.0.1:8000.

    Takes the settings of `Worker`; ``on_started`` is called with the address, such as ``print``.
    """
    if multiprocessing.current_process().name == POOL_PROCESS:
        return  # A pool process imports this script only to find its functions.
    if not len(_functions):
        raise SettingError("no functions to serve: decorate one with @axon.worker.rpc() first")
    Worker(functions=_functions, **settings).serve(on_started=on_started)

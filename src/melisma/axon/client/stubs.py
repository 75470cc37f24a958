"""Stubs: one function of one worker, called in one of three ways over one of two patterns.

``Sync`` stubs block, ``Coro`` stubs are awaited, ``Async`` stubs give a handle with ``join``;
``Simplex`` is one request and one response, ``Duplex`` is for calls of minutes or hours. The
calling code is the same for both.
"""

import concurrent.futures
from typing import Any

from melisma.axon.address import DEFAULT_PORT
from melisma.axon.client.remote import Remote, RemoteFunction, connect


class Handle:
    """A call under way."""

    def __init__(self, future: "concurrent.futures.Future[Any]") -> None:
        self.future = future

    def join(self, timeout_s: float | None = None) -> Any:
        """Wait for the result."""
        return self.future.result(timeout_s)


class _Stub:
    """``worker_ip`` may also be a whole address; further settings are those of `connect`."""

    _pattern = "simplex"

    def __init__(
        self,
        worker_ip: str = "localhost",
        rpc_name: str = "",
        port: int = DEFAULT_PORT,
        **settings: Any,
    ) -> None:
        address = worker_ip if "://" in worker_ip else f"http://{worker_ip}:{port}"
        self._worker = connect(address, **settings)(comms_pattern=self._pattern)
        self._name = rpc_name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self._worker)(*args, **kwargs)

    def _function(self, worker: Remote) -> RemoteFunction:
        return worker[self._name]


class SyncSimplexStub(_Stub):
    """Blocks until the result is there."""


class CoroSimplexStub(_Stub):
    """Is awaited."""

    def _function(self, worker: Remote) -> RemoteFunction:
        return worker.aio[self._name]


class AsyncSimplexStub(_Stub):
    """Gives a handle; ``handle.join()`` waits for the result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Handle:
        return Handle(self._worker.submit[self._name](*args, **kwargs))


class SyncDuplexStub(SyncSimplexStub):
    """As `SyncSimplexStub`, over the duplex pattern."""

    _pattern = "duplex"


class CoroDuplexStub(CoroSimplexStub):
    """As `CoroSimplexStub`, over the duplex pattern."""

    _pattern = "duplex"


class AsyncDuplexStub(AsyncSimplexStub):
    """As `AsyncSimplexStub`, over the duplex pattern."""

    _pattern = "duplex"

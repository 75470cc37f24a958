"""Stubs: one function of one worker, in three calling styles and two patterns.

``Sync`` stubs block, ``Coro`` stubs are awaited, ``Async`` stubs return a handle with ``join``.
``Simplex`` is one request and one response, ``Duplex`` is for calls of minutes or hours.
"""

import concurrent.futures
from typing import Any

from melisma.axon.address import DEFAULT_PORT
from melisma.axon.client.remote import Remote, RemoteFunction, connect


class Handle:
    """A running call."""

    def __init__(self, future: "concurrent.futures.Future[Any]") -> None:
        self.future = future

    def join(self, timeout_s: float | None = None) -> Any:
        """Wait for the result and return it."""
        return self.future.result(timeout_s)


class _Stub:
    """A stub; ``worker_ip`` may be a whole address, and ``settings`` are those of `connect`."""

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
    """A simplex stub that blocks until the result arrives."""


class CoroSimplexStub(_Stub):
    """A simplex stub that is awaited."""

    def _function(self, worker: Remote) -> RemoteFunction:
        return worker.aio[self._name]


class AsyncSimplexStub(_Stub):
    """A simplex stub that returns a `Handle`; ``handle.join()`` waits for the result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Handle:
        return Handle(self._worker.submit[self._name](*args, **kwargs))


class SyncDuplexStub(SyncSimplexStub):
    """A duplex stub that blocks until the result arrives."""

    _pattern = "duplex"


class CoroDuplexStub(CoroSimplexStub):
    """A duplex stub that is awaited."""

    _pattern = "duplex"


class AsyncDuplexStub(AsyncSimplexStub):
    """A duplex stub that returns a `Handle`; ``handle.join()`` waits for the result."""

    _pattern = "duplex"

"""Daemon threads for calls, started on demand and reused.

`concurrent.futures` joins its threads at exit, so that one stuck call would keep a stopped worker
alive. These threads are not joined.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadPool:
    """A pool with one thread per concurrent call; `Limits.max_calls` limits both."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking function on a thread and return its result or raise its exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result, error = function(*args), None
            except BaseException as caught:  # noqa: BLE001 - raised again where the result is awaited
                result, error = None, caught
            with contextlib.suppress(RuntimeError):  # The loop may have been closed.
                loop.call_soon_threadsafe(_settle, future, result, error)

        with self._lock:
            start = self._idle == 0
            if not start:
                self._idle -= 1
        if start:
            threading.Thread(target=self._work, name="axon-call", daemon=True).start()
            self._count += 1
        self._jobs.put(job)
        return await future

    def close(self) -> None:
        """End idle threads now and busy threads after their calls."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job
            with self._lock:
                self._idle += 1


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

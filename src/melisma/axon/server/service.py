"""Running a listener until a signal, or on a thread."""

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager


class Service(ABC):
    """A server that runs inside its ``listening()`` context."""

    @abstractmethod
    def listening(self) -> AbstractAsyncContextManager[str]:
        """Serve on the running event loop inside an ``async with``; yield the address."""

    def serve(self, *, on_started: Callable[[str], None] | None = None) -> None:
        """Serve until interrupted or terminated; ``on_started`` is called with the address."""
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve_until_signal(on_started))

    @contextlib.contextmanager
    def start(self) -> Iterator[str]:
        """Serve from a new thread inside a ``with``; yield the address."""
        ready: concurrent.futures.Future[tuple[str, Callable[[], object]]]
        ready = concurrent.futures.Future()

        async def main() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            try:
                async with self.listening() as address:
                    ready.set_result((address, lambda: loop.call_soon_threadsafe(stop.set)))
                    await stop.wait()
            except BaseException as error:
                if ready.done():
                    raise
                ready.set_exception(error)

        thread = threading.Thread(target=lambda: asyncio.run(main()), name="axon-service")
        thread.start()
        stop: Callable[[], object] = bool
        try:
            address, stop = ready.result()
            yield address
        finally:
            stop()
            thread.join()

    async def _serve_until_signal(self, on_started: Callable[[str], None] | None) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            # The first signal lets running calls end, the second cancels them.
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            # Outside the main thread, and on some systems, the default handlers end the process.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, end)
        async with self.listening() as address:
            if on_started is not None:
                on_started(address)
            await stop.wait()

"""Ctrl-C ends a run and keeps its results.

A run that waits for other processes goes on in a thread while the main thread waits for signals
(`run_in_thread`). A run that computes in the main thread checks for signals between two steps
(`interruptible`): C code may swallow the `KeyboardInterrupt` that Python raises, so the signal is
recorded as well.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Cancellation:
    """Cancels a run from another thread."""

    def __init__(self) -> None:
        self.requested, self.reason = False, "interrupted"
        self._cancel: Callable[[], object] = lambda: None

    def request(self, reason: str = "interrupted") -> None:
        """Cancel the run, at once or as soon as `on_request` is called."""
        self.requested, self.reason = True, reason
        self._cancel()

    def on_request(self, cancel: Callable[[], object]) -> None:
        """Set the function that cancels; call it now if that was requested before."""
        self._cancel = cancel
        if self.requested:
            cancel()


class CallerThread:
    """Runs functions in the thread that waits in `run_in_thread`.

    The first one that fails cancels the run; the error is raised when the run has ended.
    """

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._error: Exception | None = None
        self._ended = False

    def call(self, function: Callable[[], object]) -> None:
        """Let the waiting thread call a function, after those that wait for it already."""
        self._calls.put(function)

    def end(self) -> None:
        """Let `serve` return when it has called all functions."""
        self._ended = True
        self._calls.put(None)

    def serve(self) -> None:
        """Call functions until the end; raise the first error of one."""
        while function := self._next():
            try:
                if self._error is None:
                    function()
            except Exception as error:  # noqa: BLE001 - raised when the run has ended
                self._error = error
                self._cancellation.request(describe_callback_error(error))
        if self._error is not None:
            raise self._error

    def _next(self) -> Callable[[], object] | None:
        """Wait for a function; None at the end, also if Ctrl-C interrupted that answer before."""
        return None if self._ended and self._calls.empty() else self._calls.get()


def describe_callback_error(error: Exception) -> str:
    """Return why a run was cancelled whose callback failed."""
    return f"on_cycle raised {type(error).__name__}: {error}"


def run_in_thread(
    work: Callable[[], T],
    cancellation: Cancellation,
    name: str,
    caller: CallerThread | None = None,
) -> T:
    """Run `work` in a thread and return its result; meanwhile serve the calls of `caller`.

    The first Ctrl-C cancels and waits for the result; a second one raises `KeyboardInterrupt`. A
    thread is needed because a notebook already has an event loop.
    """
    result: Future[T] = Future()
    first, caller = threading.Lock(), caller or CallerThread(cancellation)

    def target() -> None:
        if not first.acquire(blocking=False):
            return
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            result.set_exception(error)
        finally:
            caller.end()

    started = False
    while True:
        try:
            if not started:
                # If Ctrl-C interrupts the start, the thread may run or not; another is harmless.
                threading.Thread(target=target, name=name, daemon=True).start()
                started = True
            caller.serve()
            return result.result()
        except KeyboardInterrupt:
            if cancellation.requested:
                raise
            cancellation.request()


class _RecordingHandler:
    """Raises `KeyboardInterrupt` like Python's handler, and records that it did."""

    def __init__(self) -> None:
        self._received = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        if self._received:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Yield a check that raises `KeyboardInterrupt` if a signal was received since.

    Only Python's default handlers of SIGINT and SIGTERM are replaced, and only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    current = signal.getsignal(signal.SIGINT)
    if isinstance(current, _RecordingHandler):
        yield current.check
        return
    handler = _RecordingHandler()
    replaced = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is signal.default_int_handler
    ]
    try:
        for number in replaced:
            signal.signal(number, handler)
        yield handler.check
    finally:
        for number in replaced:
            signal.signal(number, signal.default_int_handler)

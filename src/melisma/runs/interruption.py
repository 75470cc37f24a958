"""Ctrl-C that is not lost.

Python raises `KeyboardInterrupt` wherever it is, and code in C that asks whether something works
may take it for an answer: then a run would go on. So it is written down as well.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Noted:
    """Does as Python does, and remembers it."""

    def __init__(self) -> None:
        self._came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        if self._came:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Yield a check that raises `KeyboardInterrupt` if a signal has come since.

    Signals that are not Python's own way to raise it are left to whoever listens to them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    noted = signal.getsignal(signal.SIGINT)
    if isinstance(noted, _Noted):
        yield noted.check
        return
    noted = _Noted()
    plain = [
        each
        for each in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(each) is signal.default_int_handler
    ]
    try:
        for each in plain:
            signal.signal(each, noted)
        yield noted.check
    finally:
        for each in plain:
            signal.signal(each, signal.default_int_handler)

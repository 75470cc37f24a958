"""A line of a terminal that changes while a command computes.

It is updated by a timer signal, as simulations do not fork while other threads run.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

INTERVAL_S = 1.0
ERASE = "\r\x1b[K"


@contextmanager
def status_line(text: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Show the text on standard error every second; yield a function that erases it.

    Nothing is shown unless standard error is a terminal. `text` is called between two instructions
    of the main thread, so it must only read.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (in_main_thread and has_terminal and hasattr(signal, "setitimer")):
        yield lambda: None
        return
    # Not by `sys.stderr`: the signal may interrupt a write to it.
    terminal = sys.stderr.fileno()

    def write(line: str) -> None:
        with suppress(OSError):
            os.write(terminal, f"{ERASE}{line}".encode())

    def show(*_signal: object) -> None:
        with suppress(OSError):
            # In a terminal that reports no size, show everything.
            width = os.get_terminal_size(terminal).columns
            write(text()[: width - 1 if width else None])

    handler = signal.signal(signal.SIGALRM, show)
    timer = signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)
    try:
        yield lambda: write("")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        write("")

"""Stressors of a user, some of them wrong."""

import os
import threading
from collections.abc import Callable
from pathlib import Path


def count_rounds(stop: Callable[[], bool]) -> None:
    """Append a byte to the file STRESS_LOG each time that this is called."""
    with Path(os.environ["STRESS_LOG"]).open("ab") as file:
        file.write(b".")
    while not stop():
        sum(range(1000))


def fail(stop: Callable[[], bool]) -> None:
    del stop
    raise ZeroDivisionError("nothing to divide")


BEGAN, END = threading.Event(), threading.Event()


def ignore_stop(stop: Callable[[], bool]) -> None:
    del stop
    BEGAN.set()
    END.wait()

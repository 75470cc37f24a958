"""Processor time and memory of one call."""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def time_call(call: Callable[[], Result], times: int) -> tuple[Result, float]:
    """Return the result and the median processor seconds of `times` calls."""
    taken_s = []
    for _ in range(times):
        start_s = time.process_time()
        result = call()
        taken_s.append(time.process_time() - start_s)
    return result, statistics.median(taken_s)


def peak_mb(call: Callable[[], object]) -> float:
    """Return the peak memory of the call in MB."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6

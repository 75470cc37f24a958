"""What one call costs: processor time and memory."""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(call: Callable[[], Result], times: int) -> tuple[Result, float]:
    """The result, and the median of the processor seconds it took."""
    taken_s = []
    for _ in range(times):
        start_s = time.process_time()
        result = call()
        taken_s.append(time.process_time() - start_s)
    return result, statistics.median(taken_s)


def peak_mb(call: Callable[[], object]) -> float:
    """The most memory that the call held at once."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6

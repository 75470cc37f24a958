"""Latency and throughput of repeated calls."""

import inspect
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

TEXT = "hello"
"""Argument and result of every small call."""

Call = Callable[[Any], Awaitable[Any]]


def as_coroutine(call: Callable[[Any], Any]) -> Call:
    """Wrap a blocking call, so that one loop times both kinds; the cost is about 0.1 µs."""
    if inspect.iscoroutinefunction(call):
        return call

    async def blocking(argument: Any) -> Any:
        return call(argument)

    return blocking


async def durations_s(call: Call, argument: Any, times: int, warm_up: int) -> list[float]:
    """Return the duration of each of `times` calls, after `warm_up` calls that are not counted."""
    for _ in range(warm_up):
        await call(argument)
    taken_s = []
    for _ in range(times):
        start_s = time.perf_counter()
        await call(argument)
        taken_s.append(time.perf_counter() - start_s)
    return taken_s


def latency(taken_s: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in microseconds."""
    ordered = sorted(taken_s)
    p99_s = ordered[int(len(ordered) * 0.99)]
    return {"median µs": statistics.median(ordered) * 1e6, "p99 µs": p99_s * 1e6}


def echo_mb_per_s(payload_bytes: int, taken_s: Sequence[float]) -> float:
    """Return the throughput of both directions: 2 x payload / median time."""
    return 2 * payload_bytes / statistics.median(taken_s) / 1e6


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every figure over the rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {
        name: round(statistics.median(f[name] for f in rounds if name in f), 1) for name in names
    }

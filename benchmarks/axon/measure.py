"""Measure one round of one competitor's client.

A column in which a competitor fails is left out, and its error is kept.
"""

import time
from typing import Any

import numpy as np

from benchmarks.axon import callers
from benchmarks.harness import timing

SIZES_BYTES = {"10 MB": 10_000_000, "100 MB": 100_000_000}
CONCURRENT = {"8 callers/s": 8, "64 callers/s": 64}
ECHO_S, ECHO_TIMES, SLOW_S = 1.5, 8, 4.0


async def measure(client: Any, quick: bool) -> dict[str, Any]:
    """Return figures by column, errors by column, and the kind of the concurrent callers."""
    figures: dict[str, float] = {}
    errors: dict[str, str] = {}
    figures |= await small_call(client, times=300 if quick else 1000)
    for column, count in CONCURRENT.items():
        call = client.concurrent_small
        figures[column] = await callers.calls_per_s(call, count, 0.5 if quick else 1.2)
    for column, payload_bytes in SIZES_BYTES.items():
        try:
            figures[column] = await echo(client, payload_bytes)
        except Exception as error:  # noqa: BLE001  every competitor has its own errors
            errors[column] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return {"figures": figures, "errors": errors, "callers": callers.kind(client.concurrent_small)}


async def small_call(client: Any, times: int) -> dict[str, float]:
    """Return the latency of small calls, one after another."""
    call = timing.as_coroutine(client.small)
    if await call(timing.TEXT) != timing.TEXT:
        raise RuntimeError("the small call did not return its argument")
    return timing.latency(await timing.durations_s(call, timing.TEXT, times, warm_up=times // 5))


async def echo(client: Any, payload_bytes: int) -> float:
    """Return the MB/s of echoing an array; the first call is checked and not counted."""
    array = np.arange(payload_bytes // 4, dtype=np.float32).reshape(-1, 1000)
    call = timing.as_coroutine(client.echo)
    start_s = time.perf_counter()
    returned = await call(array)
    first_s = time.perf_counter() - start_s
    if not np.array_equal(returned, array):
        raise RuntimeError("the returned array differs from the one sent")
    del returned
    if first_s > SLOW_S:  # Warm-up is negligible at this speed.
        return timing.echo_mb_per_s(payload_bytes, [first_s])
    taken_s = await timing.durations_s(call, array, _times(first_s), warm_up=0)
    return timing.echo_mb_per_s(payload_bytes, taken_s)


def _times(first_s: float) -> int:
    return max(1, min(ECHO_TIMES, int(ECHO_S / first_s)))

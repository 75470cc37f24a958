"""Concurrent callers in one process, for a limited time."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.harness.timing import TEXT


def kind(call: Callable[[str], Any]) -> str:
    """Return whether a call is made from tasks or from threads."""
    return "tasks" if inspect.iscoroutinefunction(call) else "threads"


async def calls_per_s(call: Callable[[str], Any], callers: int, limit_s: float) -> float:
    """Return calls per second of N callers, each waiting for its answer before the next call."""
    if kind(call) == "tasks":
        return await _tasks(call, callers, limit_s)
    return _threads(call, callers, limit_s)


async def _tasks(call: Callable[[str], Awaitable[Any]], callers: int, limit_s: float) -> float:
    async def caller(until_s: float) -> int:
        done = 0
        while time.perf_counter() < until_s:
            await call(TEXT)
            done += 1
        return done

    await asyncio.gather(*(call(TEXT) for _ in range(callers)))
    start_s = time.perf_counter()
    done = await asyncio.gather(*(caller(start_s + limit_s) for _ in range(callers)))
    return sum(done) / (time.perf_counter() - start_s)


def _threads(call: Callable[[str], Any], callers: int, limit_s: float) -> float:
    done = [0] * callers
    started = threading.Barrier(callers + 1)

    def caller(index: int) -> None:
        call(TEXT)
        started.wait()
        until_s = time.perf_counter() + limit_s
        while time.perf_counter() < until_s:
            call(TEXT)
            done[index] += 1

    threads = [threading.Thread(target=caller, args=(index,)) for index in range(callers)]
    for thread in threads:
        thread.start()
    started.wait()
    start_s = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start_s)

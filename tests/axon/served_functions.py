"""Functions that the tests of Axon serve, at the top level so that processes can import them."""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from melisma import axon

RUNS: Counter[str] = Counter()
"""The number of runs by key, to check that no call runs twice."""
RELEASED = threading.Event()
CANCELLED = threading.Event()
WAIT_S = 60.0
"""The time to wait for what must happen, also on a busy machine."""
DEADLINES_S = (0.3, 3.0, 30.0)
"""Deadlines to try in turn, until a call begins before its deadline."""


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


class OddError(Exception):
    pass


def wait_for_run(key: str) -> None:
    """Return as soon as a function ran with this key."""
    limit = time.monotonic() + WAIT_S
    while not RUNS[key]:
        assert time.monotonic() < limit
        time.sleep(0.002)


def echo(value: Any) -> Any:
    return value


def once(key: str) -> int:
    RUNS[key] += 1
    return RUNS[key]


def blocked(key: str) -> str:
    """Runs until RELEASED is set."""
    RUNS[key] += 1
    RELEASED.wait(20)
    return key


def fail(message: str) -> None:
    raise ValueError(message, 7)


def open_missing(key: str) -> None:
    RUNS[key] += 1
    raise FileNotFoundError(2, "No such file", f"/missing/{key}")


def stream_missing() -> Iterator[int]:
    yield 1
    raise ConnectionResetError("mine")


def größe(value: int) -> int:  # noqa: PLC2401 - that it can be called is tested
    return value


def fail_oddly() -> None:
    raise OddError("odd")


def leave() -> None:
    raise SystemExit(3)


def unsendable() -> object:
    return {"inside": [object()]}


def mirror(point: Point) -> Point:
    return Point(point.y, point.x)


def process_id() -> int:
    return os.getpid()


def spin() -> None:
    while True:
        pass


def die() -> None:
    os._exit(9)


def count_to(number: int) -> Iterator[int]:
    yield from range(number)


def count_and_fail() -> Iterator[int]:
    yield 1
    raise KeyError("two")


def count_until_closed() -> Iterator[int]:
    try:
        while True:
            yield 0
    finally:
        CANCELLED.set()


def count_slowly() -> Iterator[int]:
    while True:
        time.sleep(0.05)
        yield 0


def count_and_leave() -> Iterator[int]:
    yield 1
    raise SystemExit(3)


def count_blocked() -> Iterator[int]:
    try:
        RUNS["count_blocked"] += 1
        RELEASED.wait(20)
        yield 1
    finally:
        CANCELLED.set()


def count_largely() -> Iterator[bytes]:
    while True:
        yield bytes(1_000_000)


def mirror_of(x: float, y: float) -> Point:
    return Point(y, x)


async def count_async(number: int) -> AsyncIterator[int]:
    for item in range(number):
        yield item


async def add(a: float, b: float) -> float:
    await asyncio.sleep(0)
    return a + b


async def sleep_for_ever() -> None:
    RUNS["sleep_for_ever"] += 1
    try:
        await asyncio.sleep(3600)
    finally:
        CANCELLED.set()


def notice_cancel() -> None:
    """Runs until its call is cancelled."""
    call = axon.current_call()
    RUNS["notice_cancel"] += 1
    while not call.cancelled:
        time.sleep(0.005)
    CANCELLED.set()


def call_facts() -> dict[str, Any]:
    call = axon.current_call()
    return {"id": call.id, "caller": call.caller, "left": call.seconds_left}


class Store:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def put(self, key: str, value: Any) -> None:
        self.values[key] = value

    def get(self, key: str) -> Any:
        return self.values[key]

    def secret(self) -> str:
        return "not exposed"


def a_worker(**settings: Any) -> axon.Worker:
    """A worker with all of the above on a free port."""
    worker = axon.Worker(port=0, **settings)
    for function in (
        echo, once, blocked, fail, fail_oddly, leave, unsendable, mirror, count_to,
        count_and_fail, count_until_closed, count_slowly, count_async, add, sleep_for_ever,
        notice_cancel, call_facts, count_and_leave, count_blocked, count_largely, mirror_of,
        open_missing, stream_missing, größe,
    ):  # fmt: skip
        worker.rpc()(function)
    worker.rpc(executor="inline", name="inline_echo")(echo)
    worker.rpc(comms_pattern="duplex", name="long_echo")(echo)
    worker.rpc(comms_pattern="duplex", name="long_blocked")(blocked)
    worker.rpc(comms_pattern="duplex", name="long_fail")(fail)
    for function in (process_id, spin, die):
        worker.rpc(executor="process")(function)
    worker.rpc(executor="process", name="process_mirror")(mirror)
    worker.rpc(executor="process", name="process_echo")(echo)
    worker.rpc(executor="process", name="process_facts")(call_facts)
    worker.expose(Store(), ["put", "get"], name="store")
    return worker

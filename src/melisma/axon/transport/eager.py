"""Start a coroutine at once, and make it a task only if it has to wait.

A small request is read, served and answered without a task, and without another turn of the event
loop: that turn is a third of what such a call costs. What needs a task of its own, such as
`asyncio.timeout`, awaits `in_task` first.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def start(
    coroutine: Coroutine[Any, Any, T], ended: Callable[[T], None]
) -> "asyncio.Task[None] | None":
    """Run until the end, and call ``ended`` with the result; or until it waits: then a task."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as result:
        ended(result.value)
        return None

    async def rest() -> None:
        ended(await _resume(coroutine, awaited))

    return asyncio.get_running_loop().create_task(rest())


async def ensure_task() -> None:
    """Return inside a task."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """What is left of a coroutine that was started elsewhere and waits for ``awaited``."""
    while True:
        failure: BaseException | None = None
        value = None
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine
            failure = error
        try:
            awaited = coroutine.send(value) if failure is None else coroutine.throw(failure)
        except StopIteration as result:
            done: T = result.value
            return done

"""Starting a coroutine at once, with a task only if it has to wait.

A small request is read, served and answered without a task and without another iteration of the
event loop, which would take a third of the time of such a call. Code that requires a task, such as
`asyncio.timeout`, awaits `ensure_task` first.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def start(
    coroutine: Coroutine[Any, Any, T], on_done: Callable[[T], None]
) -> "asyncio.Task[None] | None":
    """Run a coroutine and call ``on_done`` with its result; return a task if it has to wait."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as result:
        on_done(result.value)
        return None

    async def rest() -> None:
        on_done(await _resume(coroutine, awaited))

    return asyncio.get_running_loop().create_task(rest())


async def ensure_task() -> None:
    """Continue inside a task."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Run the rest of a started coroutine that waits for ``awaited``."""
    while True:
        failure: BaseException | None = None
        value = None
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - forwarded to the coroutine
            failure = error
        try:
            awaited = coroutine.send(value) if failure is None else coroutine.throw(failure)
        except StopIteration as result:
            done: T = result.value
            return done

"""melisma.axon with the inline executor, for functions that return at once."""

import threading
from collections.abc import Callable
from typing import Any

from melisma import axon


def serve(ready: Callable[[str], None], executor: str = "inline") -> None:
    worker = axon.Worker(port=0)

    @worker.rpc(executor=executor)
    def small(text: str) -> str:
        return text

    @worker.rpc(executor=executor)
    def echo(array: Any) -> Any:
        return array

    with worker.start() as address:
        ready(address)
        threading.Event().wait()


class Client:
    """Single calls block; many callers are tasks."""

    def __init__(self, address: str) -> None:
        self.remote = axon.connect(address)
        self.aio = self.remote.aio

    def small(self, text: str) -> str:
        return str(self.remote.small(text))

    async def concurrent_small(self, text: str) -> str:
        return str(await self.aio.small(text))

    def echo(self, array: Any) -> Any:
        return self.remote.echo(array)

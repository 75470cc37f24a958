"""A Ray actor on one host: arrays pass through shared memory, so no network is involved.

The server process starts its own cluster, whose daemons and actor inherit its core; the caller
joins it as a driver.
"""

import threading
from collections.abc import Callable
from typing import Any

import ray  # type: ignore[import-not-found]
from numpy.typing import NDArray

NAMESPACE = "benchmark"
STORE_BYTES = 2_000_000_000


class Actor:
    def small(self, text: str) -> str:
        return text

    def echo(self, array: NDArray[Any]) -> NDArray[Any]:
        return array


def serve(ready: Callable[[str], None]) -> None:
    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        namespace=NAMESPACE,
        logging_level="error",
    )
    actor = ray.remote(Actor).options(name="echo", num_cpus=0, max_concurrency=64).remote()
    ray.get(actor.small.remote("warm"))
    ready(ray.get_runtime_context().gcs_address)
    threading.Event().wait()


class Client:
    def __init__(self, address: str) -> None:
        ray.init(address=address, namespace=NAMESPACE, logging_level="error", log_to_driver=False)
        self.actor = ray.get_actor("echo")

    def small(self, text: str) -> str:
        return str(ray.get(self.actor.small.remote(text)))

    async def concurrent_small(self, text: str) -> str:
        return str(await self.actor.small.remote(text))

    def echo(self, array: NDArray[Any]) -> Any:
        return ray.get(self.actor.echo.remote(array))

"""gRPC on asyncio at both ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
from numpy.typing import NDArray

from benchmarks.competitors import arrays, grpc_generic


async def small(request: bytes, _context: Any) -> bytes:
    return grpc_generic.small(request)


async def echo(request: bytes, _context: Any) -> bytes:
    return grpc_generic.echo(request)


async def run(ready: Callable[[str], None]) -> None:
    server = grpc.aio.server(options=grpc_generic.OPTIONS)
    server.add_generic_rpc_handlers([grpc_generic.handlers(small, echo)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(f"127.0.0.1:{port}")
    await server.wait_for_termination()


def serve(ready: Callable[[str], None]) -> None:
    asyncio.run(run(ready))


class Client:
    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=grpc_generic.OPTIONS)
        self._small, self._echo = grpc_generic.calls(self.channel)

    async def small(self, text: str) -> str:
        return bytes(await self._small(text.encode())).decode()

    concurrent_small = small

    async def echo(self, array: NDArray[Any]) -> NDArray[Any]:
        return arrays.decode(await self._echo(arrays.encode(array)))

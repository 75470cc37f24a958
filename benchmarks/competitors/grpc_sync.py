"""gRPC with a thread pool in the server and blocking calls in the client."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from benchmarks.competitors import arrays, grpc_generic


def small(request: bytes, _context: Any) -> bytes:
    return grpc_generic.small(request)


def echo(request: bytes, _context: Any) -> bytes:
    return grpc_generic.echo(request)


def serve(ready: Callable[[str], None]) -> None:
    server = grpc.server(ThreadPoolExecutor(10), options=grpc_generic.OPTIONS)
    server.add_generic_rpc_handlers([grpc_generic.handlers(small, echo)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready(f"127.0.0.1:{port}")
    server.wait_for_termination()


class Client:
    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=grpc_generic.OPTIONS)
        self._small, self._echo = grpc_generic.calls(self.channel)

    def small(self, text: str) -> str:
        return bytes(self._small(text.encode())).decode()

    concurrent_small = small

    def echo(self, array: NDArray[Any]) -> NDArray[Any]:
        return arrays.decode(self._echo(arrays.encode(array)))

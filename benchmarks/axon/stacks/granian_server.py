"""granian with one worker, one thread and the same ASGI application as uvicorn."""

from granian.constants import Interfaces, Loops
from granian.server import Server


def serve(port: int, loop: Loops = Loops.asyncio) -> None:
    Server(
        "benchmarks.axon.stacks.asgi:echo",
        address="127.0.0.1",
        port=port,
        interface=Interfaces.ASGINL,
        loop=loop,
        workers=1,
        runtime_threads=1,
        log_enabled=False,
        websockets=False,
    ).serve()

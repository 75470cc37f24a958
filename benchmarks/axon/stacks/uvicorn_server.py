"""uvicorn with httptools and a raw ASGI application."""

from typing import Literal

import uvicorn

from benchmarks.axon.stacks.asgi import echo


def serve(port: int, loop: Literal["asyncio", "uvloop"] = "asyncio") -> None:
    uvicorn.run(
        echo,
        host="127.0.0.1",
        port=port,
        http="httptools",
        loop=loop,
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
    )

"""The bare httptools protocol on uvloop's event loop."""

import uvloop

from benchmarks.axon.stacks.httptools_server import run


def serve(port: int) -> None:
    uvloop.run(run(port))

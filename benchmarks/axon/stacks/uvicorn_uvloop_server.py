"""uvicorn as in uvicorn_server, on uvloop's event loop."""

from benchmarks.axon.stacks import uvicorn_server


def serve(port: int) -> None:
    uvicorn_server.serve(port, loop="uvloop")

"""granian as in granian_server, on uvloop's event loop."""

from granian.constants import Loops

from benchmarks.axon.stacks import granian_server


def serve(port: int) -> None:
    granian_server.serve(port, loop=Loops.uvloop)

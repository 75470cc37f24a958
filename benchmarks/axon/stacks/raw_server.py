"""No HTTP at all: a length and a body on a blocking socket, one connection at a time."""

import socket

from benchmarks.axon import framing


def serve(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            framing.echo(listener.accept()[0])

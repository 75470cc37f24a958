"""The client of raw_server."""

from benchmarks.axon import framing


class Client:
    def __init__(self, port: int) -> None:
        self.socket = framing.connect(port)

    def post(self, body: bytes) -> memoryview:
        framing.send(self.socket, body)
        return framing.receive(self.socket)

    def close(self) -> None:
        self.socket.close()

"""Blocking sockets, a thread for each connection, nothing decoded: the limit of the machine."""

import socket
import threading
from collections.abc import Callable
from typing import Any

from benchmarks.axon import framing


def serve(ready: Callable[[str], None]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        ready(str(listener.getsockname()[1]))
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=framing.echo, args=(connection,), daemon=True).start()


class Client:
    """A connection for each calling thread."""

    def __init__(self, address: str) -> None:
        self.port = int(address)
        self.local = threading.local()

    def small(self, text: str) -> str:
        return str(self._call(text.encode()), "utf-8")

    concurrent_small = small

    def echo(self, array: Any) -> Any:
        import numpy as np  # The server does not need it.

        data = self._call(memoryview(array).cast("B"))
        return np.frombuffer(data, array.dtype).reshape(array.shape)

    def _call(self, body: bytes | memoryview) -> memoryview:
        if not hasattr(self.local, "connection"):
            self.local.connection = framing.connect(self.port)
        framing.send(self.local.connection, body)
        return framing.receive(self.local.connection)

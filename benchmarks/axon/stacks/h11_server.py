"""A bare asyncio protocol with h11 for HTTP."""

import asyncio
from typing import cast

import h11


class Echo(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.http = h11.Connection(h11.SERVER)
        self.pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.http.receive_data(data)
        while True:
            event = self.http.next_event()
            if isinstance(event, h11.Data):
                self.pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self.answer()
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                return

    def answer(self) -> None:
        body = b"".join(self.pieces)
        self.pieces.clear()
        headers = [("content-length", str(len(body)))]
        out = [
            self.http.send(h11.Response(status_code=200, headers=headers)),
            self.http.send(h11.Data(data=body)),
            self.http.send(h11.EndOfMessage()),
        ]
        self.transport.writelines([piece for piece in out if piece])
        self.http.start_next_cycle()


async def run(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


def serve(port: int) -> None:
    asyncio.run(run(port))

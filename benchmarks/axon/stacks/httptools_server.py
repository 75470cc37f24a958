"""A bare asyncio protocol: httptools parses the head, the body is received into its own buffer.

The kernel writes a body of known length into one buffer, so it is copied once, out of the socket.
The answer is sent in pieces, each after the previous one is sent, because asyncio copies bytes that
the socket does not accept at once.
"""

import asyncio
from typing import cast

import httptools

from benchmarks.axon import buffers

HEAD_BYTES = 64 * 1024
CHUNK_BYTES = 1 << 20
NOTHING = memoryview(b"")


class Echo(asyncio.BufferedProtocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.head = bytearray(HEAD_BYTES)
        self.head_view = memoryview(self.head)
        self.filled = 0
        self.body: memoryview | None = None
        self.received = 0
        self.content_length = 0
        self.unsent = NOTHING
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self.body is None:
            return self.head_view[self.filled :]
        return self.body[self.received :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.body is None:
            self.filled += nbytes
            self.read_head()
        else:
            self.received += nbytes
        if self.body is not None and self.received == len(self.body):
            self.answer(self.body)

    def read_head(self) -> None:
        end = self.head.find(b"\r\n\r\n", 0, self.filled) + 4
        if end == 3:
            return
        httptools.HttpRequestParser(self).feed_data(self.head_view[:end])
        self.body = buffers.empty(self.content_length)
        self.received = self.filled - end
        self.body[: self.received] = self.head_view[end : self.filled]
        self.filled = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length":
            self.content_length = int(value)

    def answer(self, body: memoryview) -> None:
        self.body = None
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        if len(body) < CHUNK_BYTES:
            self.transport.write(head + body)
            return
        self.transport.write(head)
        self.unsent = body
        self.send()

    def send(self) -> None:
        while self.writable and self.unsent:
            piece, self.unsent = self.unsent[:CHUNK_BYTES], self.unsent[CHUNK_BYTES:]
            self.transport.write(piece)
        if not self.unsent:
            self.unsent = NOTHING  # an empty slice would keep the whole body alive

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.send()


async def run(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


def serve(port: int) -> None:
    asyncio.run(run(port))

"""Axon's codec over a bare asyncio TCP stream, without worker, HTTP and safety."""

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.competitors import codec

# A stream copies bytes that the socket does not accept at once, so send large buffers in pieces.
PIECE_BYTES = 1 << 20


async def send(writer: asyncio.StreamWriter, value: object) -> None:
    for buffer in codec.encode(value):
        view = memoryview(buffer)
        for start in range(0, len(view), PIECE_BYTES):
            writer.write(view[start : start + PIECE_BYTES])
            await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Any:
    length = int.from_bytes(await reader.readexactly(codec.LENGTH_BYTES), "big")
    return codec.decode(await reader.readexactly(length))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await send(writer, await receive(reader))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def run(ready: Callable[[str], None]) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ready(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


def serve(ready: Callable[[str], None]) -> None:
    asyncio.run(run(ready))


class Client:
    """A pool of connections, each used by one call at a time."""

    def __init__(self, address: str) -> None:
        self.port = int(address)
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def small(self, text: str) -> Any:
        return await self._call(text)

    concurrent_small = small

    async def echo(self, array: Any) -> Any:
        return await self._call(array)

    async def _call(self, value: object) -> Any:
        if self.idle:
            reader, writer = self.idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await send(writer, value)
        result = await receive(reader)
        self.idle.append((reader, writer))
        return result

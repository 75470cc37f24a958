"""Axon's codec over asyncio's socket calls, which copy nothing."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from benchmarks.axon import buffers, framing
from benchmarks.competitors import codec


async def send(connection: socket.socket, value: object) -> None:
    loop = asyncio.get_running_loop()
    for buffer in codec.encode(value):
        await loop.sock_sendall(connection, buffer)


async def receive(connection: socket.socket) -> Any:
    length = int.from_bytes(await _receive(connection, codec.LENGTH_BYTES), "big")
    return codec.decode(await _receive(connection, length))


async def _receive(connection: socket.socket, length: int) -> memoryview:
    loop = asyncio.get_running_loop()
    body = buffers.empty(length)
    done = 0
    while done < length:
        received = await loop.sock_recv_into(connection, body[done:])
        if not received:
            raise ConnectionResetError("the other side closed the connection")
        done += received
    return body


async def answer(connection: socket.socket) -> None:
    with connection:
        try:
            while True:
                await send(connection, await receive(connection))
        except ConnectionError:
            return


async def run(ready: Callable[[str], None]) -> None:
    loop, answering = asyncio.get_running_loop(), set()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.setblocking(False)
        ready(str(listener.getsockname()[1]))
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answering.add(asyncio.create_task(answer(connection)))


def serve(ready: Callable[[str], None]) -> None:
    asyncio.run(run(ready))


class Client:
    """A pool of connections, each used by one call at a time."""

    def __init__(self, address: str) -> None:
        self.port = int(address)
        self.idle: list[socket.socket] = []

    async def small(self, text: str) -> Any:
        return await self._call(text)

    concurrent_small = small

    async def echo(self, array: Any) -> Any:
        return await self._call(array)

    async def _call(self, value: object) -> Any:
        connection = self.idle.pop() if self.idle else self._connect()
        await send(connection, value)
        result = await receive(connection)
        self.idle.append(connection)
        return result

    def _connect(self) -> socket.socket:
        connection = framing.connect(self.port)
        connection.setblocking(False)
        return connection

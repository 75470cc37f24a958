"""aiohttp at both ends, without an RPC system on top."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web
from numpy.typing import NDArray

from benchmarks.competitors import arrays


async def small(request: web.Request) -> web.Response:
    return web.Response(text=await request.text())


async def echo(request: web.Request) -> web.Response:
    array = arrays.decode(await request.read())
    return web.Response(body=arrays.encode(array))


async def run(ready: Callable[[str], None]) -> None:
    application = web.Application(client_max_size=1 << 40)
    application.router.add_post("/small", small)
    application.router.add_post("/echo", echo)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ready("http://{}:{}".format(*runner.addresses[0]))
    await asyncio.Event().wait()


def serve(ready: Callable[[str], None]) -> None:
    asyncio.run(run(ready))


class Client:
    def __init__(self, address: str) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        self.session = aiohttp.ClientSession(address, connector=connector)

    async def small(self, text: str) -> str:
        async with self.session.post("/small", data=text) as response:
            return await response.text()

    concurrent_small = small

    async def echo(self, array: NDArray[Any]) -> NDArray[Any]:
        async with self.session.post("/echo", data=arrays.encode(array)) as response:
            return arrays.decode(await response.read())

"""aiohttp's server without an application around it."""

import asyncio
from typing import Any

from aiohttp import web


async def echo(request: web.BaseRequest) -> web.Response:
    return web.Response(body=await request.read())


def unlimited(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """A request without aiohttp's limit of 1 MB."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=1 << 40)


async def run(port: int) -> None:
    runner = web.ServerRunner(web.Server(echo, request_factory=unlimited, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def serve(port: int) -> None:
    asyncio.run(run(port))

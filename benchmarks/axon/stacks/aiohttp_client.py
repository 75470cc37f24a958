"""aiohttp's client; every call is awaited inside one running loop, which is not timed."""

import aiohttp


class Client:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.session = aiohttp.ClientSession()

    async def post(self, body: bytes) -> bytes:
        async with self.session.post(self.url, data=body) as response:
            return await response.read()

    async def close(self) -> None:
        await self.session.close()

"""httpx's synchronous client."""

import httpx


class Client:
    def __init__(self, port: int) -> None:
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def post(self, body: bytes) -> bytes:
        return self.client.post("/", content=body).content

    def close(self) -> None:
        self.client.close()

"""One HTTP request to one address, over any `ConnectionPool`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from melisma.axon.address import Address
from melisma.axon.codec.message import MAX_TREE_BYTES, MESSAGE_TYPE, Buffer, Message, buffers_bytes
from melisma.axon.transport.http import (
    Response,
    parse_response,
    request_head,
)
from melisma.axon.transport.interface import Transport, close_on_error
from melisma.axon.transport.pool import ConnectionPool
from melisma.axon.transport.wire import read_bytes, read_message

ASK_FIRST_BYTES: Final = 1 << 20
"""From this size on, the other side says whether it takes the body before it is sent."""

HttpAnswer = tuple[int, Message | bytearray]
"""Status and body: a message, or whatever else was answered."""


@dataclass(frozen=True)
class HttpClient:
    """Sends requests to one address with one token."""

    address: Address
    token: str | None = None

    async def request(
        self, pool: ConnectionPool, method: str, target: str, deadline_at: float | None = None
    ) -> HttpAnswer:
        """One request without a body, and its whole answer."""
        try:
            transport = await self.connect(pool, deadline_at)
            response = await self.send(transport, method, target, {}, ())
        except ConnectionError:  # A kept connection may have gone stale.
            pool.close()
            transport = await self.connect(pool, deadline_at)
            response = await self.send(transport, method, target, {}, ())
        return await self.read_answer(pool, transport, response)

    async def connect(self, pool: ConnectionPool, deadline_at: float | None) -> Transport:
        """A connection for one request, kept or new; until here nothing is sent."""
        transport = pool.take_idle() or await pool.open(deadline_at)
        transport.deadline_at = deadline_at
        return transport

    async def send(
        self,
        transport: Transport,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Sequence[Buffer],
    ) -> Response:
        """Send one request and read the head of its response."""
        size = buffers_bytes(body)
        lines = {"host": f"{self.address.host}:{self.address.port}", **headers}
        if self.token is not None:
            lines["authorization"] = f"Bearer {self.token}"
        if method == "POST":
            lines["content-length"] = str(size)
        ask_first = size >= ASK_FIRST_BYTES
        if ask_first:
            lines["expect"] = "100-continue"
        with close_on_error(transport):
            head = request_head(method, target, lines)
            response = await _exchange(transport, [head] if ask_first else [head, *body])
            if response.status == 100:
                response = await _exchange(transport, body)
        return response

    async def read_answer(
        self, pool: ConnectionPool, transport: Transport, response: Response
    ) -> HttpAnswer:
        """The rest of a response; its connection is kept for the next request."""
        body: Message | bytearray
        with close_on_error(transport):
            if response.headers.get("content-type") == MESSAGE_TYPE:
                body = await read_message(transport, response.body_bytes, MAX_TREE_BYTES)
            else:
                body = await read_bytes(transport, response.body_bytes)
        if response.keep_alive:
            pool.release(transport)
        else:
            transport.close()
        return response.status, body


async def _exchange(transport: Transport, buffers: Sequence[Buffer]) -> Response:
    # Who refuses a body closes the connection under it; the answer that says why came before.
    with suppress(ConnectionError):
        await transport.write(buffers)
    return parse_response(await transport.read_head())

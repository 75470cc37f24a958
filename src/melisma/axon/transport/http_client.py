"""HTTP requests to one address, over any `ConnectionPool`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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

EXPECT_CONTINUE_BYTES: Final = 1 << 20
"""Bodies of at least this size are sent after the server has accepted the head."""

HttpAnswer = tuple[int, Message | bytearray]
"""Status and body; the body is a message or other bytes."""


@dataclass(frozen=True)
class HttpClient:
    """Sends requests to one address with one token."""

    address: Address
    token: str | None = field(default=None, repr=False)

    async def request(
        self, pool: ConnectionPool, method: str, target: str, deadline_at: float | None = None
    ) -> HttpAnswer:
        """Send a request without a body and read the whole answer."""
        try:
            transport = await self.connect(pool, deadline_at)
            response = await self.send(transport, method, target, {}, ())
        except ConnectionError:  # An idle connection may have been closed by the server.
            pool.close()
            transport = await self.connect(pool, deadline_at)
            response = await self.send(transport, method, target, {}, ())
        return await self.read_answer(pool, transport, response)

    async def connect(self, pool: ConnectionPool, deadline_at: float | None) -> Transport:
        """Return an idle or new connection for one request."""
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
        fields = {"host": f"{self.address.host}:{self.address.port}", **headers}
        if self.token is not None:
            fields["authorization"] = f"Bearer {self.token}"
        if method == "POST":
            fields["content-length"] = str(size)
        expect_continue = size >= EXPECT_CONTINUE_BYTES
        if expect_continue:
            fields["expect"] = "100-continue"
        with close_on_error(transport):
            head = request_head(method, target, fields)
            response = await _exchange(transport, [head] if expect_continue else [head, *body])
            if response.status == 100:
                response = await _exchange(transport, body)
        return response

    async def read_answer(
        self, pool: ConnectionPool, transport: Transport, response: Response
    ) -> HttpAnswer:
        """Read the body of a response and release the connection."""
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
    # A server that refuses a body closes the connection, but sends its answer before.
    with suppress(ConnectionError):
        await transport.write(buffers)
    return parse_response(await transport.read_head())

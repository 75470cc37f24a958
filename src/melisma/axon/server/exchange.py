"""One request on its connection, and the reply to it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from melisma.axon.codec.message import Buffer, Message
from melisma.axon.codec.outcome import JSON_TYPE, Outcome
from melisma.axon.server.authentication import Credentials
from melisma.axon.server.limits import Limits
from melisma.axon.server.receive_budget import ReceiveBudget
from melisma.axon.transport.asyncio_transport import AsyncioTransport
from melisma.axon.transport.http import Request, response_head
from melisma.axon.transport.wire import discard, read_bytes, read_message
from melisma.errors import TooLargeError

_MAX_DISCARD_BYTES: Final = 1 << 20
"""The most that is read of a refused body, so that the sender receives the reply."""


class Exchange(msgspec.Struct):
    """One request on its connection; the handler may read the body."""

    request: Request
    transport: AsyncioTransport
    limits: Limits
    budget: ReceiveBudget
    unread_bytes: int = 0
    accept: Callable[[], None] = lambda: None
    """Records that the caller is authorized, so that others do not displace its connection.

    Called by the handler.
    """
    on_delivered: Callable[[], None] | None = None
    """Called when the next request on the connection shows that the reply arrived."""

    @property
    def peer_host(self) -> str | None:
        """The host that sent the request; None through a relay."""
        if self.transport.relayed:
            return None
        # A connection that was closed before it was accepted has no peer any more.
        peer = self.transport.transport.get_extra_info("peername")
        return str(peer[0]) if peer else None

    @property
    def credentials(self) -> Credentials:
        """The token and the certificate of the caller."""
        authorization = self.request.headers.get("authorization")
        return Credentials(authorization, self.transport.peer_fingerprint, self.peer_host)

    async def read_message(self, account: str = "", *, spool: bool = False) -> Message:
        """Receive the body as a message, in memory counted for ``account`` or in a file."""
        size = self._check_size()
        reserved = 0 if spool or self.transport.buffered_bytes >= size else size
        await self.budget.acquire(reserved, account)
        try:
            await self._begin_body(size)
            return await read_message(self.transport, size, self.limits.max_tree_bytes, spool=spool)
        finally:
            self.budget.release(reserved, account)

    async def read_bytes(self) -> bytearray:
        """Receive the body as bytes."""
        size = self._check_size()
        await self.budget.acquire(size, "")
        try:
            await self._begin_body(size)
            return await read_bytes(self.transport, size)
        finally:
            self.budget.release(size, "")

    @property
    def discardable(self) -> bool:
        """Whether reading the rest of the body is cheaper than closing the connection."""
        if self.unread_bytes > _MAX_DISCARD_BYTES or "expect" in self.request.headers:
            return self.unread_bytes == 0
        return True

    async def discard_body(self) -> None:
        """Discard the unread body."""
        if self.discardable:
            await discard(self.transport, self.unread_bytes)
            self.unread_bytes = 0

    def _check_size(self) -> int:
        """Return the size of the body, from the head of the request."""
        size = self.unread_bytes
        if size > self.limits.max_body_bytes:
            raise TooLargeError(
                f"the request has {size} bytes, the limit is {self.limits.max_body_bytes}: send "
                "less at once, or raise max_body_bytes"
            )
        return size

    async def _begin_body(self, size: int) -> None:
        """Ask for the body, whose bytes must arrive at the minimum rate from now on."""
        self.unread_bytes = 0
        if self.transport.buffered_bytes >= size:
            return
        self.transport.set_min_rate(self.limits.min_rate)
        if self.request.headers.get("expect", "").lower() == "100-continue":
            await self.transport.write([response_head(100, {})])


class Reply(msgspec.Struct):
    """A response: buffers, a stream of buffers, or a function that takes over the connection."""

    status: int
    content_type: str = JSON_TYPE
    buffers: Sequence[Buffer] = ()
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[Sequence[Buffer]] | None = None
    takeover: Callable[[AsyncioTransport], Awaitable[None]] | None = None
    deadline_at: float | None = None
    """The deadline of a stream."""

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> "Reply":
        """Return the reply for an outcome."""
        return cls(outcome.status, outcome.content_type, outcome.buffers)


Handler = Callable[[Exchange], Awaitable[Reply]]

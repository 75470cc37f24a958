"""Listening for duplex results that the worker posts to the caller.

The caller sends its port, a secret and, with TLS, its fingerprint with each call. The worker posts
the result to that port of the host that the call came from, and to no other host. A result that
cannot be posted waits to be fetched.
"""

import asyncio
import concurrent.futures
import logging
import secrets
from pathlib import Path

from melisma.axon.codec.message import MESSAGE_TYPE, Message
from melisma.axon.server.exchange import Exchange, Reply
from melisma.axon.server.http_server import HttpServer
from melisma.axon.server.limits import Limits
from melisma.axon.server.tokens import TokenChecker
from melisma.axon.transport import tls
from melisma.axon.transport.http_client import HttpAnswer
from melisma.axon.transport.pool import background
from melisma.errors import LostError, MalformedError, RefusedError

_log = logging.getLogger("melisma.axon")


class CallbackServer:
    """Listens on ``host:port`` for results, on the background loop of this process."""

    def __init__(self, host: str, port: int, identity: Path | None = None) -> None:
        self._expected: dict[str, concurrent.futures.Future[HttpAnswer]] = {}
        context = tls.server_context(identity) if identity else None
        self._server = HttpServer(self._handle, Limits(), context)
        self._loop = background.loop()
        listening = asyncio.run_coroutine_threadsafe(self._server.listen(host, port), self._loop)
        bound_port = listening.result()
        secret = secrets.token_hex(16)
        self._tokens = TokenChecker(secret)
        pinned = tls.identity_fingerprint(identity) if identity else ""
        self.reply_to = f"{bound_port} {secret} {pinned}".rstrip()

    def expect(self, call_id: str) -> "concurrent.futures.Future[HttpAnswer]":
        """Return a future for the posted result of a call."""
        return self._expected.setdefault(call_id, concurrent.futures.Future())

    def forget(self, call_id: str) -> None:
        """Stop expecting the result of a call."""
        self._expected.pop(call_id, None)

    def close(self) -> None:
        """Stop listening."""
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()

    async def _handle(self, exchange: Exchange) -> Reply:
        request = exchange.request
        kind, _, call_id = request.path.lstrip("/").partition("/")
        if (request.method, kind) != ("POST", "callbacks"):
            raise RefusedError(
                f"unknown endpoint {request.method} {request.path}: use POST /callbacks/ID"
            )
        self._tokens.check(exchange.credentials, call_id)
        exchange.accept()
        future = self._expected.get(call_id)
        if future is None:
            raise LostError(f"no result of call {call_id} is expected: it was fetched or cancelled")
        status_text = request.headers.get("axon-status", "")
        if not status_text.isdecimal():
            raise MalformedError(f"axon-status: {status_text!r} is not an HTTP status")
        body: Message | bytearray
        if request.headers.get("content-type") == MESSAGE_TYPE:
            body = await exchange.read_message()
        else:
            body = await exchange.read_bytes()
        if not future.done():
            future.set_result((int(status_text), body))
        return Reply(204)

"""Duplex results that are posted to a caller that can be reached.

The caller listens, and says with its call on which port, with which secret (and with TLS, which
certificate);
the worker posts the result to that port of the address that the call came from, and nowhere
else. What cannot be posted waits to be fetched as usual.
"""

import asyncio
import concurrent.futures
import logging
import secrets
from pathlib import Path

from melisma.axon.codec.message import MESSAGE_TYPE, Message
from melisma.axon.server.http_server import Exchange, HttpServer, Reply
from melisma.axon.server.limits import Limits
from melisma.axon.server.tokens import TokenChecker
from melisma.axon.transport import tls
from melisma.axon.transport.http_client import HttpAnswer
from melisma.axon.transport.pool import background
from melisma.errors import LostError, MalformedError, RefusedError

_log = logging.getLogger("melisma.axon")


class CallbackServer:
    """Listens on ``host:port`` for results, on this process' background loop."""

    def __init__(self, host: str, port: int, identity: Path | None = None) -> None:
        self._expected: dict[str, concurrent.futures.Future[HttpAnswer]] = {}
        context = tls.server_context(identity) if identity else None
        self._server = HttpServer(self._handle, Limits(), context)
        self._loop = background.loop()
        listening = asyncio.run_coroutine_threadsafe(self._server.listen(host, port), self._loop)
        found = listening.result()
        secret = secrets.token_hex(16)
        self._tokens = TokenChecker(secret)
        pinned = tls.identity_fingerprint(identity) if identity else ""
        self.reply_to = f"{found} {secret} {pinned}".rstrip()

    def expect(self, call_id: str) -> "concurrent.futures.Future[HttpAnswer]":
        """Where the result of a call will be."""
        return self._expected.setdefault(call_id, concurrent.futures.Future())

    def forget(self, call_id: str) -> None:
        """The result of this call came another way."""
        self._expected.pop(call_id, None)

    def close(self) -> None:
        """Stop listening."""
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()

    async def _handle(self, exchange: Exchange) -> Reply:
        request = exchange.request
        kind, _, call_id = request.path.lstrip("/").partition("/")
        if (request.method, kind) != ("POST", "callbacks"):
            raise RefusedError("only results are taken here: POST /callbacks/ID")
        self._tokens.check(request.headers.get("authorization"), call_id)
        future = self._expected.get(call_id)
        if future is None:
            raise LostError(f"nobody here waits for call {call_id}")
        status_text = request.headers.get("axon-status", "")
        if not status_text.isdecimal():
            raise MalformedError(f"axon-status: {status_text!r} is not a status")
        body: Message | bytearray
        if request.headers.get("content-type") == MESSAGE_TYPE:
            body = await exchange.read_message()
        else:
            body = await exchange.read_bytes()
        if not future.done():
            future.set_result((int(status_text), body))
        return Reply(204)

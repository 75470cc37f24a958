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
import time
from pathlib import Path
from typing import Final

from melisma.axon.address import Address
from melisma.axon.client.pool import EventNetwork, Network, background
from melisma.axon.client.requests import Answer, Requests
from melisma.axon.codec.message import Message
from melisma.axon.codec.outcome import Outcome
from melisma.axon.server.http_server import Exchange, Reply, Server
from melisma.axon.server.ledger import Entry
from melisma.axon.server.limits import Limits
from melisma.axon.server.tokens import TokenCheck
from melisma.axon.transport import tls
from melisma.axon.transport.http import MESSAGE_TYPE
from melisma.errors import AxonError, LostError, MalformedError, RefusedError

_log = logging.getLogger("melisma.axon")
POST_ATTEMPTS: Final = 5
POST_S: Final = 300.0
"""The longest that one attempt may take; what was not posted is fetched."""


class ReturnServer:
    """Listens on ``host:port`` for results, on this process' background loop."""

    def __init__(self, host: str, port: int, identity: Path | None = None) -> None:
        self._expected: dict[str, concurrent.futures.Future[Answer]] = {}
        context = tls.server_context(identity) if identity else None
        self._server = Server(self._handle, Limits(), context)
        self._loop = background.loop()
        listening = asyncio.run_coroutine_threadsafe(self._server.listen(host, port), self._loop)
        found = listening.result()
        secret = secrets.token_hex(16)
        self._tokens = TokenCheck(secret)
        pinned = tls.identity_fingerprint(identity) if identity else ""
        self.reply_to = f"{found} {secret} {pinned}".rstrip()

    def expect(self, call_id: str) -> "concurrent.futures.Future[Answer]":
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
        if (request.method, kind) != ("POST", "returns"):
            raise RefusedError("only results are taken here: POST /returns/ID")
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


async def post_result(entry: Entry, host: str, reply_to: str) -> None:
    """Post the outcome of a call to its caller; once it arrived, it is not kept."""
    port, secret, fingerprint, *_ = [*reply_to.split(), "", "", ""]
    if not port.isdecimal() or int(port) > 65535:
        return
    address = Address(host, int(port), bool(fingerprint), fingerprint or None)
    network = EventNetwork(address)
    try:
        outcome = await entry.wait()
        assert outcome is not None
        for attempt in range(POST_ATTEMPTS):
            if await _post(Requests(address, secret), network, entry.id, outcome):
                entry.hand_over()
                return
            await asyncio.sleep(0.2 * 2**attempt)
    except LostError:
        return  # It was fetched or cancelled meanwhile.
    finally:
        network.close()


async def _post(requests: Requests, network: Network, call_id: str, outcome: Outcome) -> bool:
    headers = {"axon-status": str(outcome.status), "content-type": outcome.content_type}
    try:
        transport = await requests.connect(network, time.monotonic() + POST_S)
        target = f"/returns/{call_id}"
        response = await requests.send(transport, "POST", target, headers, outcome.buffers)
        await requests.read_answer(network, transport, response)
    except (OSError, AxonError) as error:
        _log.info("call %s: posting its result failed: %s", call_id, error)
        return False
    if response.status == LostError.status:
        raise LostError(f"nobody waits for call {call_id} there")
    return response.status == 204

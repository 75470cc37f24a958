"""Posting duplex results to callers that listen for them."""

import asyncio
import logging
import time
from typing import Final

from melisma.axon.address import Address
from melisma.axon.codec.outcome import Outcome
from melisma.axon.server.ledger import CallEntry
from melisma.axon.transport.http_client import HttpClient
from melisma.axon.transport.pool import AsyncioPool, ConnectionPool
from melisma.errors import AxonError, LostError

_log = logging.getLogger("melisma.axon")
POST_ATTEMPTS: Final = 5
POST_S: Final = 300.0
"""The longest that one attempt may take; what was not posted is fetched."""


async def post_result(entry: CallEntry, host: str, reply_to: str) -> None:
    """Post the outcome of a call to its caller; once it arrived, it is not kept."""
    port, secret, fingerprint, *_ = [*reply_to.split(), "", "", ""]
    if not port.isdecimal() or int(port) > 65535:
        return
    address = Address(host, int(port), bool(fingerprint), fingerprint or None)
    pool = AsyncioPool(address)
    try:
        outcome = await entry.wait()
        assert outcome is not None
        for attempt in range(POST_ATTEMPTS):
            if await _post(HttpClient(address, secret), pool, entry.id, outcome):
                entry.discard_outcome()
                return
            await asyncio.sleep(0.2 * 2**attempt)
    except LostError:
        return  # It was fetched or cancelled meanwhile.
    finally:
        pool.close()


async def _post(http: HttpClient, pool: ConnectionPool, call_id: str, outcome: Outcome) -> bool:
    headers = {"axon-status": str(outcome.status), "content-type": outcome.content_type}
    try:
        transport = await http.connect(pool, time.monotonic() + POST_S)
        target = f"/callbacks/{call_id}"
        response = await http.send(transport, "POST", target, headers, outcome.buffers)
        await http.read_answer(pool, transport, response)
    except (OSError, AxonError) as error:
        _log.info("call %s: posting its result failed: %s", call_id, error)
        return False
    if response.status == LostError.status:
        raise LostError(f"nobody waits for call {call_id} there")
    return response.status == 204

"""Posting duplex results to callers that listen for them."""

import asyncio
import logging
import time
from typing import Final

from melisma.axon.address import Address
from melisma.axon.codec.outcome import Outcome
from melisma.axon.server.calls.ledger import CallEntry
from melisma.axon.transport.http_client import HttpClient
from melisma.axon.transport.pool import AsyncioPool, ConnectionPool
from melisma.errors import AxonError, LostError

_log = logging.getLogger("melisma.axon")
POST_ATTEMPTS: Final = 5
POST_TIMEOUT_S: Final = 300.0
"""Timeout of one attempt, in seconds. A result that cannot be posted waits to be fetched."""


async def post_result(entry: CallEntry, host: str, reply_to: str) -> None:
    """Post the outcome of a call to its caller, then discard it."""
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
        return  # The result was fetched, or the call was cancelled.
    finally:
        pool.close()


async def _post(http: HttpClient, pool: ConnectionPool, call_id: str, outcome: Outcome) -> bool:
    headers = {"axon-status": str(outcome.status), "content-type": outcome.content_type}
    try:
        transport = await http.connect(pool, time.monotonic() + POST_TIMEOUT_S)
        target = f"/callbacks/{call_id}"
        response = await http.send(transport, "POST", target, headers, outcome.buffers)
        await http.read_answer(pool, transport, response)
    except (OSError, AxonError) as error:
        _log.info("posting the result of call %s failed: %s", call_id, error)
        return False
    if response.status == LostError.status:
        raise LostError(f"the caller does not expect call {call_id}")
    return response.status == 204

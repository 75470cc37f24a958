"""Downloads of a worker's files, from any byte on."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from melisma.axon.client.remote import Connections, Remote
from melisma.axon.codec.outcome import error_from_json
from melisma.axon.transport.http import Response
from melisma.axon.transport.interface import Transport, close_on_error, run_blocking
from melisma.axon.transport.wire import read_bytes
from melisma.errors import MalformedError

PIECE_BYTES: Final = 1 << 16
"""Size of the pieces that `fetch` yields."""


def fetch(worker: Remote, name: str, start: int = 0) -> Iterator[bytearray]:
    """Yield the bytes of a worker's file from ``start`` on, in pieces.

    A broken connection raises an `OSError`; call again with the number of bytes received.
    """
    connections = worker._connections
    transport, response = run_blocking(_request_file(connections, name, start))
    with close_on_error(transport):
        if response.status == 416:
            run_blocking(read_bytes(transport, response.body_bytes))
        elif response.status not in (200, 206):
            raise error_from_json(
                response.status, run_blocking(read_bytes(transport, response.body_bytes))
            )
        elif start and response.status != 206:
            raise MalformedError(
                f"requested {name} from byte {start} on, but the server sent the whole file"
            )
        else:
            yield from _pieces(transport, response.body_bytes)
    if response.keep_alive:
        connections.socket_pool.release(transport)
    else:
        transport.close()


async def _request_file(
    connections: Connections, name: str, start: int
) -> tuple[Transport, Response]:
    http, target = connections.caller.http, f"/files/{quote(name, safe='')}"
    headers = {"range": f"bytes={start}-"} if start else {}
    try:
        transport = await http.connect(connections.socket_pool, None)
        return transport, await http.send(transport, "GET", target, headers, ())
    except ConnectionError:  # An idle connection may have been closed by the worker.
        connections.socket_pool.close()
        transport = await http.connect(connections.socket_pool, None)
        return transport, await http.send(transport, "GET", target, headers, ())


def _pieces(transport: Transport, left_bytes: int) -> Iterator[bytearray]:
    while left_bytes:
        piece = run_blocking(read_bytes(transport, min(left_bytes, PIECE_BYTES)))
        left_bytes -= len(piece)
        yield piece

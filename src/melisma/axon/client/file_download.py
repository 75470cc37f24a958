"""Downloading files of a worker by ``GET /files/NAME``, from any byte on."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from melisma.axon.client.remote import Line, Remote
from melisma.axon.codec.outcome import error_from_json
from melisma.axon.transport.http import Response
from melisma.axon.transport.interface import Transport, closed_on_error, run_blocking
from melisma.axon.transport.wire import read_bytes
from melisma.errors import MalformedError

PIECE_BYTES: Final = 1 << 16


def fetch(worker: Remote, name: str, start: int = 0) -> Iterator[bytearray]:
    """The bytes of a file of a worker from ``start`` on, piece by piece as they come.

    A broken connection raises an `OSError`: begin again where it ended.
    """
    line = worker._line
    transport, response = run_blocking(_asked(line, name, start))
    with closed_on_error(transport):
        if response.status == 416:
            run_blocking(read_bytes(transport, response.body_bytes))
        elif response.status not in (200, 206):
            raise error_from_json(
                response.status, run_blocking(read_bytes(transport, response.body_bytes))
            )
        elif start and response.status != 206:
            raise MalformedError(f"{name} was asked for from byte {start} on, and came whole")
        else:
            yield from _pieces(transport, response.body_bytes)
    if response.keep_alive:
        line.blocking.keep(transport)
    else:
        transport.close()


async def _asked(line: Line, name: str, start: int) -> tuple[Transport, Response]:
    requests, target = line.caller.requests, f"/files/{quote(name, safe='')}"
    headers = {"range": f"bytes={start}-"} if start else {}
    try:
        transport = await requests.connect(line.blocking, None)
        return transport, await requests.send(transport, "GET", target, headers, ())
    except ConnectionError:  # A kept connection may have gone stale.
        line.blocking.close()
        transport = await requests.connect(line.blocking, None)
        return transport, await requests.send(transport, "GET", target, headers, ())


def _pieces(transport: Transport, left_bytes: int) -> Iterator[bytearray]:
    while left_bytes:
        piece = run_blocking(read_bytes(transport, min(left_bytes, PIECE_BYTES)))
        left_bytes -= len(piece)
        yield piece

"""Files by plain GET, from where the caller left off.

A worker says which path a name stands for; what it does not name is not served. ``GET
/files/NAME`` answers with the bytes, ``Range: bytes=N-`` or ``bytes=N-M`` with a part of them, as
any HTTP client asks. Here `fetch` does.
"""

import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from melisma.axon.client.remote import Line, Remote
from melisma.axon.codec.message import Buffer
from melisma.axon.codec.outcome import error_from_json
from melisma.axon.server.http_server import Reply
from melisma.axon.transport.http import Request, Response
from melisma.axon.transport.interface import Transport, closed_on_error, run_blocking
from melisma.axon.transport.wire import read_bytes
from melisma.errors import MalformedError, RefusedError

FileNames = Callable[[str], Path | None]
BYTES_TYPE: Final = "application/octet-stream"
PIECE_BYTES: Final = 1 << 16
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?", re.ASCII)


def served(names: FileNames | None, name: str, request: Request) -> Reply:
    """The reply to ``GET /files/NAME``."""
    path = names(name) if names is not None else None
    try:
        content = _mapped(path) if path is not None else None
    except OSError:
        content = None
    if content is None:
        raise RefusedError(f"no file {name!r} here")
    size = len(content)
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted is None:
        return Reply(200, BYTES_TYPE, [content], {"accept-ranges": "bytes"})
    start, last = int(wanted[1]), min(int(wanted[2] or size), size - 1)
    if start > last:
        return Reply(416, BYTES_TYPE, headers={"content-range": f"bytes */{size}"})
    said = {"content-range": f"bytes {start}-{last}/{size}"}
    return Reply(206, BYTES_TYPE, [memoryview(content)[start : last + 1]], said)


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


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

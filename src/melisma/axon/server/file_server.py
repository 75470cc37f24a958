"""Files served by ``GET /files/NAME``, whole or by ``Range: bytes=N-`` and ``bytes=N-M``.

A worker maps names to paths by a function, which also gets the name of the caller; only files that
it returns are served.
"""

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from melisma.axon.codec.message import Buffer
from melisma.axon.server.exchange import Reply
from melisma.axon.transport.http import Request
from melisma.errors import RefusedError

FileLookup = Callable[[str, str], Path | None]
"""Returns the path of a name for a caller; None refuses it."""
BYTES_TYPE: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?", re.ASCII)


def serve_file(lookup: FileLookup | None, name: str, caller: str, request: Request) -> Reply:
    """Return the reply to ``GET /files/NAME``."""
    path = lookup(name, caller) if lookup is not None else None
    try:
        content = _map_file(path) if path is not None else None
    except OSError:
        content = None
    if content is None:
        raise RefusedError(f"no file {name!r} on this worker: check the name")
    size = len(content)
    byte_range = _RANGE.fullmatch(request.headers.get("range", ""))
    if byte_range is None:
        return Reply(200, BYTES_TYPE, [content], {"accept-ranges": "bytes"})
    start, last = int(byte_range[1]), min(int(byte_range[2] or size), size - 1)
    if start > last:
        return Reply(416, BYTES_TYPE, headers={"content-range": f"bytes */{size}"})
    headers = {"content-range": f"bytes {start}-{last}/{size}"}
    return Reply(206, BYTES_TYPE, [memoryview(content)[start : last + 1]], headers)


def _map_file(path: Path) -> Buffer:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

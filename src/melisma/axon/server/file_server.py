"""Files by plain GET, from where the caller left off.

A worker says which path a name stands for; what it does not name is not served. ``GET
/files/NAME`` answers with the bytes, ``Range: bytes=N-`` or ``bytes=N-M`` with a part of them, as
any HTTP client asks. Here `fetch` does.
"""

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from melisma.axon.codec.message import Buffer
from melisma.axon.server.http_server import Reply
from melisma.axon.transport.http import Request
from melisma.errors import RefusedError

FileLookup = Callable[[str], Path | None]
BYTES_TYPE: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?", re.ASCII)


def serve_file(names: FileLookup | None, name: str, request: Request) -> Reply:
    """The reply to ``GET /files/NAME``."""
    path = names(name) if names is not None else None
    try:
        content = _map_file(path) if path is not None else None
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


def _map_file(path: Path) -> Buffer:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

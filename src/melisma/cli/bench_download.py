"""Shards over a real socket, as slow as the link of an emulated device."""

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from melisma.fleet.emulation import Link
from melisma.learning.shards import Shard

PIECE = 1 << 16


class _Quiet(SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, *_: Any) -> None:
        """Not here."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address below which the files of a folder can be had, on this machine only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, name="shards", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetching(url: str, shards: list[Shard], link: Link | None) -> Callable[[int], int]:
    """Fetches a shard by its place in the list; how many bytes that were."""
    # Whatever proxy is set for the world outside is not for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def fetch(place: int) -> int:
        if link is not None:
            link.begin()
        total_bytes = 0
        with opener.open(f"{url}/{shards[place].sha256}") as answer:
            while piece := answer.read(PIECE):
                total_bytes += len(piece)
                if link is not None:
                    link.passed(len(piece))
        return total_bytes

    return fetch

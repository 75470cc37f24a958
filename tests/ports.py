"""The ports that the docs and the listings print: one process of the tests uses them at a time."""

import fcntl
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PRINTED_PORTS = (8000, 8001, 8002, 8443)
LOCK_FILE = Path(tempfile.gettempdir()) / "melisma-printed-ports.lock"


@contextmanager
def claimed_ports() -> Iterator[None]:
    """Wait until no other process of the tests uses the ports; fail if a stranger listens there."""
    with LOCK_FILE.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for port in PRINTED_PORTS:
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError as error:
                pytest.fail(f"port {port} is in use ({error}); stop the program that listens there")
        yield

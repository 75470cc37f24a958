"""Files that stay between runs, readable by their owner alone.

::

    orchestrator/    identity.pem, learners.json, running.json
    device/          identity.pem, orchestrators.json, join.pid
    peers/           NAME.key of each node

They are in ``MELISMA_HOME``, by default in the user's data folder. Each is written atomically.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma.atomic import write_atomic
from melisma.axon.transport.tls import data_folder
from melisma.errors import SettingError


def orchestrator_folder() -> Path:
    """Return the state folder of this machine's orchestrator; create it if it is missing."""
    return restrict_folder(data_folder() / "orchestrator")


def device_folder() -> Path:
    """Return the state folder of this machine as a device; create it if it is missing."""
    return restrict_folder(data_folder() / "device")


def peers_folder() -> Path:
    """Return the folder of the keys of this user's nodes; create it if it is missing."""
    return restrict_folder(data_folder() / "peers")


def restrict_folder(folder: Path) -> Path:
    """Let only its owner enter a folder, which is created if it is missing, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise SettingError(
            f"cannot create {folder} ({error.strerror}): set MELISMA_HOME to a folder of your own"
        ) from error
    return folder


def write_state(path: Path, content: bytes | str) -> Path:
    """Write a whole file that only its owner may read, atomically."""
    return write_atomic(path, content, 0o600)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file inside a ``with``, against other processes and threads."""
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def try_lock(path: Path, kind: int) -> Iterator[bool]:
    """Hold the lock of a file inside a ``with`` if it is free; yield whether it was.

    `kind` is `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
    """
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)

"""The orchestrator that runs on this machine now: its address and the owner's token.

A running orchestrator writes ``running.json``, so that `melisma status` finds it and may ask. It
holds the lock of the file: without the lock, the file is that of one that was killed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from melisma.errors import SettingError
from melisma.live.state_folder import orchestrator_folder, write_private


class RunningOrchestrator(msgspec.Struct, frozen=True):
    """Address, owner's token, process id and run of an orchestrator."""

    address: str
    owner_token: str
    pid: int
    run: str


@contextmanager
def announce_running(
    address: str, owner_token: str, run: str, folder: Path | None = None
) -> Iterator[None]:
    """Write ``running.json`` inside a ``with``; raise `SettingError` if another one is running."""
    path = _path(folder)
    with _try_lock(path, fcntl.LOCK_EX) as locked:
        if not locked:
            raise SettingError(
                f"another orchestrator is running with {path}: end it first, or set MELISMA_HOME "
                "to another folder"
            )
        own = RunningOrchestrator(address, owner_token, os.getpid(), run)
        write_private(path, msgspec.json.encode(own))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def find_running(folder: Path | None = None) -> RunningOrchestrator | None:
    """Return the orchestrator that runs on this machine; None if there is none."""
    path = _path(folder)
    if not path.exists():
        return None
    with _try_lock(path, fcntl.LOCK_SH) as locked:
        if locked:
            return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunningOrchestrator)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


@contextmanager
def _try_lock(path: Path, kind: int) -> Iterator[bool]:
    """Hold the lock of a file inside a ``with`` if it is free; yield whether it was."""
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


def _path(folder: Path | None) -> Path:
    return (folder or orchestrator_folder()) / "running.json"

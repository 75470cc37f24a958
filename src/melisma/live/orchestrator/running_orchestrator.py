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
from melisma.live.state_folder import orchestrator_folder, try_lock, write_state


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
    with try_lock(path, fcntl.LOCK_EX) as locked:
        if not locked:
            raise _another_running(path)
        own = RunningOrchestrator(address, owner_token, os.getpid(), run)
        write_state(path, msgspec.json.encode(own))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def require_none_running(folder: Path | None = None) -> None:
    """Raise `SettingError` if an orchestrator runs on this machine with the same folder."""
    if find_running(folder) is not None:
        raise _another_running(_path(folder))


def find_running(folder: Path | None = None) -> RunningOrchestrator | None:
    """Return the orchestrator that runs on this machine; None if there is none."""
    path = _path(folder)
    if not path.exists():
        return None
    with try_lock(path, fcntl.LOCK_SH) as locked:
        if locked:
            return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunningOrchestrator)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def require_running(folder: Path | None = None) -> RunningOrchestrator:
    """Return the orchestrator that runs on this machine; `SettingError` if there is none."""
    running = find_running(folder)
    if running is None:
        raise SettingError(
            "no orchestrator is running on this machine for this user: start one with "
            "melisma orchestrate TASK.toml"
        )
    return running


def _another_running(path: Path) -> SettingError:
    return SettingError(
        f"another orchestrator is running with {path}: end it first, or set MELISMA_HOME to "
        "another folder and use another --port"
    )


def _path(folder: Path | None) -> Path:
    return (folder or orchestrator_folder()) / "running.json"

"""The identity of this device, and the orchestrators that it has joined.

``identity.pem`` holds a key that the device made and its certificate; the key never leaves it.
``orchestrators.json`` maps the fingerprint of each orchestrator to its addresses and to the name
that it gave the device, so that a device can join again without a join string. ``join.pid`` is the
process that takes part in runs with this identity now, which holds the lock of the file.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from melisma.axon import create_identity
from melisma.errors import SettingError
from melisma.live.state_folder import device_folder, file_lock, try_lock, write_state


class KnownOrchestrator(msgspec.Struct, frozen=True):
    """An orchestrator that this device has joined.

    `addresses` are those of Axon with the fingerprint, the one that was reached last first; `name`
    is this device's.
    """

    fingerprint: str
    addresses: tuple[str, ...]
    name: str


class DeviceState:
    """The files of this device, by default in the user's data folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or device_folder()
        self._orchestrators = self._folder / "orchestrators.json"
        self.identity = self._folder / "identity.pem"
        """The file to pass to `axon.connect` as `certificate`."""
        self.created = False
        """Whether the identity was created by this object."""

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Use this device for one process alone inside a ``with``; `SettingError` if another does.

        Two sessions with one identity would replace each other.
        """
        path = self._folder / "join.pid"
        with try_lock(path, fcntl.LOCK_EX) as locked:
            if not locked:
                process = path.read_text() if path.exists() else "unknown"
                raise SettingError(
                    f"melisma join already runs here, process {process}: end it first, or set "
                    "MELISMA_HOME to another folder for a second device"
                )
            write_state(path, str(os.getpid()))
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def create_identity(self) -> str:
        """Create key and certificate if there are none; return the fingerprint."""
        self.created |= not self.identity.exists()
        return create_identity(self.identity)

    def replace_identity(self) -> str:
        """Create a new identity and forget the orchestrators that knew the old one."""
        with file_lock(self._orchestrators):
            self.identity.unlink(missing_ok=True)
            self._orchestrators.unlink(missing_ok=True)
            return self.create_identity()

    def orchestrators(self) -> list[KnownOrchestrator]:
        """Return the orchestrators that this device has joined, the latest first."""
        try:
            content = self._orchestrators.read_bytes()
            return msgspec.json.decode(content, type=list[KnownOrchestrator])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            raise SettingError(
                f"cannot read {self._orchestrators} ({error}): delete it and join again"
            ) from error

    def remember(self, fingerprint: str, addresses: Sequence[str], name: str) -> None:
        """Store an orchestrator that this device has joined, in place of earlier details."""
        with file_lock(self._orchestrators):
            others = [item for item in self.orchestrators() if item.fingerprint != fingerprint]
            known = [KnownOrchestrator(fingerprint, tuple(addresses), name), *others]
            content = msgspec.json.format(msgspec.json.encode(known), indent=2)
            write_state(self._orchestrators, content)

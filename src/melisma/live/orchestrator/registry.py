"""The registry of an orchestrator: the devices that may be learners, by their certificates.

``learners.json`` maps the fingerprint of each certificate to the name of its learner. Several
processes may use it at once, such as a running orchestrator and `melisma revoke`: changes are made
under a lock, and each look-up reads the file again if it has changed.
"""

import re
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from melisma.axon.server.authentication import ANONYMOUS, OWNER
from melisma.errors import RefusedError, SettingError, suggest
from melisma.live.state_folder import file_lock, orchestrator_folder, write_state

MAX_NAME_CHARS: Final = 40
MAX_ENROLLED: Final = 10_000
"""Devices in one registry; a leaked join token cannot fill the disk."""
RESERVED_NAMES: Final = frozenset({OWNER, ANONYMOUS})
_NAME: Final = re.compile(rf"\w[\w.-]{{0,{MAX_NAME_CHARS - 1}}}", re.ASCII)
_FINGERPRINT = "^sha256:[0-9a-f]{64}$"


class EnrolledLearner(msgspec.Struct, frozen=True):
    """A device in the registry.

    `enrolled_at` and `revoked_at` are seconds since 1970; `host` is the one that it last registered
    or enrolled from. A revoked device stays in the registry, so that it cannot enrol again.
    """

    name: str
    fingerprint: Annotated[str, Meta(pattern=_FINGERPRINT)]
    enrolled_at: float
    host: str | None = None
    revoked_at: float | None = None

    @property
    def revocation(self) -> str:
        """The answer to a call of this device after it was revoked."""
        return (
            f"the identity of {self.name} was revoked: ask the owner of the orchestrator, "
            "then use melisma join --new-identity STRING"
        )


class Registry:
    """The learners in a file, by default that of this machine's orchestrator."""

    def __init__(self, path: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._path = path or orchestrator_folder() / "learners.json"
        self._now = now
        self._version: tuple[int, int, int] | None = None
        self._by_fingerprint: dict[str, EnrolledLearner] = {}

    def find(self, fingerprint: str) -> EnrolledLearner | None:
        """Return the device with this certificate, revoked or not; None if it is unknown."""
        self._read_if_changed()
        return self._by_fingerprint.get(fingerprint)

    def learners(self) -> list[EnrolledLearner]:
        """Return the devices that are enrolled and not revoked, in the order of their names."""
        return [item for item in self.all_learners() if item.revoked_at is None]

    def all_learners(self) -> list[EnrolledLearner]:
        """Return all devices in the order of their names, revoked ones last."""
        self._read_if_changed()
        known = self._by_fingerprint.values()
        return sorted(known, key=lambda item: (item.revoked_at is not None, item.name))

    def get(self, name: str) -> EnrolledLearner:
        """Return the device with this name; raise `SettingError` with the nearest name."""
        learners = {item.name: item for item in self.learners()}
        if name not in learners:
            hint = suggest(name, learners) if learners else "no device has joined yet"
            raise SettingError(f"unknown learner {name!r}: {hint}")
        return learners[name]

    def add(
        self,
        fingerprint: str,
        name: str,
        host: str | None = None,
        taken: Collection[str] = (),
    ) -> EnrolledLearner:
        """Enrol a device and return its entry; an enrolled device keeps its name.

        Characters that a name cannot have are replaced, and a name that is in use or in `taken`
        gets a number: `pi`, `pi-2`. Raises `RefusedError` for a revoked certificate.
        """
        with file_lock(self._path):
            known = self.find(fingerprint)
            if known is not None and known.revoked_at is not None:
                raise RefusedError(
                    f"the identity of {known.name} was revoked: use melisma join STRING "
                    "--new-identity"
                )
            if known is None and len(self._by_fingerprint) >= MAX_ENROLLED:
                raise RefusedError(
                    f"the registry has {MAX_ENROLLED} devices, the most that it can have: delete "
                    "learners.json on the orchestrator to begin anew"
                )
            if known is None:
                unique = unique_name(clean_name(name), self._names().union(taken))
                known = EnrolledLearner(unique, fingerprint, self._now(), host)
                self._write(known)
        return known

    def revoke(self, name: str) -> EnrolledLearner:
        """Refuse a device from its next request on, and return its entry."""
        with file_lock(self._path):
            revoked = msgspec.structs.replace(self.get(name), revoked_at=self._now())
            self._write(revoked)
        return revoked

    def rename(self, name: str, new_name: str) -> EnrolledLearner:
        """Give a device another name, which holds from the next run on, and return its entry."""
        if not _NAME.fullmatch(new_name) or new_name in RESERVED_NAMES:
            raise SettingError(
                f"{new_name!r} is not a name for a learner: use up to {MAX_NAME_CHARS} of a-z, "
                f"A-Z, 0-9, . _ -, and none of {', '.join(sorted(RESERVED_NAMES))}"
            )
        with file_lock(self._path):
            learner = self.get(name)
            if new_name != name and new_name in self._names():
                raise SettingError(f"another learner has the name {new_name!r}: choose another one")
            renamed = msgspec.structs.replace(learner, name=new_name)
            self._write(renamed)
        return renamed

    def record_host(self, fingerprint: str, host: str | None) -> None:
        """Record the host that a device registered from."""
        known = self.find(fingerprint)
        if known is None or host in (None, known.host):
            return
        with file_lock(self._path):
            if (known := self.find(fingerprint)) is not None:
                self._write(msgspec.structs.replace(known, host=host))

    def _names(self) -> set[str]:
        """Return all names in use; that of a revoked device may be given again."""
        return {item.name for item in self.learners()}

    def _write(self, changed: EnrolledLearner) -> None:
        learners = self._by_fingerprint | {changed.fingerprint: changed}
        content = msgspec.json.encode({"format": 1, "learners": list(learners.values())})
        write_state(self._path, msgspec.json.format(content, indent=2))

    def _read_if_changed(self) -> None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._version, self._by_fingerprint = None, {}
            return
        # Each write creates a new file, so that one of these differs.
        version = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if version != self._version:
            learners = self._read()
            self._version = version
            self._by_fingerprint = {item.fingerprint: item for item in learners}

    def _read(self) -> list[EnrolledLearner]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_RegistryFile).learners
        except (OSError, msgspec.DecodeError) as error:
            raise SettingError(
                f"cannot read the registry {self._path} ({error}): restore the file, or delete it "
                "to let all devices join again"
            ) from error


class _RegistryFile(msgspec.Struct, frozen=True):
    format: Annotated[int, Meta(ge=1, le=1)]
    learners: list[EnrolledLearner]


def clean_name(name: str) -> str:
    """Return a name that a learner may have, from what a device calls itself."""
    cleaned = re.sub(r"[^\w.-]+", "-", name[:200], flags=re.ASCII).strip("-.")[:MAX_NAME_CHARS]
    return cleaned if _NAME.fullmatch(cleaned) else "device"


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number if it is reserved or in `taken`: `pi`, `pi-2`."""
    unique, number = name, 1
    while unique in taken or unique in RESERVED_NAMES:
        number += 1
        suffix = f"-{number}"
        unique = name[: MAX_NAME_CHARS - len(suffix)] + suffix
    return unique

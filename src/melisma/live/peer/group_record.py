"""The file from which a killed group of nodes on this machine resumes."""

from pathlib import Path
from typing import Final

import msgspec

from melisma.atomic import write_atomic
from melisma.errors import DataError, SettingError
from melisma.peer.group import Peers
from melisma.runs.folder import GROUP_FILE

VERSION: Final = 1


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a group; `private_keys` are in the order of nodes."""

    peers: Peers
    file: str | None
    score_every: int
    tls: bool
    token: str
    private_keys: list[str]
    start_unix_s: float
    version: int = VERSION


def write_group(folder: Path, record: GroupRecord) -> None:
    """Write the record of a new run; only its owner may read it."""
    write_atomic(folder / GROUP_FILE, msgspec.json.encode(record), mode=0o600)


def read_group(folder: Path) -> GroupRecord:
    """Return the record of a run; raise `SettingError` without one, `DataError` if damaged."""
    path = folder / GROUP_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingError(
            f"cannot read {path} ({error.strerror}): expected the folder of `melisma peers run`"
        ) from error
    try:
        record = msgspec.json.decode(content, type=GroupRecord)
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; restore it from a copy") from error
    if record.version != VERSION:
        raise DataError(
            f"{path} has format version {record.version}, but this version of Melisma reads "
            f"{VERSION}; resume the run with the version that wrote it"
        )
    return record

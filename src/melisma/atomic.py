"""Atomic file writes: a crash or a power cut leaves the old file or the new one, whole."""

import os
import secrets
from pathlib import Path

from melisma.private_files import FOLDER_MODE


def write_atomic(path: Path | str, content: bytes | str, mode: int = 0o666) -> Path:
    """Write a whole file and return its path; text is encoded as UTF-8.

    `mode` is that of the new file, less the process's umask: 0o600 for its owner alone, and then a
    folder created for it is private too.

    The content goes to a temporary file in the same folder, which is flushed to disk and then
    renamed; when this returns, the new name is on disk, too. Missing parent folders are created. A
    write that fails removes the temporary file and leaves `path` as it was.
    """
    target = Path(path)
    make_durable_folder(target.parent, FOLDER_MODE if not mode & 0o077 else 0o777)
    # Two writers of one file, in threads or processes, never share a temporary file.
    part = target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        replace_durably(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def replace_durably(part: Path, target: Path) -> None:
    """Rename a file, in the same folder, whose content is on disk; return when its name is, too."""
    part.replace(target)
    sync_folder(target.parent)


def make_durable_folder(path: Path, mode: int = FOLDER_MODE) -> Path:
    """Create a folder, by default for its owner alone, and return it when its name is on disk.

    Missing parent folders are created; the mode of a folder that exists stays.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)
    return path


def sync_folder(folder: Path) -> None:
    """Return when the names of all files of a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

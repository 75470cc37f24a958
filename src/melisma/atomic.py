"""Atomic file writes: a crash leaves the old file or the new one, never a part of it."""

import os
import secrets
from pathlib import Path

from melisma.private_files import make_private_folder


def write_atomic(path: Path | str, content: bytes | str, mode: int = 0o666) -> Path:
    """Write a whole file and return its path; text is encoded as UTF-8.

    `mode` is that of the new file, less the process's umask: 0o600 for its owner alone, and then a
    folder created for it is private too.

    The content goes to a temporary file in the same folder, which is flushed to disk and then
    renamed; missing parent folders are created. A write that fails removes the temporary file and
    leaves `path` as it was.
    """
    target = Path(path)
    if mode & 0o077:
        target.parent.mkdir(parents=True, exist_ok=True)
    else:
        make_private_folder(target.parent)
    # Two writers of one file, in threads or processes, never share a temporary file.
    part = target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target

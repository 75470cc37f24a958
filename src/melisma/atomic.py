"""Atomic file writes: a crash leaves the old file or the new one, never a part of it."""

import os
import secrets
from pathlib import Path


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Write a whole file and return its path; text is encoded as UTF-8.

    The content goes to a temporary file in the same folder, which is flushed to disk and then
    renamed; missing parent folders are created. A write that fails removes the temporary file and
    leaves `path` as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Two writers of one file, in threads or processes, never share a temporary file.
    part = target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target

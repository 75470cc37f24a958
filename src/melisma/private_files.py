"""Folders and files that only their owner may read, whatever the umask is."""

import os
from pathlib import Path
from typing import BinaryIO, Literal

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def make_private_folder(path: Path) -> Path:
    """Create a folder for its owner alone, and return it; the mode of one that exists stays."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    return path


def open_private(path: Path, mode: Literal["wb", "xb", "ab"]) -> BinaryIO:
    """Open a file for writing; if it is new, only its owner may read it."""
    return open(path, mode, opener=_open)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, if it is new."""
    with open_private(path, "wb") as file:
        file.write(content)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)

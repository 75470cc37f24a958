"""Secrets of the command line, hidden from the list of processes that all users may read."""

import ctypes
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/self/stat")
_ARGUMENTS_FIELD: Final = 45
"""The place of the start of the arguments in memory, after the state; the end follows it."""


def hide_argument(secret: str) -> bool:
    """Overwrite an argument of this process with asterisks; return whether it was found.

    Only Linux says where the arguments are; elsewhere nothing happens.
    """
    try:
        # The name of the command, in parentheses, may contain spaces.
        fields = _STAT.read_text().rpartition(")")[2].split()
        start, end = (int(field) for field in fields[_ARGUMENTS_FIELD : _ARGUMENTS_FIELD + 2])
    except (OSError, ValueError):
        return False
    arguments = ctypes.string_at(start, end - start) if end > start > 0 else b""
    place = arguments.find(b"\0" + secret.encode() + b"\0")
    if place < 0:
        return False
    ctypes.memset(start + place + 1, ord("*"), len(secret.encode()))
    return True

"""A disk that is full for a moment: what cannot be written yet is written again."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from melisma.runs.folder import FULL_DISK

T = TypeVar("T")
PATIENCE_S: Final = 30.0
"""The time for which space on the disk is awaited."""
PAUSE_S: Final = 0.25
WAITING: Final = f"the disk is full: waiting up to {PATIENCE_S:g} s for space"


def wait_for_space(write: Callable[[], T], on_note: Callable[[str], None]) -> T:
    """Call a function that writes files; while the disk is full, again for up to `PATIENCE_S`."""
    ends_at = time.monotonic() + PATIENCE_S
    was_noted = False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL_DISK or time.monotonic() > ends_at:
                raise
        if not was_noted:
            on_note(WAITING)
            was_noted = True
        time.sleep(PAUSE_S)

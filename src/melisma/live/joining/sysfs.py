"""Values that the Linux kernel shows in files of one line."""

from pathlib import Path


def read_word(path: Path) -> str:
    """Return the content of a file; empty if it is missing or cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def read_number(path: Path) -> float | None:
    """Return the number in a file; None if there is none."""
    try:
        return float(read_word(path))
    except ValueError:
        return None

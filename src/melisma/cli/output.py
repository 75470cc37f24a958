"""Standard output, which is a terminal, a file, or a pipe that may be closed; and exit codes."""

import os
import sys
from typing import Any, NoReturn

import msgspec
from rich.console import Console, RenderableType

from melisma.errors import MelismaError

# In narrower terminals lines wrap; nothing is cut off.
MIN_WIDTH, UNLIMITED_WIDTH = 60, 10_000
# By the outcome of a run; every other outcome is a failure.
EXIT_CODES = {"finished": 0, "reached goal": 0, "cancelled": 130}
FAILURE_CODE = 1


def write(view: RenderableType | str) -> None:
    """Print a view or a text; characters that the output cannot encode are escaped."""
    if sys.stdout is None:
        raise MelismaError("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text = view if isinstance(view, str) else _render(view)
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        # Without this, flushing the rest of the buffer at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that closes its pipe early, as `head` does, is no error.
        if not isinstance(error, BrokenPipeError):
            raise MelismaError(f"standard output: {error.strerror}") from error


def write_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    write(msgspec.json.encode(value).decode() + "\n")


def has_live_terminal() -> bool:
    """Return whether standard output is a terminal in which lines can be replaced."""
    return sys.stdout is not None and sys.stdout.isatty() and not Console().is_dumb_terminal


def exit_with(outcome: str) -> NoReturn:
    """Exit with the code for the outcome of a run."""
    sys.exit(EXIT_CODES.get(outcome, FAILURE_CODE))


def _render(view: RenderableType) -> str:
    """Wrap lines at the width of the terminal or COLUMNS; elsewhere do not wrap."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    # Print names literally, with brackets and colons.
    console = Console(
        highlight=False, markup=False, emoji=False, width=None if has_width else UNLIMITED_WIDTH
    )
    console.width = max(console.width, MIN_WIDTH)
    with console.capture() as captured:
        console.print(view)
    return captured.get()

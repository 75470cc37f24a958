"""Text for standard output, whatever that is: a terminal, a file, a pipe that someone closes."""

import os
import sys

from rich.console import Console, RenderableType

from melisma.errors import MelismaError

# In narrower terminals lines run over; nothing is cut off.
LEAST_WIDTH, PAGE_WIDTH = 60, 10_000


def write(view: RenderableType | str) -> None:
    """Print it all; characters that the output cannot show are escaped."""
    if sys.stdout is None:
        raise MelismaError("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text = view if isinstance(view, str) else _drawn(view)
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Who closes a pipe, as `head` does, has seen enough.
        if not isinstance(error, BrokenPipeError):
            raise MelismaError(f"standard output: {error.strerror}") from error


def _drawn(view: RenderableType) -> str:
    """As wide as the terminal or COLUMNS; anywhere else lines are as long as they are."""
    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    # Names are printed as they are, brackets and colons too.
    console = Console(
        highlight=False, markup=False, emoji=False, width=None if sized else PAGE_WIDTH
    )
    console.width = max(console.width, LEAST_WIDTH)
    with console.capture() as captured:
        console.print(view)
    return captured.get()

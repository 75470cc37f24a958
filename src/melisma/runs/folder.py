"""The folder of a run: its own, and the trace in it."""

from pathlib import Path
from typing import BinaryIO

from melisma.errors import SettingError
from melisma.runs.report import TRACE_FILE
from melisma.runs.trace import Step, encode_step


def create_run_folder(folder: str | Path) -> Path:
    """A folder of the run's own: nothing is written over."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SettingError(f"{folder} is not empty; a run needs a folder of its own")
    except OSError as error:
        raise SettingError(f"{folder} cannot hold a run: {error.strerror}") from error
    return folder.resolve()


class TraceFile:
    """The trace as it grows, line by line; the file begins with the first."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TRACE_FILE
        self._file: BinaryIO | None = None

    def write(self, step: Step) -> None:
        """One more line, which is on its way to the disk when this returns."""
        if self._file is None:
            self._file = self._path.open("xb")
        self._file.write(encode_step(step))
        self._file.flush()

    def close(self) -> None:
        """There is no more."""
        if self._file is not None:
            self._file.close()

"""The trace of a run: one JSON line for each step, with the event and the resulting commands.

A report or picture of a run can be made from its trace alone. The first line of a file is a header
with the version of the format. A killed run leaves at most its last line torn; reading skips it.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar, get_args

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.errors import DataError
from melisma.private_files import open_private
from melisma.runs.folder import TRACE_FILE

StepT = TypeVar("StepT")
VERSION = 2  # changes when older readers would misread a trace


class Step(msgspec.Struct, frozen=True, eq=False):
    """An event and the commands that the machine returned for it."""

    event: events.AnyEvent
    commands: list[commands.AnyCommand]


class Header(msgspec.Struct, frozen=True):
    """The first line of a trace file."""

    format: Literal["melisma-trace"]
    version: int


def _to_list(array: Any) -> Any:
    return array.tolist()


def _to_array(kind: Any, values: Any) -> Any:
    """Decode a list to an array; NaN is encoded as null."""
    _, dtype = get_args(kind)
    return np.array(values, dtype=get_args(dtype)[0])


class StepCodec(Generic[StepT]):
    """Steps of one type as lines of JSON."""

    def __init__(self, kind: type[StepT]) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=_to_list)
        self._decoder = msgspec.json.Decoder(kind, dec_hook=_to_array)

    def encode(self, step: StepT) -> bytes:
        """Encode one step as a line."""
        return self._encoder.encode(step) + b"\n"

    def decode(self, lines: Iterable[bytes], name: str, start: int = 1) -> Iterator[StepT]:
        """Decode lines to steps; `DataError` names an invalid line. A torn last one is skipped."""
        for number, line in enumerate(lines, start):
            if not line.endswith(b"\n"):
                return
            try:
                yield self._decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise DataError(f"{name}, line {number}: {error}") from None


STEPS = StepCodec(Step)
HEADER_LINE = msgspec.json.encode(Header("melisma-trace", VERSION)) + b"\n"


def encode_step(step: Step) -> bytes:
    """Encode one step as a line."""
    return STEPS.encode(step)


def decode_steps(lines: Iterable[bytes], name: str = "trace", start: int = 1) -> Iterator[Step]:
    """Decode lines to steps; `DataError` names an invalid line. A torn last line is skipped."""
    return STEPS.decode(lines, name, start)


def check_header(line: bytes, name: str) -> None:
    """Raise `DataError` unless a line is the header of a trace that this version can read."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError:
        expected = HEADER_LINE.decode().strip()
        raise DataError(f"{name} is not a trace: its first line is not {expected}") from None
    if header.version != VERSION:
        raise DataError(
            f"{name} has format version {header.version}, but this version of Melisma reads "
            f"{VERSION}; read it with the version that wrote it"
        )


def write_trace(path: Path, steps: Iterable[Step]) -> None:
    """Write a whole trace."""
    path.write_bytes(HEADER_LINE + b"".join(map(encode_step, steps)))


def read_trace(path: Path) -> list[Step]:
    """Read the steps of a trace, whole or cut off; `DataError` if it is not a trace."""
    with path.open("rb") as file:
        check_header(file.readline(), str(path))
        return list(decode_steps(file, str(path), start=2))


class TraceFile:
    """A trace that grows step by step; the file is created with the first one.

    After a write that failed, the trace ends: later steps are not written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TRACE_FILE
        self._file: BinaryIO | None = None
        self._failed = False

    def write(self, step: Step) -> None:
        """Append one step and flush it to the operating system."""
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = open_private(self._path, "xb")
                self._file.write(HEADER_LINE)
            self._file.write(encode_step(step))
            self._file.flush()
        except OSError:
            self._failed = True
            raise

    def close(self) -> None:
        """Close the file, if it was created."""
        if self._file is None:
            return
        # A failed write stays in the buffer, and fails again.
        with suppress(OSError) if self._failed else nullcontext():
            self._file.close()

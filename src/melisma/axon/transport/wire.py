"""Receiving messages, each frame directly into its final memory."""

import mmap
import os
import tempfile
from typing import Final

from melisma.axon.codec.message import (
    PRELUDE,
    Message,
    frame_gaps,
    parse_message,
    read_prelude,
)
from melisma.axon.transport.interface import Transport
from melisma.errors import MalformedError, StorageError, TooLargeError

SPOOL_BYTES: Final = 256 << 10
"""Frames of less than this size in total are received in memory."""


async def read_message(
    transport: Transport, message_bytes: int, max_tree_bytes: int, *, spool: bool = False
) -> Message:
    """Receive one message; memory is allocated only after its sizes are checked.

    ``spool``: receive frames of `SPOOL_BYTES` or more in total into a mapped temporary file, whose
    pages the system writes to disk when it needs the memory.
    """
    if message_bytes < PRELUDE.size:
        raise MalformedError(f"a message has at least {PRELUDE.size} bytes, not {message_bytes}")
    if transport.buffered_bytes >= message_bytes:
        return parse_message(transport.take_buffered(message_bytes), max_tree_bytes)
    first = await read_bytes(transport, PRELUDE.size)
    prelude = read_prelude(first, message_bytes, max_tree_bytes)
    rest = await _read_frame(transport, 0, prelude.rest_bytes)
    table_bytes = 8 * prelude.frame_count
    gaps = frame_gaps(prelude, rest[:table_bytes], message_bytes)
    frames_bytes = message_bytes - PRELUDE.size - prelude.rest_bytes
    if spool and frames_bytes >= SPOOL_BYTES:
        return Message(rest[table_bytes:], await _spool_frames(transport, gaps, frames_bytes))
    frames = [await _read_frame(transport, gap, frame_bytes) for gap, frame_bytes in gaps]
    return Message(rest[table_bytes:], frames)


async def read_bytes(transport: Transport, count: int) -> bytearray:
    """Receive exactly ``count`` bytes."""
    data = bytearray(count)
    await transport.read_into(memoryview(data))
    return data


async def discard(transport: Transport, count: int) -> None:
    """Receive and discard ``count`` bytes."""
    scratch = memoryview(bytearray(min(count, 1 << 16)))
    while count:
        part = scratch[: min(count, scratch.nbytes)]
        await transport.read_into(part)
        count -= part.nbytes


async def _read_frame(transport: Transport, gap: int, frame_bytes: int) -> memoryview:
    from melisma.axon.codec.arrays import allocate_frame

    await discard(transport, gap)
    try:
        frame = allocate_frame(frame_bytes)
    except MemoryError:
        raise TooLargeError(f"not enough memory for an array of {frame_bytes} bytes") from None
    await transport.read_into(frame)
    return frame


async def _spool_frames(
    transport: Transport, gaps: list[tuple[int, int]], frames_bytes: int
) -> list[memoryview]:
    """Receive all frames into one file; they keep their alignment."""
    first_gap = gaps[0][0]
    await discard(transport, first_gap)
    region = _map_file(frames_bytes - first_gap)
    await transport.read_into(region)
    frames, position = [], -first_gap
    for gap, frame_bytes in gaps:
        position += gap
        frames.append(region[position : position + frame_bytes])
        position += frame_bytes
    return frames


def _map_file(size: int) -> memoryview:
    """Map an unnamed temporary file, which vanishes with the last view of it."""
    try:
        with tempfile.TemporaryFile() as file:
            # Without blocks on disk, writing to the mapping would end the process by a signal.
            os.posix_fallocate(file.fileno(), 0, size)
            return memoryview(mmap.mmap(file.fileno(), size))
    except OSError as error:
        raise StorageError(
            f"no space for a request of {size} bytes: {error.strerror} in {tempfile.gettempdir()}; "
            "free space there, or set TMPDIR to another directory"
        ) from error

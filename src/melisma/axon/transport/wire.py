"""Receiving messages, each frame directly into its final memory."""

from melisma.axon.codec.message import (
    PRELUDE,
    Message,
    frame_gaps,
    parse_message,
    read_prelude,
)
from melisma.axon.transport.interface import Transport
from melisma.errors import MalformedError, TooLargeError


async def read_message(transport: Transport, message_bytes: int, max_tree_bytes: int) -> Message:
    """Receive one message; memory is allocated only after its sizes are checked."""
    if message_bytes < PRELUDE.size:
        raise MalformedError(f"a message has at least {PRELUDE.size} bytes, not {message_bytes}")
    if transport.buffered_bytes >= message_bytes:
        return parse_message(transport.take_buffered(message_bytes), max_tree_bytes)
    first = await read_bytes(transport, PRELUDE.size)
    prelude = read_prelude(first, message_bytes, max_tree_bytes)
    rest = await _read_frame(transport, 0, prelude.rest_bytes)
    table_bytes = 8 * prelude.frame_count
    gaps = frame_gaps(prelude, rest[:table_bytes], message_bytes)
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

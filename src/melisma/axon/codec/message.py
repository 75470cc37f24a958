"""The layout of one message: a small tree, then raw frames.

::

    "AXN1"  magic and version, 4 bytes
    u32     tree bytes          (all integers little-endian)
    u32     number of frames
    u64     bytes of each frame
    tree    msgpack, with the extension types of the codec
    frames  raw bytes, each starting at a multiple of 64 from the start of the message

The sizes stand in front, so that a receiver checks them against the length of the body before
it allocates anything, and then receives each frame straight into the memory of its array.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from melisma.errors import MalformedError, TooLargeError

MESSAGE_TYPE: Final = "application/x-axon"
MAGIC: Final = b"AXN1"
ALIGNMENT: Final = 64
MAX_FRAMES: Final = 1 << 20
MAX_TREE_BYTES: Final = (1 << 32) - 1
"""What the format has room for; a worker's own limit is lower."""
PRELUDE: Final = struct.Struct("<4sII")

Buffer = bytes | bytearray | memoryview


class Message(msgspec.Struct, frozen=True):
    """A tree and its frames, as they stand on the wire."""

    tree: Buffer
    frames: Sequence[memoryview] = ()


class Prelude(msgspec.Struct, frozen=True):
    """The first twelve bytes, read and checked against the length of the whole."""

    tree_bytes: int
    frame_count: int

    @property
    def rest_bytes(self) -> int:
        """Bytes of the frame table and the tree, which follow."""
        return 8 * self.frame_count + self.tree_bytes


def describe_part(part: object) -> str:
    """A part of a message as an error says it: in short, and never by what was built from it."""
    plain = isinstance(part, str | bytes | int | float | None)
    return repr(part)[:80] if plain else f"a {type(part).__name__}"


def padding(position: int) -> int:
    """Bytes from ``position`` to the next multiple of the alignment."""
    return -position % ALIGNMENT


def read_prelude(data: Buffer, message_bytes: int, max_tree_bytes: int) -> Prelude:
    """Check the first bytes of a message that is ``message_bytes`` long in all."""
    magic, tree_bytes, frame_count = PRELUDE.unpack(data)
    if magic != MAGIC:
        raise MalformedError(
            f"a message starts with {MAGIC!r} (format version 1), this one with {magic!r}"
        )
    prelude = Prelude(tree_bytes, frame_count)
    if PRELUDE.size + prelude.rest_bytes > message_bytes:
        raise MalformedError(
            f"the message claims a tree of {tree_bytes} bytes and {frame_count} frames, "
            f"but is {message_bytes} bytes long in all"
        )
    if frame_count > MAX_FRAMES:
        raise TooLargeError(f"{frame_count} frames in one message; the limit is {MAX_FRAMES}")
    if tree_bytes > max_tree_bytes:
        raise TooLargeError(
            f"{tree_bytes} bytes of values that are not arrays; the limit here is "
            f"{max_tree_bytes} (max_tree_bytes). Arrays and bytes travel outside this limit"
        )
    return prelude


def frame_gaps(prelude: Prelude, table: Buffer, message_bytes: int) -> list[tuple[int, int]]:
    """(padding before it, bytes of it) for each frame, checked to end with the message."""
    gaps: list[tuple[int, int]] = []
    position = PRELUDE.size + prelude.rest_bytes
    for (frame_bytes,) in struct.iter_unpack("<Q", table):
        gap = padding(position)
        gaps.append((gap, frame_bytes))
        position += gap + frame_bytes
    if position != message_bytes:
        raise MalformedError(
            f"the message claims {position} bytes, but is {message_bytes} bytes long"
        )
    return gaps


def message_buffers(message: Message) -> list[Buffer]:
    """The buffers that make up a message on the wire, small ones joined, frames uncopied."""
    if not message.frames:
        return [PRELUDE.pack(MAGIC, len(message.tree), 0) + message.tree]
    sizes = [frame.nbytes for frame in message.frames]
    head = b"".join(
        (
            PRELUDE.pack(MAGIC, len(message.tree), len(sizes)),
            struct.pack(f"<{len(sizes)}Q", *sizes),
            message.tree,
        )
    )
    buffers: list[Buffer] = [head + bytes(padding(len(head)))]
    position = 0
    for frame in message.frames:
        if gap := padding(position):
            buffers.append(bytes(gap))
        if frame.nbytes:
            buffers.append(frame)
        position += gap + frame.nbytes
    return buffers


def buffers_bytes(buffers: Sequence[Buffer]) -> int:
    """Bytes of a list of buffers, each of which is a sequence of bytes."""
    return sum(map(len, buffers))


def parse_message(data: Buffer, max_tree_bytes: int = MAX_TREE_BYTES) -> Message:
    """Read a whole message that is already in memory; its frames are views of ``data``."""
    view = memoryview(data)
    if view.nbytes < PRELUDE.size:
        raise MalformedError(f"a message has at least {PRELUDE.size} bytes, this one {view.nbytes}")
    prelude = read_prelude(view[: PRELUDE.size], view.nbytes, max_tree_bytes)
    if not prelude.frame_count and PRELUDE.size + prelude.tree_bytes == view.nbytes:
        return Message(view[PRELUDE.size :])  # what most calls are
    table_end = PRELUDE.size + 8 * prelude.frame_count
    position = PRELUDE.size + prelude.rest_bytes
    frames = []
    for gap, frame_bytes in frame_gaps(prelude, view[PRELUDE.size : table_end], view.nbytes):
        position += gap
        frames.append(view[position : position + frame_bytes])
        position += frame_bytes
    return Message(view[table_end : PRELUDE.size + prelude.rest_bytes], frames)

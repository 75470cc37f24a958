"""A message is a small tree of values followed by raw frames, such as the memory of arrays.

::

    "AXN1"  magic bytes and format version, 4 bytes
    u32     size of the tree in bytes
    u32     number of frames
    u64     size of each frame in bytes, once per frame
    tree    msgpack with the extension types below
    frames  raw bytes; each frame starts at a multiple of 64 bytes from the start of the message

Integers are unsigned and little-endian. Padding consists of zero bytes. All sizes precede the
data, so that a receiver can check them against the length of the body before it allocates memory,
and can then receive each frame directly into the memory of its array.
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
"""The limit of the format; the default limit of a worker is lower."""
MAX_DEPTH: Final = 100
"""Maximum nesting depth; it also ends the walk over a container that contains itself."""
PRELUDE: Final = struct.Struct("<4sII")

Buffer = bytes | bytearray | memoryview


class Message(msgspec.Struct, frozen=True):
    """An encoded tree and its frames."""

    tree: Buffer
    frames: Sequence[memoryview] = ()


class Prelude(msgspec.Struct, frozen=True):
    """The sizes in the first twelve bytes of a message."""

    tree_bytes: int
    frame_count: int

    @property
    def rest_bytes(self) -> int:
        """The size of the frame table and the tree, which follow the prelude."""
        return 8 * self.frame_count + self.tree_bytes


def describe_part(part: object) -> str:
    """Return a short text for error messages; only plain values are shown, others by type."""
    plain = isinstance(part, str | bytes | int | float | None)
    return repr(part)[:80] if plain else f"a {type(part).__name__}"


def padding(position: int) -> int:
    """Return the number of bytes from ``position`` to the next multiple of the alignment."""
    return -position % ALIGNMENT


def read_prelude(data: Buffer, message_bytes: int, max_tree_bytes: int) -> Prelude:
    """Parse the first bytes of a message of ``message_bytes`` and check the sizes in them."""
    magic, tree_bytes, frame_count = PRELUDE.unpack(data)
    if magic != MAGIC:
        raise MalformedError(
            f"the message starts with {magic!r}, not {MAGIC!r} (format version 1): "
            "check that both sides have the same version"
        )
    prelude = Prelude(tree_bytes, frame_count)
    if PRELUDE.size + prelude.rest_bytes > message_bytes:
        raise MalformedError(
            f"a tree of {tree_bytes} bytes and {frame_count} frames do not fit into a message of "
            f"{message_bytes} bytes"
        )
    if frame_count > MAX_FRAMES:
        raise TooLargeError(f"the message has {frame_count} frames, the limit is {MAX_FRAMES}")
    if tree_bytes > max_tree_bytes:
        raise TooLargeError(
            f"the values take {tree_bytes} bytes without arrays, the limit is {max_tree_bytes}: "
            "raise max_tree_bytes, or send large data as arrays or bytes, which do not count"
        )
    return prelude


def frame_gaps(prelude: Prelude, table: Buffer, message_bytes: int) -> list[tuple[int, int]]:
    """Return (padding before, size) of each frame; check that the last one ends the message."""
    gaps: list[tuple[int, int]] = []
    position = PRELUDE.size + prelude.rest_bytes
    for (frame_bytes,) in struct.iter_unpack("<Q", table):
        gap = padding(position)
        gaps.append((gap, frame_bytes))
        position += gap + frame_bytes
    if position != message_bytes:
        raise MalformedError(
            f"the frames end at byte {position} of a message of {message_bytes} bytes"
        )
    return gaps


def message_buffers(message: Message) -> list[Buffer]:
    """Return the buffers to send for a message; frames are not copied."""
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
    """Return the total size of buffers of single bytes."""
    return sum(map(len, buffers))


def parse_message(data: Buffer, max_tree_bytes: int = MAX_TREE_BYTES) -> Message:
    """Parse a whole message; its frames are views of ``data``."""
    view = memoryview(data)
    if view.nbytes < PRELUDE.size:
        raise MalformedError(f"a message has at least {PRELUDE.size} bytes, not {view.nbytes}")
    prelude = read_prelude(view[: PRELUDE.size], view.nbytes, max_tree_bytes)
    if not prelude.frame_count and PRELUDE.size + prelude.tree_bytes == view.nbytes:
        return Message(view[PRELUDE.size :])  # The common case.
    table_end = PRELUDE.size + 8 * prelude.frame_count
    position = PRELUDE.size + prelude.rest_bytes
    frames = []
    for gap, frame_bytes in frame_gaps(prelude, view[PRELUDE.size : table_end], view.nbytes):
        position += gap
        frames.append(view[position : position + frame_bytes])
        position += frame_bytes
    return Message(view[table_end : PRELUDE.size + prelude.rest_bytes], frames)

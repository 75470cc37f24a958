"""Axon's codec without the rest of Axon: a value is a list of buffers."""

from typing import Any

from melisma.axon.codec import encoding, message

LENGTH_BYTES = 8


def encode(value: object) -> list[message.Buffer]:
    """Return the total length and the buffers that encode a value."""
    first, *rest = message.message_buffers(encoding.encode(value))
    length = len(first) + message.buffers_bytes(rest)
    return [length.to_bytes(LENGTH_BYTES, "big") + first, *rest]


def decode(data: bytes | memoryview) -> Any:
    """Return the value of the bytes after the length."""
    return encoding.decode(message.parse_message(data))

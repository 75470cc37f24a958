"""Our codec as the peers that have nothing else of ours use it: a value is a list of buffers."""

from typing import Any

from melisma.axon.codec import encoding, message

LENGTH_BYTES = 8


def encode(value: object) -> list[message.Buffer]:
    """The buffers that stand for a value on the wire, behind the length of them all."""
    first, *rest = message.message_buffers(encoding.encode(value))
    length = len(first) + message.buffers_bytes(rest)
    return [length.to_bytes(LENGTH_BYTES, "big") + first, *rest]


def decode(data: bytes | memoryview) -> Any:
    """The value of what came behind the length."""
    return encoding.decode(message.parse_message(data))

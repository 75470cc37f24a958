"""Sets and maps from a peer, whose items may be chosen so that their hashes collide.

Python hashes text with a secret, but numbers and tuples of them without one. Adding items of one
hash to a set takes time that grows with the square of their number. Such collections are refused
by the number of equal hashes, and built in steps, so that other threads run in between. Large
maps of msgpack are built by the decoder itself, so that their keys must be text; `encode` sends all
others as extension type 6.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from melisma.axon.codec.message import MAX_DEPTH, Buffer
from melisma.errors import MalformedError

MAX_COMPARISONS: Final = 16
"""The most comparisons for an item of a collection, on average.

Honest items collide too: -1 and -2 have one hash, and so have (-1, 0) and (-2, 0).
"""
_SMALL: Final = 64
"""Collections up to this size are not checked."""
MAX_ODD_KEYS: Final = 255
"""The most entries of a map of msgpack with keys other than text."""
_MIN_BYTES: Final = 2 * MAX_ODD_KEYS
"""A shorter tree holds no map of more entries."""
_STEP: Final = 1024
_LARGE_MAP: Final = re.compile(rb"\xde[\x01-\xff]|\xdf", re.DOTALL)
_HEADER_BYTES: Final = {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}
_array: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_text_map: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def build_set(items: list[Any]) -> set[Any]:
    """Return the set of ``items``."""
    check_hashes(items)
    built: set[Any] = set()
    for start in range(0, len(items), _STEP):
        built.update(items[start : start + _STEP])
    return built


def build_dict(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    """Return the dict of ``keys`` and their ``values``."""
    check_hashes(keys)
    if len(keys) != len(values):
        raise MalformedError(f"a map has {len(keys)} keys and {len(values)} values")
    built: dict[Any, Any] = {}
    for start in range(0, len(keys), _STEP):
        built.update(zip(keys[start : start + _STEP], values[start : start + _STEP], strict=True))
    return built


def check_hashes(items: Sequence[Any]) -> None:
    """Raise `MalformedError` if the items would take more than `MAX_COMPARISONS` each."""
    if len(items) <= _SMALL:
        return
    # Equal hashes are equal numbers here, so that counting them takes no time.
    hashes: Counter[int] = Counter()
    for start in range(0, len(items), _STEP):
        hashes.update(map(hash, items[start : start + _STEP]))
    if len(hashes) == len(items):
        return
    if sum(count * count for count in hashes.values()) > MAX_COMPARISONS * len(items):
        raise MalformedError(
            f"{len(items)} items of a set or keys of a map have {len(hashes)} different hashes: "
            "send them as a list"
        )


def check_maps(tree: Buffer) -> None:
    """Raise `MalformedError` if a large map of msgpack has keys other than text.

    Only containers that may hold such a map are taken apart, one level at a time. The payloads of
    extensions are checked when they are decoded.
    """
    if len(tree) <= _MIN_BYTES or not _LARGE_MAP.search(tree):
        return
    level: list[Buffer] = [tree]
    for _ in range(MAX_DEPTH):
        level = [
            memoryview(item)
            for container in level
            for item in _items(container)
            if len(item) > _MIN_BYTES and _LARGE_MAP.search(item)
        ]
        if not level:
            return
    raise MalformedError(f"the message is nested more than {MAX_DEPTH} levels deep")


def _items(container: Buffer) -> list[msgspec.Raw]:
    """Return the items of an array, the keys and values of a map; nothing for other values."""
    code = container[0]
    header_bytes = _HEADER_BYTES.get(code, 1)
    count = code & 15 if header_bytes == 1 else int.from_bytes(container[1:header_bytes], "big")
    try:
        if code & 0xF0 == 0x90 or code in (0xDC, 0xDD):
            return _array.decode(container)
        if code & 0xF0 != 0x80 and code not in (0xDE, 0xDF):
            return []
        if count > MAX_ODD_KEYS:
            _text_map.decode(container)
        # The items of a map are those of an array of twice its length.
        array_head = b"\xdd" + (2 * count).to_bytes(5, "big")[1:]
        return _array.decode(array_head + bytes(container[header_bytes:]))
    except msgspec.ValidationError:
        raise MalformedError(
            f"a map of {count} entries has keys other than text: send it as extension type 6"
        ) from None
    except msgspec.DecodeError:
        return []  # Truncated, which the decoder reports.

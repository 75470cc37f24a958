"""Encoding of Python values as messages.

The tree is msgpack. Types that msgpack lacks are msgpack extension types:

====  ==============  ===============================================================
code  type            payload (msgpack unless marked raw)
====  ==============  ===============================================================
1     tuple           array of its items
2     set             array of its items
3     frozenset       array of its items
4     large int       two's complement, little-endian; raw
5     datetime        ISO 8601 text, with the UTC offset if known; raw
6     dict            array of keys, array of values; for keys other than str
7     large bytes     frame number
8     record          class name of a dataclass or struct, map of its fields
9     array           dtype, shape, order ("C" or "F"), frame number
10    NumPy scalar    dtype, bytes
11    torch tensor    see below
====  ==============  ===============================================================

Keys of maps with more than 255 entries are text; other ones are sent as type 6. Sets and maps with
many items of one hash, as Python computes it, are refused.

Frames are numbered from 0 in the order of the message, and each belongs to exactly one value.
A receiver constructs only these types and the record classes that it lists itself. A sender
matches types exactly and rejects subclasses, because their additional state would be lost.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from melisma.axon.codec import hashing, records, tensors
from melisma.axon.codec.message import MAX_DEPTH, MAX_TREE_BYTES, Buffer, Message, describe_part
from melisma.errors import EncodingError, MalformedError, TooLargeError

_ARRAY_DEPTH: Final = 4
"""Further levels inside an array or tensor."""
FRAMED_BYTES: Final = 4096
"""Byte strings of at least this size are sent as frames."""


_TUPLE, _SET, _FROZENSET, _INT, _DATETIME, _DICT = 1, 2, 3, 4, 5, 6
_BYTES, _RECORD, _ARRAY, _SCALAR, _TENSOR = 7, 8, 9, 10, 11

_PLAIN: Final = frozenset({NoneType, bool, float})
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.decode

_BUILDERS: Final[dict[int, Callable[[Any], Any]]] = {
    _TUPLE: tuple,
    _SET: hashing.build_set,
    _FROZENSET: lambda items: frozenset(hashing.build_set(items)),
}

_DECODE_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    BufferError,
    LookupError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)
"""Exceptions raised by constructors that are given invalid parts."""

Types = Mapping[str, type]


class _UnencodableError(Exception):
    """A value cannot be sent; the path to it is collected while the exception propagates."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path: list[str] = []


def encode(value: object, root: str = "value") -> Message:
    """Encode a value as a message; arrays in it are referenced, not copied.

    ``root`` is the start of the path that an `EncodingError` reports.
    """
    return _message(lambda packer: packer.pack(value, MAX_DEPTH), root)


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
    """Encode the arguments of a call as a message."""
    return _message(
        lambda packer: [packer.items(args, MAX_DEPTH), packer.values(kwargs, MAX_DEPTH)],
        "argument ",
    )


def decode_arguments(message: Message, types: Types) -> tuple[list[Any], dict[str, Any]]:
    """Decode the positional and keyword arguments of a call."""
    arguments = decode(message, types)
    match arguments:
        case [list() as args, dict() as kwargs] if all(type(name) is str for name in kwargs):
            return args, kwargs
    raise MalformedError("the body of a call must be [list of arguments, map of keyword arguments]")


def decode(message: Message, types: Types | None = None) -> Any:
    """Decode a message; ``types`` are the record classes that may be constructed."""
    try:
        return _Unpacker(message.frames, types or {}).unpack(message.tree)
    except RecursionError:
        raise MalformedError("the message is nested too deeply to decode") from None
    except MemoryError:
        raise TooLargeError("not enough memory to decode the message") from None
    except _DECODE_ERRORS as error:
        raise MalformedError(f"the message is inconsistent: {error}") from error


def _message(pack: "Callable[[_Packer], Any]", root: str) -> Message:
    frames: list[memoryview] = []
    try:
        tree = _pack(pack(_Packer(frames)))
    except _UnencodableError as error:
        path = root + "".join(reversed(error.path))
        raise EncodingError(f"{path} cannot be sent: {error.reason}") from None
    except msgspec.EncodeError as error:  # The value exceeds a limit of msgpack.
        raise EncodingError(f"{root} cannot be sent: {error}") from error
    if len(tree) > MAX_TREE_BYTES:
        raise EncodingError(
            f"{root} cannot be sent: its values take {len(tree)} bytes without arrays, the limit "
            f"is {MAX_TREE_BYTES}; send large data as arrays or bytes, which do not count"
        )
    return Message(tree, frames)


class _Packer:
    """Converts a value to types that msgpack encodes, in one walk."""

    __slots__ = ("frames",)

    def __init__(self, frames: list[memoryview]) -> None:
        self.frames = frames

    def pack(self, value: Any, depth: int) -> Any:
        """Return a msgpack-encodable equivalent of ``value``."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if packer := _PACKERS.get(kind):
            if depth == 0:
                raise _UnencodableError(f"it is nested more than {MAX_DEPTH} levels deep")
            return packer(self, value, depth - 1)
        return self._pack_other(value, kind, depth)

    def items(self, values: Iterable[Any], depth: int, prefix: str = "") -> list[Any]:
        """Pack each value; ``prefix`` stands before the index in error paths."""
        packed = []
        for index, value in enumerate(values):
            try:
                packed.append(self.pack(value, depth))
            except _UnencodableError as error:
                error.path.append(f"[{prefix}{index}]")
                raise
        return packed

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        # A long list of plain values needs no conversion; walking it costs more than encoding it.
        if len(value) > 64:
            kinds = set(map(type, value))
            if kinds <= _PLAIN or (
                kinds == {int} and _fits_msgpack(min(value)) and _fits_msgpack(max(value))
            ):
                return value
        return self.items(value, depth)

    def _tuple(self, value: tuple[Any, ...], depth: int) -> Ext:
        return Ext(_TUPLE, _pack(self.items(value, depth)))

    def _set(self, value: Iterable[Any], depth: int) -> Ext:
        code = _SET if type(value) is set else _FROZENSET
        return Ext(code, _pack(self.items(value, depth)))

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str for key in value):
            return self.values(value, depth)
        keys = self.items(value, depth, "key ")
        return Ext(_DICT, _pack([keys, list(self.values(value, depth).values())]))

    def values(self, mapping: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        """Return the mapping with packed values."""
        packed = {}
        for key, value in mapping.items():
            try:
                if type(key) is str:
                    self._str(key, depth)
                packed[key] = self.pack(value, depth)
            except _UnencodableError as error:
                error.path.append(f"[{key!r}]")
                raise
        return packed

    def _str(self, value: str, _depth: int) -> str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise _UnencodableError(
                    f"the str is not valid Unicode ({error}); send bytes"
                ) from None
        return value

    def _int(self, value: int, _depth: int) -> int | Ext:
        if _fits_msgpack(value):
            return value
        return Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _bytes(self, value: bytes, _depth: int) -> bytes | Ext:
        if len(value) < FRAMED_BYTES:
            return value
        return Ext(_BYTES, _pack(self._frame(memoryview(value))))

    def _datetime(self, value: datetime, _depth: int) -> Ext:
        return Ext(_DATETIME, value.isoformat().encode())

    def _frame(self, frame: memoryview) -> int:
        self.frames.append(frame)
        return len(self.frames) - 1

    def _pack_other(self, value: Any, kind: type, depth: int) -> Ext:
        """Pack an array, tensor or record; recognize them without importing their packages."""
        if numpy := sys.modules.get("numpy"):
            from melisma.axon.codec import arrays

            if kind is numpy.ndarray or kind is numpy.memmap:
                return self._pack_ext(_ARRAY, arrays.pack_array, value)
            if isinstance(value, numpy.generic):
                return self._pack_ext(_SCALAR, arrays.pack_scalar, value)
        if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
            return self._pack_ext(_TENSOR, tensors.pack_tensor, value)
        try:
            fields = records.record_fields(value)
        except AttributeError as error:
            raise _UnencodableError(f"one of its fields has no value ({error})") from None
        if fields is None:
            raise _UnencodableError(_advice(kind))
        if depth == 0:
            raise _UnencodableError(f"it is nested more than {MAX_DEPTH} levels deep")
        return Ext(_RECORD, _pack([kind.__qualname__, self.values(fields, depth - 1)]))

    def _pack_ext(
        self, code: int, pack: Callable[[Any, Callable[[memoryview], int]], Any], value: Any
    ) -> Ext:
        try:
            return Ext(code, _pack(self.pack(pack(value, self._frame), MAX_DEPTH)))
        except (TypeError, RuntimeError) as error:
            raise _UnencodableError(str(error)) from None


_PACKERS: Final[dict[type, Callable[[_Packer, Any, int], Any]]] = {
    list: _Packer._list,
    tuple: _Packer._tuple,
    set: _Packer._set,
    frozenset: _Packer._set,
    dict: _Packer._dict,
    str: _Packer._str,
    int: _Packer._int,
    bytes: _Packer._bytes,
    datetime: _Packer._datetime,
}


class _Unpacker:
    """Builds values from a tree; the payload of most extensions is a tree itself."""

    __slots__ = ("depth", "frames", "types")

    def __init__(self, frames: Sequence[memoryview], types: Types) -> None:
        self.frames: list[memoryview | None] = list(frames)
        self.types = types
        self.depth = 0

    def unpack(self, tree: Buffer) -> Any:
        if self.depth > MAX_DEPTH + _ARRAY_DEPTH:
            raise MalformedError(f"the message is nested more than {MAX_DEPTH} levels deep")
        hashing.check_maps(tree)
        self.depth += 1
        value = _unpack(tree, ext_hook=self._extension)
        self.depth -= 1
        return value

    def _extension(self, code: int, payload: memoryview) -> Any:
        if code == _INT:
            return int.from_bytes(payload, "little", signed=True)
        if code == _DATETIME:
            return datetime.fromisoformat(str(payload, "utf-8"))
        parts = self.unpack(payload)
        if builder := _BUILDERS.get(code):
            return builder(parts)
        if code == _DICT:
            return hashing.build_dict(*parts)
        if code == _BYTES:
            return bytes(self._frame(parts))
        if code == _RECORD:
            return records.construct(parts, self.types)
        if code == _TENSOR:
            return tensors.unpack_tensor(parts, self._frame)
        if code in (_ARRAY, _SCALAR):
            from melisma.axon.codec import arrays

            unpack = arrays.unpack_array if code == _ARRAY else arrays.unpack_scalar
            return unpack(parts, self._frame)
        raise MalformedError(f"unknown extension type {code} in format version 1")

    def _frame(self, number: Any) -> memoryview:
        if type(number) is not int or not 0 <= number < len(self.frames):
            raise MalformedError(
                f"no frame {describe_part(number)} in a message of {len(self.frames)} frames"
            )
        frame, self.frames[number] = self.frames[number], None
        # If values could share a frame, a small message could allocate unlimited memory.
        if frame is None:
            raise MalformedError(f"frame {number} is used by two values")
        return frame


def _fits_msgpack(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 64


def _advice(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    for base in (dict, list, tuple, set, frozenset, str, int, float, bytes):
        if issubclass(kind, base):
            return f"{name} is a subclass of {base.__name__}; send {base.__name__}(value)"
    if (numpy := sys.modules.get("numpy")) and issubclass(kind, numpy.ndarray):
        return f"{name} is a subclass of numpy.ndarray; send numpy.asarray(value)"
    return (
        f"{name} is not supported; convert it to a supported type (None, bool, int, float, str, "
        "bytes, datetime, list, tuple, dict, set, dataclass, msgspec struct, NumPy array, torch "
        "tensor)"
    )

"""Values to messages and back: what may travel, and how.

The tree is msgpack; what msgpack does not have is an extension type:

====  ==============  ====================================================
code  type            payload (msgpack, unless said otherwise)
====  ==============  ====================================================
1     tuple           array of its items
2     set             array of its items
3     frozenset       array of its items
4     large int       two's complement, little-endian, raw
5     datetime        ISO 8601 text, raw; with its offset if it has one
6     dict            array of keys, array of values (keys msgpack lacks)
7     large bytes     number of its frame
8     record          name of a dataclass or struct, map of its fields
9     array           dtype, shape, order ("C" or "F"), number of its frame
10    NumPy scalar    dtype, bytes
11    torch tensor    see ``tensors``
====  ==============  ====================================================

Nothing is ever constructed but these types and the records that the receiver names. Types are
matched exactly: a subclass could carry more than would arrive.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from melisma.axon.codec import records, tensors
from melisma.axon.codec.message import MAX_TREE_BYTES, Buffer, Message, describe_part
from melisma.errors import EncodingError, MalformedError, TooLargeError

MAX_DEPTH: Final = 100
"""Levels of nesting; also what stops a container that holds itself."""
FRAMED_BYTES: Final = 4096
"""Byte strings from this size on travel as frames."""


_TUPLE, _SET, _FROZENSET, _INT, _DATETIME, _DICT = 1, 2, 3, 4, 5, 6
_BYTES, _RECORD, _ARRAY, _SCALAR, _TENSOR = 7, 8, 9, 10, 11

_PLAIN: Final = frozenset({NoneType, bool, float})
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.decode

_BUILDERS: Final[dict[int, Callable[[Any], Any]]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
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
"""What the types raise that are built from parts that do not fit."""

Types = Mapping[str, type]


class _UnencodableError(Exception):
    """Raised deep inside a value; gathers its path on the way out."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path: list[str] = []


def encode(value: object, root: str = "value") -> Message:
    """A message that holds ``value``; arrays in it are referenced, not copied.

    ``root`` is what an `EncodingError` calls the value when it names the place of what cannot
    travel.
    """
    return _message(lambda packer: packer.pack(value, MAX_DEPTH), root)


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
    """A message that holds the arguments of a call."""
    return _message(
        lambda packer: [packer.items(args, MAX_DEPTH), packer.values(kwargs, MAX_DEPTH)],
        "argument ",
    )


def decode_arguments(message: Message, types: Types) -> tuple[list[Any], dict[str, Any]]:
    """The positional and named arguments that a message holds."""
    arguments = decode(message, types)
    match arguments:
        case [list() as args, dict() as kwargs] if all(type(name) is str for name in kwargs):
            return args, kwargs
    raise MalformedError("a call holds a list of arguments and a map of named ones")


def decode(message: Message, types: Types | None = None) -> Any:
    """The value that a message holds; ``types`` are the records that it may construct."""
    try:
        return _Unpacker(message.frames, types or {}).unpack(message.tree)
    except RecursionError:
        raise MalformedError("the message is nested too deeply") from None
    except MemoryError:
        raise TooLargeError("no memory here for what the message holds") from None
    except _DECODE_ERRORS as error:
        raise MalformedError(f"the message contradicts itself: {error}") from error


def _message(pack: "Callable[[_Packer], Any]", root: str) -> Message:
    frames: list[memoryview] = []
    try:
        tree = _pack(pack(_Packer(frames)))
    except _UnencodableError as error:
        path = root + "".join(reversed(error.path))
        raise EncodingError(f"{path} cannot travel: {error.reason}") from None
    except msgspec.EncodeError as error:  # Beyond the limits of msgpack.
        raise EncodingError(f"{root} cannot travel: {error}") from error
    if len(tree) > MAX_TREE_BYTES:
        raise EncodingError(
            f"{root} cannot travel: {len(tree)} bytes of values that are not arrays; at most "
            f"{MAX_TREE_BYTES} fit into one message. Arrays and bytes travel outside this limit"
        )
    return Message(tree, frames)


class _Packer:
    """One walk over a value: what msgpack knows stays, the rest becomes extensions."""

    __slots__ = ("frames",)

    def __init__(self, frames: list[memoryview]) -> None:
        self.frames = frames

    def pack(self, value: Any, depth: int) -> Any:
        """What msgpack can encode, for any value that may travel."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if packer := _PACKERS.get(kind):
            if depth == 0:
                raise _UnencodableError(f"it is nested more than {MAX_DEPTH} levels deep")
            return packer(self, value, depth - 1)
        return self._foreign(value, kind, depth)

    def items(self, values: Iterable[Any], depth: int, what: str = "") -> list[Any]:
        """The values packed."""
        packed = []
        for index, value in enumerate(values):
            try:
                packed.append(self.pack(value, depth))
            except _UnencodableError as error:
                error.path.append(f"[{what}{index}]")
                raise
        return packed

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        # A long list of plain values is taken whole: the walk would cost more than the encoding.
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
        """The mapping with its values packed."""
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
                raise _UnencodableError(f"this str is not Unicode text ({error})") from None
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

    def _foreign(self, value: Any, kind: type, depth: int) -> Ext:
        """Arrays, tensors and records: told apart without importing their packages."""
        if numpy := sys.modules.get("numpy"):
            from melisma.axon.codec import arrays

            if kind is numpy.ndarray or kind is numpy.memmap:
                return self._framed(_ARRAY, arrays.pack_array, value)
            if isinstance(value, numpy.generic):
                return self._framed(_SCALAR, arrays.pack_scalar, value)
        if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
            return self._framed(_TENSOR, tensors.pack_tensor, value)
        try:
            fields = records.record_fields(value)
        except AttributeError as error:
            raise _UnencodableError(f"a field of it has no value ({error})") from None
        if fields is None:
            raise _UnencodableError(_advice(kind))
        if depth == 0:
            raise _UnencodableError(f"it is nested more than {MAX_DEPTH} levels deep")
        return Ext(_RECORD, _pack([kind.__qualname__, self.values(fields, depth - 1)]))

    def _framed(
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
    """Builds values from a tree; an extension's payload is a tree of its own."""

    __slots__ = ("frames", "types")

    def __init__(self, frames: Sequence[memoryview], types: Types) -> None:
        self.frames: list[memoryview | None] = list(frames)
        self.types = types

    def unpack(self, tree: Buffer) -> Any:
        return _unpack(tree, ext_hook=self._extension)

    def _extension(self, code: int, payload: memoryview) -> Any:
        if code == _INT:
            return int.from_bytes(payload, "little", signed=True)
        if code == _DATETIME:
            return datetime.fromisoformat(str(payload, "utf-8"))
        parts = self.unpack(payload)
        if builder := _BUILDERS.get(code):
            return builder(parts)
        if code == _DICT:
            return dict(zip(*parts, strict=True))
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
        raise MalformedError(f"extension type {code} is not one of format version 1")

    def _frame(self, number: Any) -> memoryview:
        if type(number) is not int or not 0 <= number < len(self.frames):
            raise MalformedError(f"frame {describe_part(number)} of {len(self.frames)} frames")
        frame, self.frames[number] = self.frames[number], None
        # Many values on one frame would let a small message fill the memory.
        if frame is None:
            raise MalformedError(f"frame {number} belongs to two values")
        return frame


def _fits_msgpack(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 64


def _advice(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    for base in (dict, list, tuple, set, frozenset, str, int, float, bytes):
        if issubclass(kind, base):
            return f"{name} is a subclass; send {base.__name__}(...) of it"
    if (numpy := sys.modules.get("numpy")) and issubclass(kind, numpy.ndarray):
        return f"{name} is a subclass; send numpy.asarray(...) of it"
    return (
        f"{name} is not a type that Axon carries (None, bool, int, float, str, bytes, datetime, "
        "list, tuple, dict, set, dataclasses, msgspec structs, NumPy arrays, torch tensors)"
    )

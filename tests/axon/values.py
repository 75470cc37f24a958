"""Strategies for all supported values, and their exact comparison, for the tests of the codec."""

import dataclasses
import math
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.msgpack import Ext

from melisma.axon.codec.encoding import decode, encode
from melisma.axon.codec.message import Message, message_buffers, parse_message
from melisma.axon.codec.records import record_types

Array = np.ndarray[Any, Any]
Dtype = np.dtype[Any]
pack = msgspec.msgpack.encode
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

with warnings.catch_warnings():
    # Torch says once in a process that these are young.
    warnings.simplefilter("ignore")
    torch.eye(2).to_sparse_csr()
    torch.empty(0, dtype=torch.complex32)


@dataclass(frozen=True)
class Place:
    """Hashable, so that it can be a key."""

    north: float
    east: float = 0.0


@dataclass(slots=True, kw_only=True)
class Job:
    """A default, a factory, a field that the constructor does not take, another record."""

    name: str
    places: list[Place] = field(default_factory=list)
    extra: Any = None
    state: Any = field(init=False, default="new")


class Sample(msgspec.Struct):
    label: int
    weights: Any = None
    place: Place | None = None


class Key(msgspec.Struct, frozen=True):
    number: int


TYPES = record_types([Job, Sample, Key])


def wire_bytes(value: object) -> bytearray:
    """Return the message of a value as a receiver parses it."""
    return bytearray(b"".join(message_buffers(encode(value))))


def round_trip(value: object) -> Any:
    """Encode and decode a value."""
    return decode(parse_message(wire_bytes(value)), TYPES)


def received(code: int, parts: Any, *frames: bytes) -> Any:
    """Decode a hand-written extension."""
    return decode(
        Message(pack(Ext(code, pack(parts))), [memoryview(bytearray(frame)) for frame in frames]),
        TYPES,
    )


def same(sent: Any, arrived: Any) -> bool:
    """Compare type, value and memory order (if contiguous), recursively."""
    if isinstance(sent, np.generic):  # int64 may have two names
        return bool(sent.dtype == arrived.dtype) and sent.tobytes() == arrived.tobytes()
    if type(sent) is not type(arrived):
        return False
    for kind, compare in _COMPARISONS:
        if isinstance(sent, kind):
            return compare(sent, arrived)
    if dataclasses.is_dataclass(sent):
        names = [item.name for item in dataclasses.fields(sent)]
        return all(same(getattr(sent, name), getattr(arrived, name)) for name in names)
    return bool(sent == arrived)


def same_array(sent: Array, arrived: Array) -> bool:
    return (
        sent.dtype == arrived.dtype
        and sent.shape == arrived.shape
        and array_bytes(sent) == array_bytes(arrived)
        and (not sent.flags.forc or sent.flags.c_contiguous == arrived.flags.c_contiguous)
    )


def array_bytes(array: Array) -> bytes:
    """Return the items in order, including the padding between their fields."""
    if array.dtype.names is not None and array.dtype.itemsize:
        array = array.view(f"V{array.dtype.itemsize}")
    return array.tobytes()


def same_tensor(sent: torch.Tensor, arrived: torch.Tensor) -> bool:
    if (sent.layout, sent.dtype, sent.shape) != (arrived.layout, arrived.dtype, arrived.shape):
        return False
    if sent.layout == torch.strided:
        return tensor_bytes(sent) == tensor_bytes(arrived)
    if sent.layout == torch.sparse_coo:
        parts = [(tensor._indices(), tensor._values()) for tensor in (sent, arrived)]
        return sent.is_coalesced() == arrived.is_coalesced() and _all_same(*parts)
    names = ["crow_indices", "col_indices", "values"]
    if sent.layout in (torch.sparse_csc, torch.sparse_bsc):
        names = ["ccol_indices", "row_indices", "values"]
    return all(same_tensor(getattr(sent, name)(), getattr(arrived, name)()) for name in names)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bits of a strided tensor in order; torch cannot copy some dtypes."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.view(BITS[tensor.itemsize]).clone().numpy().tobytes()


def _all_same(sent: Any, arrived: Any) -> bool:
    return len(sent) == len(arrived) and all(map(same, sent, arrived))


def _same_set(sent: Any, arrived: Any) -> bool:
    return len(sent) == len(arrived) and all(any(same(a, b) for b in arrived) for a in sent)


_COMPARISONS: list[tuple[Any, Callable[[Any, Any], bool]]] = [
    (np.ndarray, same_array),
    (torch.Tensor, same_tensor),
    (float, lambda sent, arrived: struct.pack("d", sent) == struct.pack("d", arrived)),
    (datetime, lambda sent, arrived: sent.isoformat() == arrived.isoformat()),
    (list | tuple, _all_same),
    (set | frozenset, _same_set),
    (dict, lambda sent, arrived: _all_same(list(sent.items()), list(arrived.items()))),
    (msgspec.Struct, lambda sent, arrived: _all_same(_items(sent), _items(arrived))),
]


def _items(struct_: msgspec.Struct) -> list[Any]:
    return [getattr(struct_, name) for name in struct_.__struct_fields__]


# Strategies.

offsets = st.timedeltas(
    timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59, seconds=59)
)
zones = st.none() | st.just(timezone.utc) | st.timezones() | st.builds(timezone, offsets)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
byte_strings = st.binary(max_size=20) | st.integers(4090, 9000).map(lambda size: b"\xa5" * size)
integers = st.integers() | st.integers(-(1 << 70), 1 << 70) | st.just(-(1 << 63)) | st.just(1 << 64)
plain = (
    st.none()
    | st.booleans()
    | integers
    | st.floats()
    | st.just(-0.0)
    | texts
    | byte_strings
    | st.datetimes(timezones=zones)
)

hashable = st.recursive(
    plain | st.builds(Key, integers) | st.builds(Place, st.floats(), st.floats()),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)

units = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25us")
plain_dtypes = st.sampled_from(
    [
        np.dtype(name).newbyteorder(order)
        for order in "<>"
        for name in (
            *"?bBhHiIlLqQefdgFDG",
            *("S0", "S1", "S7", "U0", "U1", "U7", "V0", "V1", "V7", "M8", "m8"),
            *(f"{kind}8[{unit}]" for kind in "Mm" for unit in units),
        )
    ]
)
dtypes: st.SearchStrategy[Dtype] = plain_dtypes | hnp.nested_dtypes(
    plain_dtypes.filter(lambda dtype: dtype.itemsize > 0), max_leaves=6
)


@st.composite
def struct_dtypes(draw: st.DrawFn) -> Dtype:
    """Structures with gaps between their fields and after the last, aligned or not."""
    names, formats, starts = [], [], []
    position = 0
    for number in range(draw(st.integers(0, 4))):
        item = draw(dtypes)
        position += draw(st.integers(0, 9))
        names.append(draw(st.sampled_from([f"field{number}", f"größe{number}"])))
        formats.append(item)
        starts.append(position)
        position += item.itemsize
    size = position + draw(st.integers(0, 9))
    return np.dtype({"names": names, "formats": formats, "offsets": starts, "itemsize": size})


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda array: array,
    "F": np.asfortranarray,
    "transposed": lambda array: array.T,
    "reversed": lambda array: array[::-1] if array.ndim else array,
    "strided": lambda array: array[..., ::2] if array.ndim else array,
    "broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "axes swapped": lambda array: array.swapaxes(0, -1) if array.ndim else array,
    "read-only": lambda array: np.broadcast_to(array, array.shape),
}
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def filled(dtype: Dtype, shape: tuple[int, ...], seed: int = 0) -> Array:
    """An array of any dtype on memory with arbitrary bits."""
    memory = _memory(math.prod(shape) * dtype.itemsize, seed, "|b1" in str(dtype.descr))
    array: Array = np.ndarray(shape, dtype, memory or None)
    return array


def _memory(size: int, seed: int, booleans: bool) -> bytearray:
    memory = np.random.default_rng(seed).bytes(size)
    return bytearray(byte & 1 for byte in memory) if booleans else bytearray(memory)


arrays: st.SearchStrategy[Array] = st.builds(
    lambda dtype, shape, seed, layout: LAYOUTS[layout](filled(dtype, shape, seed)),
    # A dtype that is itself an array would become dimensions of the array.
    (dtypes | struct_dtypes()).filter(lambda dtype: dtype.subdtype is None),
    shapes,
    st.integers(0, 1 << 32),
    st.sampled_from(sorted(LAYOUTS)),
)
scalars: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from("?bBhHiIlLqQefdgFDG").map(lambda code: filled(np.dtype(code), (1,))[0]),
    st.floats().map(np.float64),
    integers.map(lambda number: np.int64(number % (1 << 63))),
    st.text().map(np.str_),
    st.binary().map(np.bytes_),
    st.binary(max_size=9).map(np.void),
    st.sampled_from(units).map(lambda unit: filled(np.dtype(f"M8[{unit}]"), (1,))[0]),
    st.sampled_from(units).map(lambda unit: np.array("NaT", f"m8[{unit}]")[()]),
)

TENSOR_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
PLAIN_TENSOR_DTYPES = [dtype for dtype in TENSOR_DTYPES if "torch.q" not in str(dtype)]

TENSOR_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.permute(tuple(reversed(range(tensor.ndim)))),
    "strided": lambda tensor: tensor[..., ::2] if tensor.ndim else tensor,
    "one of many": lambda tensor: tensor[..., :1] if tensor.ndim else tensor,
    "expanded": lambda tensor: tensor.expand(2, *tensor.shape),
}


def filled_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of any dtype on memory with arbitrary bits."""
    memory = _memory(math.prod(shape) * dtype.itemsize, seed, dtype == torch.bool)
    if not memory:
        return torch.empty(shape, dtype=BITS[dtype.itemsize]).view(dtype)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape)


tensors = st.builds(
    lambda dtype, shape, seed, layout: TENSOR_LAYOUTS[layout](filled_tensor(dtype, shape, seed)),
    st.sampled_from(PLAIN_TENSOR_DTYPES),
    shapes,
    st.integers(0, 1 << 32),
    st.sampled_from(sorted(TENSOR_LAYOUTS)),
)

leaves = plain | hashable | arrays | scalars | tensors


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4),
        st.sets(hashable, max_size=4),
        st.builds(Sample, st.integers(), inner, st.none() | st.builds(Place, st.floats())),
        st.builds(_job, texts, st.lists(st.builds(Place, st.floats()), max_size=2), inner, inner),
    )


def _job(name: str, places: list[Place], extra: Any, state: Any) -> Job:
    job = Job(name=name, places=places, extra=extra)
    job.state = state
    return job


values: st.SearchStrategy[Any] = st.recursive(leaves, _containers, max_leaves=8)


def everything() -> list[Any]:
    """Small values of each type, which the tests truncate, corrupt and mutate."""
    job = Job(name="fit", places=[Place(1.5, -2.0)], extra={Key(3): (1, None)})
    job.state = {"Δ": frozenset({1, 2})}
    eye = torch.eye(4)
    fields = np.dtype([("id", "<i2"), ("at", "<M8[ms]"), ("xy", ">f4", (2,))], align=True)
    return [
        [None, True, -7, 1 << 80, -(1 << 80), 0.1, "größe", b"raw", b"\xa5" * 5000],
        [datetime(2024, 2, 29, 12, 30, 1, 5), datetime(1999, 1, 1, tzinfo=timezone.utc)],  # noqa: DTZ001
        {"a": {1: [2.5], (3, 4): {5}}, "b": [float(number) for number in range(70)]},
        [job, Sample(2, np.arange(3.0)), Key(9)],
        [np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.eye(3)), np.ones((0, 4))],
        [np.zeros(2, fields), np.array(["ab", "c"]), np.array(1 + 2j), filled(fields, (2,))],
        [np.float32(1.5), np.str_("ü"), np.bytes_(b"x\0"), np.datetime64(5, "ns"), np.bool_(True)],
        [eye.to(torch.bfloat16), torch.tensor(3), torch.empty(0, 2), torch.tensor([1j]).conj()],
        [eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc()],
        [eye.to_sparse_bsr((2, 2)), eye.to_sparse_bsc((2, 2))],
    ]

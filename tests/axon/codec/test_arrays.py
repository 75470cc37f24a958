"""NumPy arrays and scalars of every dtype, order and stride arrive as views of their frames."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from melisma.axon.codec.arrays import allocate_frame, check_size
from melisma.axon.codec.encoding import decode, encode
from melisma.axon.codec.message import ALIGNMENT, Message, message_buffers, parse_message
from melisma.errors import EncodingError, MalformedError
from tests.axon.values import (
    LAYOUTS,
    Array,
    arrays,
    filled,
    pack,
    received,
    round_trip,
    same,
    scalars,
    units,
)
from tests.lanes import cases

SCALAR_TYPES = sorted(set(np.sctypeDict.values()) - {np.object_}, key=lambda kind: kind.__name__)
NAMES = [
    *(np.dtype(kind).str for kind in SCALAR_TYPES),
    *(np.dtype(kind).newbyteorder(">").str for kind in SCALAR_TYPES),
    *(f"{order}{kind}8[{unit}]" for order in "<>" for kind in "Mm" for unit in units),
    *("|S5", "<U5", ">U5", "|V5"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_arrives_in_every_layout(layout: str) -> None:
    for name in NAMES:
        for shape in [(), (1,), (5,), (0,), (3, 4), (2, 0, 3), (2, 3, 4)]:
            array = LAYOUTS[layout](filled(np.dtype(name), shape))
            assert same(array, round_trip(array)), (name, shape)


@settings(max_examples=cases(400))
@given(arrays)
def test_an_array_arrives_with_its_dtype_shape_order_and_bytes(array: Array) -> None:
    assert same(array, round_trip(array))


@given(arrays)
def test_an_array_arrives_writable(array: Array) -> None:
    assert round_trip(array).flags.writeable


@given(arrays)
def test_contiguous_memory_is_sent_uncopied(array: Array) -> None:
    (frame,) = encode(array).frames
    assert frame.nbytes == array.nbytes
    if array.nbytes:
        sent = np.frombuffer(frame, np.uint8)
        assert np.shares_memory(sent, array) == array.flags.forc


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_goes_through_a_message_without_a_copy_at_either_end(order: Any) -> None:
    array = np.ones((300, 200), order=order)
    buffers = message_buffers(encode([array]))
    assert any(np.shares_memory(np.frombuffer(buffer, np.uint8), array) for buffer in buffers)
    data = bytearray(b"".join(buffers))
    (arrived,) = decode(parse_message(data))
    assert np.shares_memory(arrived, np.frombuffer(data, np.uint8))
    assert (arrived.ctypes.data - np.frombuffer(data, np.uint8).ctypes.data) % ALIGNMENT == 0


def test_a_sent_array_is_read_when_it_is_sent_and_not_before() -> None:
    array = np.zeros(3)
    message = encode(array)
    array[:] = 7
    assert decode(message).tolist() == [7, 7, 7]


def test_the_same_array_twice_arrives_as_two() -> None:
    array = np.zeros(3)
    first, second = round_trip([array, array])
    first[0] = 1
    assert second[0] == 0


def test_a_memory_map_arrives_as_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "weights", np.float32, "w+", shape=(3, 5))
    mapped[:] = np.arange(15).reshape(3, 5)
    (frame,) = encode(mapped).frames
    assert np.shares_memory(np.frombuffer(frame, np.uint8), mapped)
    for part in (mapped, mapped[::2], mapped.T):
        assert same(np.array(part), round_trip(part))


def test_the_padding_between_fields_of_a_copied_array_is_preserved() -> None:
    # A copy field by field would send whatever the memory held before.
    padded = np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [0], "itemsize": 4096})
    array = filled(padded, (2, 3))[:, ::2]
    (frame,) = encode(array).frames
    assert bytes(frame) == array.view("V4096").tobytes()


def test_dtype_metadata_is_dropped_without_a_warning() -> None:
    array = np.zeros(2, np.dtype("f4", metadata={"unit": "m"}))
    assert same(np.zeros(2, "f4"), round_trip(array))


@given(scalars)
def test_a_scalar_arrives_with_its_dtype_and_bytes(scalar: Any) -> None:
    assert same(scalar, round_trip(scalar))


@given(st.text() | st.just("\ud800\0"), st.binary())
def test_text_and_bytes_scalars_keep_trailing_zeros(text: str, data: bytes) -> None:
    assert round_trip(np.str_(text)) == text
    assert round_trip(np.bytes_(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_a_scalar_of_every_dtype_arrives(name: str) -> None:
    dtype = np.dtype(name)
    memory = np.ones(4 * max(dtype.itemsize, 1), np.uint8)
    text = np.array(["text"]).astype(dtype) if dtype.kind in "US" else None
    scalar = (np.ndarray((1,), dtype, memory) if text is None else text)[0]
    arrived = round_trip(scalar)
    assert type(arrived) is type(scalar) or arrived.dtype == scalar.dtype
    assert same(scalar, arrived)


def test_a_structured_scalar_arrives_and_can_be_changed() -> None:
    scalar = np.array([(1, 2.5)], [("a", ">i2"), ("b", "<f8")])[0]
    arrived = round_trip(scalar)
    assert arrived == scalar
    arrived["a"] = 5
    assert arrived["a"] == 5


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([None]), "Python objects; send array.tolist"),
        (np.zeros(2, [("a", "i4"), ("b", "O")]), "Python objects"),
        (np.zeros(0, [("a", [("b", "O", 2)])]), "Python objects"),
        (np.array(["text"], np.dtypes.StringDType()), "Python objects"),
        (np.zeros(1, [("a", "O")])[0], "Python objects"),
        (np.zeros(2, [("a", "i4"), ("b", "i4")])[["b", "a"]], "repack_fields"),
        (np.rec.array([(1,)], dtype=[("a", "i4")]), "numpy.asarray"),
        (np.rec.array([(1,)], dtype=[("a", "i4")])[0], "not built into NumPy"),
    ],
)
def test_a_value_without_plain_memory_is_refused_with_advice(value: Any, reason: str) -> None:
    with pytest.raises(EncodingError, match=reason) as refused:
        encode({"weights": [value]})
    assert str(refused.value).startswith("value['weights'][0] cannot be sent")


# Headers that lie.


@pytest.mark.parametrize(
    "shape",
    [
        [2],
        [4],
        [],
        [-3],
        [-1, -3],
        [3, -1],
        [3, 1.0],
        [3.0],
        ["3"],
        [True, 3],
        [None],
        [(1 << 64) - 1, 3],
        [(1 << 63) + 3],
        [0],
        [3] + [1] * 100,
        [3, 0],
        3,
        None,
        "abc",
        {"3": 3},
    ],
    ids=repr,
)
def test_a_shape_that_its_frame_does_not_fill_is_malformed(shape: object) -> None:
    with pytest.raises(MalformedError):
        received(9, ["<f8", shape, "C", 0], bytes(24))


@pytest.mark.parametrize(
    "name",
    [
        "|O",
        "O",
        "object",
        "<f3",
        "<f8,<f8",
        "float64",
        "f8",
        "=f8",
        "nonsense",
        "",
        None,
        8,
        b"<f8",
        [],
        [["a"]],
        [["a", "|O"]],
        [["a", "<f8"], ["a", "<f8"]],
        [["a", [["b", "|O"]]]],
        [["a", "<f8", [-1]]],
        [["a", "<f8", [1 << 62]]],
        [["a", "<f8", "xyz"]],
        [[1, "<f8"]],
        ["<f8", [3]],
        {"names": ["a"], "formats": ["O"]},
        "<M8[parsec]",
        "|V99999999999999999999",
        "|a8",
    ],
    ids=repr,
)
def test_an_unknown_dtype_is_malformed(name: object) -> None:
    for code, parts in ((9, [name, [3], "C", 0]), (10, [name, bytes(8)])):
        with pytest.raises(MalformedError):
            received(code, parts, bytes(24))


@pytest.mark.parametrize("order", ["X", "", "c", "CF", None, 0, ["C"]])
def test_an_unknown_order_is_malformed(order: object) -> None:
    with pytest.raises(MalformedError):
        received(9, ["<f8", [3], order, 0], bytes(24))


@pytest.mark.parametrize(
    "parts", [[], ["<f8"], ["<f8", [3], "C"], ["<f8", [3], "C", 0, 0], 7, None]
)
def test_an_array_with_invalid_parts_is_malformed(parts: object) -> None:
    with pytest.raises(MalformedError):
        received(9, parts, bytes(24))


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(9), "eight ch", 8, None, [0] * 8])
def test_a_scalar_with_invalid_bytes_is_malformed(data: object) -> None:
    with pytest.raises(MalformedError):
        received(10, ["<f8", data])


def test_text_beyond_unicode_is_malformed_as_a_scalar() -> None:
    with pytest.raises(MalformedError):
        received(10, ["<U1", b"\xff\xff\xff\xff"])


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 9), st.integers(0, 9999))
def test_a_shape_fits_its_frame_exactly_or_not_at_all(
    shape: list[int], item_bytes: int, frame_bytes: int
) -> None:
    needed = int(np.prod(shape)) * item_bytes
    check_size(shape, item_bytes, needed, "array")
    if frame_bytes != needed:
        with pytest.raises(MalformedError, match=f"takes {needed} bytes, its frame has"):
            check_size(shape, item_bytes, frame_bytes, "array")


@given(st.integers(0, 10_000))
def test_memory_for_a_frame_has_its_size_and_can_be_written(size: int) -> None:
    frame = allocate_frame(size)
    frame[:] = bytes(size)
    assert (frame.nbytes, frame.format) == (size, "B")


def test_a_read_only_frame_gives_a_read_only_array() -> None:
    message = encode(np.arange(3))
    arrived = decode(Message(message.tree, [memoryview(bytes(message.frames[0]))]))
    assert not arrived.flags.writeable


def test_an_array_of_invalid_text_can_be_received() -> None:
    # NumPy raises SystemError when asked to show such an array.
    odd = Ext(9, pack(["<U1", [1], "C", 0]))
    assert received(1, [odd], b"\xff" * 4)[0].shape == (1,)
    for code, parts in ((7, odd), (8, [odd, {}]), (9, [odd, [1], "C", 0]), (11, [odd] * 4)):
        with pytest.raises(MalformedError):
            received(code, parts, b"\xff" * 4)

"""Supported values survive encoding; others are refused with their path."""

import collections
import enum
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from melisma.axon.codec import encoding
from melisma.axon.codec.encoding import (
    FRAMED_BYTES,
    decode,
    decode_arguments,
    encode,
    encode_arguments,
)
from melisma.axon.codec.message import MAX_DEPTH, Message, parse_message
from melisma.errors import EncodingError, MalformedError, TooLargeError
from tests.axon import oversized_messages
from tests.axon.values import (
    TYPES,
    Key,
    Place,
    Sample,
    arrays,
    everything,
    hashable,
    pack,
    plain,
    received,
    round_trip,
    same,
    texts,
    values,
    wire_bytes,
)
from tests.lanes import cases


@settings(max_examples=cases(400))
@given(values)
def test_every_value_arrives_as_it_was_sent(value: object) -> None:
    assert same(value, round_trip(value))


@pytest.mark.parametrize("value", everything())
def test_one_value_of_each_kind_arrives_as_it_was_sent(value: object) -> None:
    assert same(value, round_trip(value))


@given(st.lists(plain, max_size=4), st.dictionaries(texts, plain, max_size=4))
@example([], {"": None})
def test_arguments_arrive_as_they_were_sent(args: list[Any], kwargs: dict[str, Any]) -> None:
    message = encode_arguments(tuple(args), kwargs)
    assert same([args, kwargs], list(decode_arguments(message, {})))


@given(st.lists(st.none() | st.booleans() | st.floats(), min_size=65, max_size=100), plain)
def test_a_long_list_of_mixed_values_arrives(many: list[Any], other: object) -> None:
    assert same(many, round_trip(many))
    assert same([*many, other, *many], round_trip([*many, other, *many]))


@given(st.integers(0, 200).flatmap(lambda bits: st.integers(-(1 << bits) - 1, (1 << bits) + 1)))
def test_an_int_of_any_size_arrives(number: int) -> None:
    assert same(number, round_trip(number))


def test_an_int_of_a_million_bits_arrives() -> None:
    assert round_trip(-(7**356_000)) == -(7**356_000)


@pytest.mark.parametrize("size", [0, 1, FRAMED_BYTES - 1, FRAMED_BYTES, FRAMED_BYTES + 1, 1 << 20])
def test_bytes_are_sent_in_a_frame_from_a_certain_size_on(size: int) -> None:
    data = bytes(size)
    message = encode([data])
    assert len(message.frames) == (size >= FRAMED_BYTES)
    assert same([data], decode(message))


def test_a_message_can_be_decoded_again() -> None:
    message = encode([b"x" * 5000, np.arange(3)])
    assert same(decode(message), decode(message))


@given(st.lists(arrays, max_size=3))
def test_every_array_has_its_own_frame(several: list[Any]) -> None:
    assert len(encode([*several, *several]).frames) == 2 * len(several)


# Values that cannot be sent.


@dataclass
class Holder:
    content: Any = None


STEPS: dict[str, Callable[[Any, int], tuple[Any, str]]] = {
    "list": lambda inner, place: ([0.5] * place + [inner, "after"], f"[{place}]"),
    "tuple": lambda inner, place: ((*"ab"[:place], inner), f"[{min(place, 2)}]"),
    "dict": lambda inner, place: ({"before": 1, f"key {place}": inner}, f"['key {place}']"),
    "odd dict": lambda inner, place: ({place: inner, None: 0}, f"[{place}]"),
    "dataclass": lambda inner, _: (Holder(inner), "['content']"),
    "struct": lambda inner, _: (Sample(1, inner), "['weights']"),
}
steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), max_size=8)
unsendable = st.sampled_from([object(), len, "\ud800", 1j, {"\udcff": 1}, np.array([None])])


@given(unsendable, steps)
def test_the_error_for_a_value_that_cannot_be_sent_contains_its_path(
    wrong: object, way: list[Any]
) -> None:
    place = "['\\udcff']" if isinstance(wrong, dict) else ""
    for step, number in way:
        wrong, piece = STEPS[step](wrong, number)
        place = piece + place
    with pytest.raises(EncodingError) as refused:
        encode_arguments((1, wrong), {})
    assert str(refused.value).startswith(f"argument [1]{place} cannot be sent: ")
    with pytest.raises(EncodingError) as refused:
        encode_arguments((), {"named": wrong})
    assert str(refused.value).startswith(f"argument ['named']{place} cannot be sent: ")
    with pytest.raises(EncodingError) as refused:
        encode(wrong, "result")
    assert str(refused.value).startswith(f"result{place} cannot be sent: ")


def test_the_path_is_written_as_in_python() -> None:
    with pytest.raises(EncodingError, match=r"^argument \[1\]\['weights'\]\[3\] cannot be sent"):
        encode_arguments((0, {"weights": [1, 2, 3, object()]}), {})


def test_the_path_to_a_key_that_cannot_be_sent_says_key() -> None:
    with pytest.raises(EncodingError, match=r"^value\[key 1\]\[0\] cannot be sent"):
        encode({1: 0, (object(),): 0})


class Colour(enum.IntEnum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("value", "name", "base", "advice"),
    [
        (Colour.RED, f"{__name__}.Colour", "int", "int(value)"),
        (Pair(1, 2), f"{__name__}.Pair", "tuple", "tuple(value)"),
        (collections.OrderedDict(a=1), "collections.OrderedDict", "dict", "dict(value)"),
        (collections.Counter("a"), "collections.Counter", "dict", "dict(value)"),
        (type("Rows", (list,), {})(), f"{__name__}.Rows", "list", "list(value)"),
        (type("Names", (set,), {})(), f"{__name__}.Names", "set", "set(value)"),
        (type("Names", (frozenset,), {})(), f"{__name__}.Names", "frozenset", "frozenset(value)"),
        (type("Name", (str,), {})(), f"{__name__}.Name", "str", "str(value)"),
        (type("Size", (float,), {})(), f"{__name__}.Size", "float", "float(value)"),
        (type("Raw", (bytes,), {})(), f"{__name__}.Raw", "bytes", "bytes(value)"),
        (
            np.ma.array([1]),
            f"{np.ma.MaskedArray.__module__}.MaskedArray",
            "numpy.ndarray",
            "numpy.asarray(value)",
        ),
    ],
)
def test_a_subclass_is_refused_with_advice(
    value: object, name: str, base: str, advice: str
) -> None:
    with pytest.raises(EncodingError) as refused:
        encode(value)
    assert str(refused.value) == (
        f"value cannot be sent: {name} is a subclass of {base}; send {advice}"
    )


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        Place,
        Ellipsis,
        NotImplemented,
        1j,
        range(3),
        bytearray(3),
        memoryview(b"x"),
        date(2024, 1, 1),
        Decimal(1),
        Path(),
        ValueError("x"),
        (item for item in "x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unsupported_type_is_refused_by_name(value: object) -> None:
    with pytest.raises(
        EncodingError, match=f"{type(value).__qualname__} is not supported; convert"
    ):
        encode(value)


def self_containing() -> dict[str, Any]:
    row: list[Any] = []
    row.append(row)
    table: dict[str, Any] = {}
    table["table"] = table
    keyed: dict[Any, Any] = {}
    keyed[1] = ([keyed],)
    record = Holder()
    record.content = record
    sample = Sample(1)
    sample.weights = [sample]
    return {"list": row, "dict": table, "odd dict": keyed, "dataclass": record, "struct": sample}


@pytest.mark.parametrize("kind", self_containing())
def test_a_container_that_contains_itself_is_refused(kind: str) -> None:
    with pytest.raises(EncodingError, match=f"nested more than {MAX_DEPTH} levels deep"):
        encode(self_containing()[kind])


@pytest.mark.parametrize("kind", sorted(STEPS))
@pytest.mark.parametrize("leaf", [1, "x", 0.5, None])
def test_nesting_arrives_up_to_the_limit_and_is_refused_beyond(kind: str, leaf: object) -> None:
    value = leaf
    for _ in range(MAX_DEPTH - 1):
        value, _place = STEPS[kind](value, 0)
    arrived = decode(encode(value), {**TYPES, "Holder": Holder})
    assert same(value, arrived)
    for _ in range(2):
        value, _place = STEPS[kind](value, 0)
    with pytest.raises(EncodingError, match="levels deep"):
        encode(value)


@dataclass
class Unset:
    late: int = field(init=False)


def test_a_record_with_a_field_that_has_no_value_is_refused() -> None:
    with pytest.raises(
        EncodingError, match=r"value\[0\] cannot be sent: one of its fields .*'late'"
    ):
        encode([Unset()])


def test_a_tree_over_the_limit_of_the_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_TREE_BYTES", 100)
    encode([b"x" * 5000, "x" * 50])
    with pytest.raises(EncodingError, match="the limit is 100; send large data as arrays"):
        encode(["x" * 100])


# Errors at the receiver.


@pytest.mark.parametrize("value", everything())
def test_a_message_cut_off_at_any_byte_is_malformed(value: object) -> None:
    data = wire_bytes(value)
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            decode(parse_message(data[:length]), TYPES)


@pytest.mark.parametrize("value", everything())
def test_a_tree_cut_off_at_any_byte_is_malformed(value: object) -> None:
    message = encode(value)
    for length in range(len(message.tree)):
        with pytest.raises(MalformedError):
            decode(Message(message.tree[:length], message.frames), TYPES)


@pytest.mark.parametrize("value", everything())
def test_a_message_that_lost_a_frame_is_malformed(value: object) -> None:
    message = encode(value)
    for number in range(len(message.frames)):
        with pytest.raises(MalformedError, match="frame"):
            decode(Message(message.tree, message.frames[:number]), TYPES)


@pytest.mark.parametrize(
    "number", [-1, 1, 1 << 40, 0.0, False, None, "0", [0], Ext(4, b"\x7f" * 5000)]
)
def test_a_missing_frame_is_malformed(number: object) -> None:
    with pytest.raises(MalformedError):
        received(7, number, b"frame")


def test_a_frame_used_by_two_values_is_malformed() -> None:
    # Else a small message of many references to one frame would fill the memory.
    with pytest.raises(MalformedError, match="frame 0 is used by two values"):
        received(1, [Ext(7, b"\x00")] * 2, b"frame")


def nested(levels: int, code: int) -> bytes:
    tree = b"\xc0"
    for _ in range(levels):
        tree = pack(Ext(code, b"\x91" + tree))
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        b"\x91" * 1_000_000 + b"\xc0",
        b"\x81\xc0" * 1_000_000 + b"\xc0",
        nested(2000, 1),
        nested(2000, 2),
        nested(2000, 6),
        nested(2000, 8),
        nested(2000, 9),
    ],
    ids=["arrays", "maps", "tuples", "sets", "dicts", "records", "NumPy arrays"],
)
def test_a_message_nested_too_deeply_is_malformed(tree: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(Message(tree), TYPES)


@pytest.mark.parametrize("name", oversized_messages.MESSAGES)
def test_an_oversized_length_allocates_no_memory(name: str) -> None:
    data = bytearray(oversized_messages.MESSAGES[name]())
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            decode(parse_message(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_oversized_length_is_refused_under_a_memory_limit() -> None:
    command = [sys.executable, "-m", "tests.axon.oversized_messages"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (run.returncode, run.stderr) == (0, "")


def test_no_memory_left_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(encoding, "_unpack", exhausted)
    with pytest.raises(TooLargeError, match="not enough memory"):
        decode(encode(1))


@pytest.mark.parametrize(
    "tree",
    [
        b"",
        b"\xc1",
        b"\xc0\xc0",
        b"\xa1\xff",
        b"\x81\x80\x01",
        pack(Ext(0, b"\xc0")),
        pack(Ext(12, b"\xc0")),
        pack(Ext(127, b"\xc0")),
        pack(Ext(-5, b"\xc0")),
        pack(Ext(1, b"")),
        pack(Ext(1, b"\x05")),
        pack(Ext(2, b"\x91\x90")),
        pack(Ext(5, b"yesterday")),
        pack(Ext(5, b"\xff")),
        pack(Ext(6, pack([[1], []]))),
        pack(Ext(6, pack([[1], [2], [3]]))),
        pack(Ext(6, pack([[[]], [2]]))),
        pack(Ext(6, pack(7))),
    ],
)
def test_bytes_that_are_not_a_tree_are_malformed(tree: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(Message(tree))


def test_the_last_value_of_a_repeated_key_is_used() -> None:
    assert decode(Message(b"\x82\xa1a\x01\xa1a\x02")) == {"a": 2}
    assert received(6, [[1, 1], ["first", "last"]]) == {1: "last"}


@pytest.mark.parametrize(
    "value", [None, 1, [], [[]], [[], {}, 1], [{}, []], [[], {1: 2}], {"a": 1}, [(), {}], "ab"]
)
def test_a_message_without_arguments_is_refused_as_a_call(value: object) -> None:
    with pytest.raises(MalformedError, match="list of arguments, map of keyword arguments"):
        decode_arguments(encode(value), {})


@given(st.dictionaries(hashable, texts, max_size=4), st.sets(hashable, max_size=4))
def test_any_hashable_can_be_a_key_and_in_a_set(mapping: dict[Any, str], several: set[Any]) -> None:
    assert same(mapping, round_trip(mapping))
    assert same(several, round_trip(several))


@given(values)
def test_one_unknown_record_makes_the_message_malformed(value: object) -> None:
    with pytest.raises(MalformedError, match="not a known type"):
        decode(parse_message(wire_bytes([value, Key(1)])), {})


def test_a_datetime_keeps_its_offset_but_not_the_rules_of_its_zone() -> None:
    text = "2024-07-01T12:00:00+02:00"
    arrived = round_trip(datetime.fromisoformat(text))
    assert arrived.isoformat() == text

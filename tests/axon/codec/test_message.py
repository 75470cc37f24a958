"""The layout of messages: valid ones are read back, others are malformed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.codec.message import (
    ALIGNMENT,
    MAGIC,
    MAX_FRAMES,
    PRELUDE,
    Message,
    buffers_bytes,
    describe_part,
    message_buffers,
    parse_message,
    read_prelude,
)
from melisma.errors import MalformedError, TooLargeError

messages = st.builds(
    Message,
    st.binary(max_size=200),
    st.lists(st.binary(max_size=200).map(memoryview), max_size=5),
)
EXAMPLE = Message(b"tree", [memoryview(bytes(size)) for size in (0, 1, 64, 100)])


def joined(message: Message) -> bytes:
    return b"".join(message_buffers(message))


@given(messages)
def test_a_written_message_is_read_back(message: Message) -> None:
    read = parse_message(joined(message))
    assert bytes(read.tree) == message.tree
    assert list(read.frames) == list(message.frames)


@given(messages)
def test_each_frame_starts_at_a_multiple_of_the_alignment(message: Message) -> None:
    data = joined(message)
    whole = memoryview(data)
    position = 0
    for frame in parse_message(data).frames:
        if frame.nbytes:
            position = next(
                start
                for start in range(0, len(data), ALIGNMENT)
                if start >= position and whole[start : start + frame.nbytes] == frame
            )
            position += frame.nbytes


@given(messages)
def test_the_size_is_the_sum_of_the_buffers(message: Message) -> None:
    assert buffers_bytes(message_buffers(message)) == len(joined(message))


def test_frames_are_neither_copied_when_written_nor_when_read() -> None:
    frame = memoryview(bytearray(1000))
    assert any(buffer is frame for buffer in message_buffers(Message(b"", [frame])))
    data = bytearray(joined(Message(b"", [frame])))
    parse_message(data).frames[0][7] = 5
    assert data.count(5) == 1


def test_a_message_cut_off_at_any_byte_is_malformed() -> None:
    data = joined(EXAMPLE)
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            parse_message(data[:length])


@given(messages, st.binary(min_size=1, max_size=100))
def test_a_message_with_trailing_bytes_is_malformed(message: Message, more: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_message(joined(message) + more)


@given(st.integers(0, 200) | st.integers(0, (1 << 32) - 1), st.binary(max_size=100))
def test_a_tree_of_another_size_than_stated_is_malformed(tree_bytes: int, rest: bytes) -> None:
    data = PRELUDE.pack(MAGIC, tree_bytes, 0) + rest
    if tree_bytes == len(rest):
        assert parse_message(data).tree == rest
    else:
        with pytest.raises(MalformedError, match=f"message of {len(data)} bytes"):
            parse_message(data)


@given(st.lists(st.integers(100, (1 << 64) - 1), min_size=1, max_size=9))
def test_frames_larger_than_the_message_are_malformed(sizes: list[int]) -> None:
    table = struct.pack(f"<{len(sizes)}Q", *sizes)
    with pytest.raises(MalformedError, match="the frames end at byte"):
        parse_message(PRELUDE.pack(MAGIC, 0, len(sizes)) + table)


def test_another_format_version_is_named_in_the_error() -> None:
    with pytest.raises(MalformedError, match=r"AXN2.*version 1"):
        parse_message(b"AXN2" + joined(EXAMPLE)[4:])


def test_a_tree_over_the_limit_is_too_large_and_names_the_limit() -> None:
    data = joined(Message(b"x" * 100))
    assert parse_message(data, max_tree_bytes=100).tree == b"x" * 100
    with pytest.raises(TooLargeError, match="max_tree_bytes"):
        parse_message(data, max_tree_bytes=99)


def test_more_frames_than_the_limit_are_too_large() -> None:
    prelude = PRELUDE.pack(MAGIC, 0, MAX_FRAMES + 1)
    with pytest.raises(TooLargeError, match="frames"):
        read_prelude(prelude, 1 << 40, 0)


@given(st.recursive(st.none() | st.text() | st.binary() | st.floats(), st.lists))
def test_the_description_of_a_part_is_short(part: object) -> None:
    assert 0 < len(describe_part(part)) <= 80


def test_describing_a_part_does_not_call_its_repr() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise SystemError

    assert describe_part(Shy()) == "a Shy"

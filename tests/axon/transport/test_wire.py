"""Receiving messages, here from a transport over recorded bytes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.codec.encoding import decode
from melisma.axon.codec.message import MAGIC, PRELUDE, Buffer, Message, message_buffers
from melisma.axon.transport.interface import EndOfStreamError, run_blocking
from melisma.axon.transport.wire import discard, read_bytes, read_message
from melisma.errors import MalformedError, TooLargeError
from tests.axon.values import TYPES, everything, same, wire_bytes


def example(frame_bytes: int) -> bytes:
    frames = [memoryview(bytes(frame_bytes)), memoryview(b"x")]
    return b"".join(message_buffers(Message(b"tree", frames)))


EXAMPLES = [example(70), example(20_000)]


class Tape:
    """A transport over recorded bytes."""

    def __init__(self, data: bytes | bytearray, *, ahead: bool = False) -> None:
        self.deadline_at: float | None = None
        self.left = memoryview(data)
        self.buffered_bytes = len(data) if ahead else 0
        self.ended = False

    def take_buffered(self, count: int) -> bytearray:
        taken, self.left = bytearray(self.left[:count]), self.left[count:]
        return taken

    async def wait_readable(self) -> bool:
        return self.left.nbytes > 0

    async def read_head(self) -> bytes:
        raise NotImplementedError

    async def read_into(self, view: memoryview) -> None:
        if view.nbytes > self.left.nbytes:
            raise EndOfStreamError
        view[:] = self.left[: view.nbytes]
        self.left = self.left[view.nbytes :]

    async def write(self, buffers: Sequence[Buffer]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def read(tape: Tape, message_bytes: int, max_tree_bytes: int = 1 << 20) -> Message:
    return run_blocking(read_message(tape, message_bytes, max_tree_bytes))


@pytest.mark.parametrize("value", everything())
def test_a_message_is_read_to_its_end_and_no_further(value: object) -> None:
    data = wire_bytes(value)
    tape = Tape(data + b"the next one")
    assert same(value, decode(read(tape, len(data)), TYPES))
    assert bytes(tape.left) == b"the next one"


@pytest.mark.parametrize("data", EXAMPLES)
def test_frames_are_received_into_memory_that_can_be_written(data: bytes) -> None:
    message = read(Tape(data), len(data))
    for frame in message.frames:
        frame[0] = 1
    assert bytes(message.tree) == b"tree"


@pytest.mark.parametrize("data", EXAMPLES)
def test_a_body_that_is_shorter_than_its_message_is_malformed(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            read(Tape(data), length)


@pytest.mark.parametrize("data", EXAMPLES)
def test_a_connection_that_ends_early_raises(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(EndOfStreamError):
            read(Tape(data[:length]), len(data))


@pytest.mark.parametrize("data", EXAMPLES)
def test_a_tree_over_the_limit_is_too_large(data: bytes) -> None:
    with pytest.raises(TooLargeError, match="max_tree_bytes"):
        read(Tape(data), len(data), max_tree_bytes=3)


def test_no_more_than_its_prelude_is_read_of_a_large_message_that_is_refused() -> None:
    data = EXAMPLES[1]
    tape = Tape(data)
    with pytest.raises(TooLargeError):
        read(tape, len(data), max_tree_bytes=3)
    assert tape.left.nbytes == len(data) - PRELUDE.size


def test_a_frame_that_does_not_fit_into_memory_is_too_large() -> None:
    size = 1 << 62
    head = PRELUDE.pack(MAGIC, 0, 1) + size.to_bytes(8, "little")
    with pytest.raises(TooLargeError, match="not enough memory"):
        read(Tape(head + bytes(100)), 64 + size)


@given(st.integers(0, 200_000))
def test_discard_reads_the_requested_number_of_bytes(count: int) -> None:
    tape = Tape(bytes(200_000))
    run_blocking(discard(tape, count))
    assert tape.left.nbytes == 200_000 - count


@given(st.binary(max_size=100), st.integers(0, 100))
def test_bytes_are_read_unchanged(data: bytes, count: int) -> None:
    if count > len(data):
        with pytest.raises(EndOfStreamError):
            run_blocking(read_bytes(Tape(data), count))
    else:
        assert run_blocking(read_bytes(Tape(data), count)) == data[:count]


@pytest.mark.parametrize("data", EXAMPLES)
def test_a_buffered_message_is_read_like_any_other(data: bytes) -> None:
    waited, ahead = (
        run_blocking(read_message(Tape(data, ahead=ahead), len(data), 100))
        for ahead in (False, True)
    )
    assert bytes(ahead.tree) == bytes(waited.tree)
    assert [bytes(frame) for frame in ahead.frames] == [bytes(frame) for frame in waited.frames]

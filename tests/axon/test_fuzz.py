"""A short run of ``python -m tests.axon.fuzz``, guided by hypothesis."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.axon.codec.message import Message
from tests.axon.fuzz import corpus, joined, mutant, put_together, read, rebuilt, taken_apart
from tests.axon.values import pack
from tests.lanes import cases

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")
MESSAGES = corpus()

edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 8), st.binary(max_size=8)),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, cut, put in changes:
        place = int(where * (len(data) + 1))
        data = data[:place] + put + data[place + cut :]
    return data


@pytest.mark.parametrize("message", MESSAGES)
def test_the_unmutated_messages_are_valid(message: Message) -> None:
    assert "decode: a value" in read(joined(message))


@given(st.binary(max_size=200))
def test_random_bytes_are_not_a_message(data: bytes) -> None:
    read(data)
    read(b"AXN1" + data)
    read(joined(Message(data)))


@settings(max_examples=cases(300))
@given(st.sampled_from(MESSAGES), edits)
def test_a_message_with_bytes_changed_gives_a_value_or_an_axon_error(
    message: Message, changes: list[tuple[float, int, bytes]]
) -> None:
    read(edited(joined(message), changes))


@settings(max_examples=cases(300))
@given(st.sampled_from(MESSAGES), edits)
def test_a_tree_with_bytes_changed_gives_a_value_or_an_axon_error(
    message: Message, changes: list[tuple[float, int, bytes]]
) -> None:
    read(joined(Message(edited(bytes(message.tree), changes), message.frames)))


@settings(max_examples=cases(400))
@given(st.integers(0, 1 << 64))
def test_a_mutant_gives_a_value_or_an_axon_error(seed: int) -> None:
    read(mutant(random.Random(seed), MESSAGES))


def test_the_same_seed_gives_the_same_mutant() -> None:
    one, other = (
        [mutant(rng, MESSAGES) for _ in range(50)] for rng in (random.Random(1), random.Random(1))
    )
    assert one == other


def test_a_tree_survives_taking_apart_and_joining() -> None:
    from msgspec.msgpack import decode

    for message in MESSAGES:
        assert pack(put_together(taken_apart(decode(message.tree)))) == message.tree
        assert rebuilt(random.Random(0), message, MESSAGES)

"""Invalid messages are rejected, and the node continues."""

from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.peer import messages, notices
from melisma.peer.algorithms import EventTriggeredSgd, GossipSgd
from melisma.peer.node_state import MAX_UPDATES_AHEAD
from tests.peer.tiny_nodes import (
    INITIAL,
    accepted,
    hello,
    new_node,
    of,
    sent,
    start,
    started,
    to_bytes,
    update,
)

DECODER = msgspec.msgpack.Decoder(messages.Message)


@pytest.mark.parametrize(
    "content", [b"1234567", to_bytes([7]), to_bytes([np.nan] * 4), to_bytes([1] * 5)]
)
@pytest.mark.parametrize("algorithm", [None, GossipSgd(), EventTriggeredSgd()])
def test_an_invalid_model_is_rejected(algorithm: Any, content: bytes) -> None:
    node = new_node(algorithm)
    node.start(0.0)
    offer = msgspec.structs.replace(accepted(done=3, steps=9, model=INITIAL), model=content)
    outputs = node.on_message(0.0, offer)
    assert [each.sender for each in of(outputs, notices.MessageRejected)] == ["b"]
    assert not node.started
    other = start(new_node(algorithm))
    message = msgspec.structs.replace(started(done=5, model=INITIAL), model=content)
    assert of(other.on_message(1.0, message), notices.MessageRejected)
    assert np.array_equal(other.model.vector, INITIAL)


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": np.nan},
        {"learning_rate": np.inf},
        {"learning_rate": -1.0},
        {"learning_rate": 1e30},
        {"number": 0},
        {"number": -5},
        {"number": 10**9},
    ],
)
def test_numbers_out_of_range_are_not_decoded(change: dict[str, Any]) -> None:
    encoded = msgspec.to_builtins(update(1), builtin_types=(bytes,)) | change
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(msgspec.msgpack.encode(encoded))
    assert DECODER.decode(msgspec.msgpack.encode(update(1))) == update(1)


def test_messages_of_a_rejected_neighbour_are_ignored() -> None:
    node = start(new_node(neighbours=("b", "c")))
    node.on_message(1.0, hello(sender="b", incarnation=2, model="another"))
    outputs = node.on_message(1.0, update(1, 5, incarnation=2)) + node.on_message(1.0, update(1, 5))
    assert not of(outputs, notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL)


def test_an_unknown_node_that_is_rejected_does_not_become_a_neighbour() -> None:
    node = start(new_node())
    outputs = node.on_message(1.0, hello(sender="x", model="another"))
    assert [each.reason for each in sent(outputs, messages.Rejected)] == [
        "model here is a line of 4 parameters, there another"
    ]
    assert [*node.neighbours] == ["b"]
    assert node.membership.degree == 1


def test_a_late_hello_rejects_only_the_former_incarnation() -> None:
    node = start(new_node())
    node.on_message(1.0, hello(incarnation=2))
    outputs = node.on_message(1.0, hello(incarnation=1, model="another"))
    assert [each.to_incarnation for each in sent(outputs, messages.Rejected)] == [1]
    assert node.neighbours["b"].reachable


def test_a_neighbour_whose_update_is_too_far_ahead_is_lost() -> None:
    node = start(new_node())
    outputs = node.on_message(1.0, update(MAX_UPDATES_AHEAD + 1))
    assert [each.name for each in of(outputs, notices.NeighbourLost)] == ["b"]
    assert not node.neighbours["b"].out_of_order

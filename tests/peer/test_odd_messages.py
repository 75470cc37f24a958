"""What neighbours may say that makes no sense: it is refused, and the node goes on."""

from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.peer import messages, notices
from melisma.peer.algorithms import EventTriggeredSgd, GossipSgd
from melisma.peer.group import check_node_name
from melisma.peer.node import MAX_UPDATES_AHEAD
from melisma.runs.peer_report import NodeReport
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
@pytest.mark.parametrize("said", [None, GossipSgd(), EventTriggeredSgd()])
def test_a_model_that_is_none_is_refused(said: Any, content: bytes) -> None:
    node = new_node(said)
    node.start(0.0)
    offer = msgspec.structs.replace(accepted(done=3, steps=9, model=INITIAL), model=content)
    found = node.on_message(0.0, offer)
    assert [each.sender for each in of(found, notices.MessageRejected)] == ["b"]
    assert not node.started
    other = start(new_node(said))
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
def test_numbers_that_no_node_says_are_not_read(change: dict[str, Any]) -> None:
    said = msgspec.to_builtins(update(1), builtin_types=(bytes,)) | change
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(msgspec.msgpack.encode(said))
    assert DECODER.decode(msgspec.msgpack.encode(update(1))) == update(1)


def test_who_is_refused_is_not_listened_to() -> None:
    node = start(new_node(neighbours=("b", "c")))
    node.on_message(1.0, hello(sender="b", incarnation="2", model="another"))
    found = node.on_message(1.0, update(1, 5, incarnation="2")) + node.on_message(1.0, update(1, 5))
    assert not of(found, notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL)


def test_a_stranger_that_is_refused_leaves_nothing_behind() -> None:
    node = start(new_node())
    found = node.on_message(1.0, hello(sender="x", model="another"))
    assert [each.reason for each in sent(found, messages.Rejected)] == [
        "model here is a line of 4 parameters, there another"
    ]
    assert [*node.neighbours] == ["b"]
    assert node.membership.degree == 1


def test_a_late_greeting_of_a_former_life_refuses_only_that_one() -> None:
    node = start(new_node())
    node.on_message(1.0, hello(incarnation="2"))
    found = node.on_message(1.0, hello(incarnation="1", model="another"))
    assert [each.to_incarnation for each in sent(found, messages.Rejected)] == ["1"]
    assert node.neighbours["b"].reachable


def test_what_is_too_far_ahead_is_not_waited_for() -> None:
    node = start(new_node())
    found = node.on_message(1.0, update(MAX_UPDATES_AHEAD + 1))
    assert [each.name for each in of(found, notices.NeighbourLost)] == ["b"]
    assert not node.neighbours["b"].out_of_order


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "-x", "a b", "x" * 33, "é"])
def test_names_that_could_be_paths_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match="is not a name for a node"):
        check_node_name(name)


@pytest.mark.parametrize("name", ["a", "pi-4.kitchen", "_x", "x" * 32])
def test_other_names_are_not(name: str) -> None:
    check_node_name(name)


def test_a_report_of_a_node_that_never_began_can_be_read_again() -> None:
    report = NodeReport(name="a", outcome="failed", reason="refused")
    assert msgspec.json.decode(msgspec.json.encode(report), type=NodeReport) == report

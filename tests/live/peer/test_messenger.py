"""Messages between nodes over Axon."""

import socket
import threading
import time
from queue import Empty

import pytest

from melisma.live.peer.messenger import MessageReceived, Messenger, NeighbourUnreachable
from melisma.peer import messages


def test_messages_to_an_unreachable_neighbour_are_not_tried_one_by_one() -> None:
    """Each attempt would take patience_s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    messenger = Messenger("a", "1", None, 0.3, {"b": address})
    for _ in range(100):
        messenger.send("b", messages.Heartbeat(sender="a", incarnation=1))
    began = time.monotonic()
    messenger.flush(threading.Event(), 1.0)
    assert time.monotonic() - began < 10
    event = messenger.events.get_nowait()
    assert isinstance(event, NeighbourUnreachable)
    assert event.name == "b"
    assert event.reason
    assert messenger.sent_messages == 0


def test_an_invalid_message_and_the_name_of_the_receiver_are_rejected() -> None:
    messenger = Messenger("a", "1", None, 0.3, {}, address="http://here:1")
    assert messenger.deliver(b"\xff", "http://there:1").startswith("invalid message: ")
    content = b"\x83\xa4type\xa9Heartbeat\xa6sender\xa1a\xabincarnation\xa12"
    assert (
        messenger.deliver(content, "http://there:1")
        == "the name a is in use by the node at http://here:1"
    )
    with pytest.raises(Empty):
        messenger.events.get_nowait()
    assert messenger.deliver(content.replace(b"\xa1a\xab", b"\xa1b\xab"), "http://there:1") == ""
    assert messenger.events.get_nowait() == MessageReceived(
        messages.Heartbeat(sender="b", incarnation=2)
    )
    assert messenger.address_of("b") is None

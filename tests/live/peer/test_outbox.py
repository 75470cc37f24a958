"""Messages that a node sends to a neighbour."""

import socket
import threading
import time
from contextlib import ExitStack

from melisma import axon
from melisma.live.peer.admission import ControlToken
from melisma.live.peer.messenger import Messenger
from melisma.live.peer.network_events import (
    MessageAcknowledged,
    MessageReceived,
    NeighbourUnreachable,
)
from melisma.live.peer.outbox import MAX_CANDIDATES
from melisma.peer import messages
from tests.live.peer.test_messenger import ADDRESS, admission


def test_messages_to_an_unreachable_neighbour_are_not_tried_one_by_one() -> None:
    """Each attempt would take patience_s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    messenger = Messenger(admission("a"), 0.3, {"b": address})
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


def test_a_neighbour_is_found_behind_announced_addresses_that_do_not_answer() -> None:
    """Ports that accept connections and stay silent; an invalid address is left out."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(MAX_CANDIDATES + 1)
        ]
        silent = [f"http://127.0.0.1:{server.getsockname()[1]}" for server in servers]
        receiver = Messenger(admission("b"), 30.0, {})
        worker = axon.Worker(port=0, authenticator=ControlToken(None, open_to_all=False))
        worker.expose(receiver, ["introduce", "admit", "deliver"], name="")
        receiver.address = stack.enter_context(worker.start())
        announced = ["no address", *silent, receiver.address]
        sender = Messenger(admission("a"), 20.0, {}, look_up=lambda _: announced)
        sender.address = ADDRESS
        message = messages.Heartbeat(sender="a", incarnation=1)
        sender.send("b", message)
        assert isinstance(sender.events.get(timeout=30), MessageAcknowledged)
        event = receiver.events.get(timeout=1)
        assert isinstance(event, MessageReceived)
        assert event.message == message

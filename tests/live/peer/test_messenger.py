"""Messages between nodes over Axon."""

import socket
import threading
import time
from contextlib import ExitStack
from queue import Empty

import msgspec
import pytest

from melisma import axon
from melisma.errors import BusyError, UnauthorizedError
from melisma.live.peer.admission import Admission, ControlToken
from melisma.live.peer.messenger import (
    MAX_CANDIDATES,
    MAX_RECEIVED_MESSAGES,
    MessageAcknowledged,
    MessageReceived,
    Messenger,
    NeighbourUnreachable,
)
from melisma.peer import messages
from melisma.peer.keyring import KeyRing
from melisma.peer.proofs import NONCE_BYTES, Meeting, NodeKey, content_to_sign, group_secret

ADDRESS = "http://127.0.0.1:1"


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


def admission(name: str, token: str | None = None) -> Admission:
    return Admission(name, token, NodeKey.create(), KeyRing(name), incarnation=1)


def admitted(receiver: Messenger, sender: Admission) -> Messenger:
    """Let a node prove itself to another, without a network."""
    nonce = b"n" * NONCE_BYTES
    answer = receiver.admission.introduce(nonce)
    meeting = Meeting(nonce, answer.nonce, "", answer.name, answer.key, answer.incarnation)
    proof = meeting.caller_proof(group_secret(sender.token), sender.name, sender.key.public)
    key = sender.key
    assert receiver.admit(answer.nonce, sender.name, key.public, proof, key.sign(proof)) == ""
    return receiver


def deliver(receiver: Messenger, sender: Admission, message: messages.Message | bytes) -> str:
    content = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    signature = sender.key.sign(content_to_sign(receiver.name, ADDRESS, content))
    return receiver.deliver(content, ADDRESS, sender.key.public, signature)


def test_an_invalid_message_and_a_wrong_signature_are_rejected() -> None:
    b = admission("b")
    messenger = admitted(Messenger(admission("a"), 0.3, {}), b)
    assert deliver(messenger, b, b"\xff").startswith("invalid message: ")
    message = messages.Heartbeat(sender="b", incarnation=2)
    content = msgspec.msgpack.encode(message)
    for to, address in (("c", ADDRESS), ("a", "http://127.0.0.1:2")):
        signature = b.key.sign(content_to_sign(to, address, content))
        answer = messenger.deliver(content, ADDRESS, b.key.public, signature)
        assert answer == "the signature of the message is wrong"
    with pytest.raises(Empty):
        messenger.events.get_nowait()
    assert deliver(messenger, b, message) == ""
    assert messenger.events.get_nowait() == MessageReceived(message, b.key.public)
    assert messenger.addresses_of("b") == []


def test_a_key_that_has_not_proved_the_token_is_refused() -> None:
    messenger = Messenger(admission("a", "secret"), 0.3, {})
    with pytest.raises(UnauthorizedError, match="has not admitted the sender"):
        deliver(messenger, admission("b"), messages.Heartbeat(sender="b", incarnation=1))
    with pytest.raises(UnauthorizedError, match="use the same token for all nodes"):
        admitted(messenger, admission("b", "wrong"))
    admitted(messenger, admission("b", "secret"))


def test_a_proof_cannot_be_used_twice_or_for_another_certificate() -> None:
    messenger, b = Messenger(admission("a"), 0.3, {}), admission("b")
    answer = messenger.admission.introduce(b"n" * NONCE_BYTES)
    for fingerprint, error in (("sha256:00", "the proof is wrong"), ("", "late or was used")):
        meeting = Meeting(b"n" * NONCE_BYTES, answer.nonce, fingerprint, "a", answer.key, 1)
        proof = meeting.caller_proof(group_secret(None), "b", b.key.public)
        with pytest.raises(UnauthorizedError, match=error):
            messenger.admit(answer.nonce, "b", b.key.public, proof, b.key.sign(proof))


def test_a_sender_whose_messages_are_not_handled_is_told_to_wait() -> None:
    b = admission("b")
    messenger = admitted(Messenger(admission("a"), 0.3, {}), b)
    message = messages.Heartbeat(sender="b", incarnation=1)
    for _ in range(MAX_RECEIVED_MESSAGES):
        assert deliver(messenger, b, message) == ""
    with pytest.raises(BusyError):
        deliver(messenger, b, message)
    messenger.record_handled(messenger.events.get_nowait())
    assert deliver(messenger, b, message) == ""


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

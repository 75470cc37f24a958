"""Messages that a node receives over Axon."""

from queue import Empty

import msgspec
import pytest

from melisma.errors import BusyError, UnauthorizedError
from melisma.live.peer.admission import Admission
from melisma.live.peer.messenger import MAX_RECEIVED_MESSAGES, Messenger
from melisma.live.peer.network_events import MessageReceived
from melisma.peer import messages
from melisma.peer.keyring import KeyRing
from melisma.peer.proofs import NONCE_BYTES, Meeting, NodeKey, content_to_sign, group_secret

ADDRESS = "http://127.0.0.1:1"


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

"""Messages that are not acknowledged."""

from melisma.peer import commands, messages
from melisma.peer.sent_messages import SentMessages
from tests.peer.tiny_nodes import heartbeat, started, update


def to(name: str, message: messages.Message) -> commands.Send:
    return commands.Send(to=name, message=message)


def test_a_message_is_kept_until_it_is_acknowledged_or_its_receiver_is_given_up() -> None:
    sent = SentMessages()
    numbers = [sent.add(to(name, started())) for name in ("b", "c", "b", "d")]
    assert [*sent.pending()] == numbers
    sent.acknowledge(numbers[1])
    sent.acknowledge(numbers[1])
    assert [each.to for each in sent.pending().values()] == ["b", "b", "d"]
    sent.drop("b")
    assert sent.pending() == {numbers[3]: to("d", started())}


def test_heartbeats_are_not_kept() -> None:
    sent = SentMessages()
    assert sent.add(to("b", heartbeat())) == 0
    sent.acknowledge(0)
    assert sent.pending() == {}


def test_an_update_to_several_neighbours_is_written_once() -> None:
    sent = SentMessages()
    sends = [to(name, update(number, number)) for number in (1, 2) for name in ("b", "c")]
    sends.insert(1, to("b", started()))
    for send in sends:
        sent.add(send)
    numbered, contents = sent.without_contents()
    assert len(contents) == 2
    assert all(getattr(each.message, "content", b"") == b"" for each, _ in numbered)
    again = SentMessages.with_contents(numbered, contents)
    assert [*again.pending().values()] == sends

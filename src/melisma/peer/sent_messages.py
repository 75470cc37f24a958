"""The messages of a node that its neighbours have not acknowledged: they are sent again.

Heartbeats are not kept: they say nothing that a later one does not say.
"""

from itertools import count

import msgspec

from melisma.peer import commands, messages

Numbered = tuple[commands.Send, int | None]
"""A message, and the index of its content if that is kept apart."""


class SentMessages:
    """Messages by number, in the order in which they were sent."""

    def __init__(self) -> None:
        self._messages: dict[int, commands.Send] = {}
        self._numbers = count(1)

    def add(self, send: commands.Send) -> int:
        """Keep a message until it is acknowledged; return its number, 0 if it is not kept."""
        if isinstance(send.message, messages.Heartbeat):
            return 0
        number = next(self._numbers)
        self._messages[number] = send
        return number

    def acknowledge(self, number: int) -> None:
        """Forget a message that arrived, or that was rejected."""
        self._messages.pop(number, None)

    def drop(self, name: str) -> None:
        """Forget the messages to a neighbour that is given up."""
        self._messages = {key: it for key, it in self._messages.items() if it.to != name}

    def pending(self) -> dict[int, commands.Send]:
        """Return the messages by number, the oldest first."""
        return dict(self._messages)

    def without_contents(self) -> tuple[list[Numbered], list[bytes]]:
        """Return the messages, and apart from them the contents of updates, each once."""
        indices: dict[bytes, int] = {}
        numbered: list[Numbered] = []
        for send in self._messages.values():
            if isinstance(update := send.message, messages.Update):
                index = indices.setdefault(update.content, len(indices))
                without = msgspec.structs.replace(update, content=b"")
                numbered.append((commands.Send(to=send.to, message=without), index))
            else:
                numbered.append((send, None))
        return numbered, [*indices]

    @classmethod
    def with_contents(cls, numbered: list[Numbered], contents: list[bytes]) -> "SentMessages":
        """Return the messages that `without_contents` was called on."""
        sent = cls()
        for send, index in numbered:
            message = send.message
            if index is not None and isinstance(message, messages.Update):
                message = msgspec.structs.replace(message, content=contents[index])
            sent.add(commands.Send(to=send.to, message=message))
        return sent

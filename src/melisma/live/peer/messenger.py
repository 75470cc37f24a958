"""Messages between nodes over Axon: whoever is called has them; who calls tries until it is heard.

Every message goes with the address that its sender is called at, so that nodes that come later, or
come back at another place, are found. To be called by a name that another node has is refused.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue

import msgspec

from melisma import axon
from melisma.axon.address import Address
from melisma.errors import (
    BusyError,
    LostError,
    MelismaError,
    RefusedError,
    SettingError,
    TooLargeError,
    UnauthorizedError,
)
from melisma.peer import messages
from melisma.peer.group import NAME

ANSWER_S = 2.0
"""How long a node is given to say who it is."""
PAUSE_S = 0.2
MAX_INCARNATION_LETTERS = 64  # letters of a life
MAX_QUEUED_MESSAGES = 200
"""Messages to one neighbour; then it is too slow."""
PERMANENT_ERRORS = (UnauthorizedError, RefusedError, TooLargeError, SettingError)
"""What will not be otherwise by trying again."""
DECODER = msgspec.msgpack.Decoder(messages.Message)


@dataclass(frozen=True)
class MessageReceived:
    """A message has come."""

    message: messages.Message


@dataclass(frozen=True)
class MessageAcknowledged:
    """One of ours has; it took so long to know."""

    took_s: float


@dataclass(frozen=True)
class NeighbourUnreachable:
    """A neighbour does not answer any more: what came instead."""

    name: str
    why: str


NetworkEvent = MessageReceived | MessageAcknowledged | NeighbourUnreachable
Find = Callable[[str], str | None]


@dataclass
class Messenger:
    """The letter box of one node, and a line to each of its neighbours.

    `find` tells the address of a neighbour by its name, where `addresses` do not.
    """

    name: str
    incarnation: str
    token: str | None
    patience_s: float
    addresses: dict[str, str]
    look_up: Find = lambda _: None
    events: "SimpleQueue[NetworkEvent]" = field(default_factory=SimpleQueue)
    status: Callable[[], Mapping[str, float]] = dict
    expected: frozenset[str] = frozenset()
    address: str = ""
    sent_bytes: int = 0
    sent_messages: int = 0

    def __post_init__(self) -> None:
        self._lives: dict[str, str] = {}
        self._lines: dict[str, Outbox] = {}
        self._lock = threading.Lock()

    # What others call.

    def deliver(self, content: bytes, address: str) -> str:
        """Take a message of a neighbour, which is called at that address; why not, if not."""
        try:
            message = DECODER.decode(content)
        except msgspec.DecodeError as error:
            return f"no message of a node: {error}"
        if not NAME.fullmatch(message.sender) or len(message.incarnation) > MAX_INCARNATION_LETTERS:
            return "a node's name has letters, digits, . _ -, at most 32"
        if taken := self._taken(message, address):
            return f"{message.sender} is the name of the node at {taken} already"
        try:
            Address.parse(address)
        except SettingError as error:
            return str(error)
        with self._lock:
            # What was said of a neighbour's place holds until it begins anew somewhere else.
            life = self._lives.get(message.sender)
            expected = message.sender in self.expected or isinstance(message, messages.Hello)
            if life is None and expected:
                self.addresses.setdefault(message.sender, address)
            elif life is not None and message.incarnation > life:
                self.addresses[message.sender] = address
            if message.incarnation > (life or ""):
                self._lives[message.sender] = message.incarnation
        self.events.put(MessageReceived(message))
        return ""

    def identify(self) -> dict[str, str]:
        """Who this is."""
        return {"name": self.name, "incarnation": self.incarnation}

    def progress(self) -> dict[str, float]:
        """How far it is."""
        return dict(self.status())

    def _taken(self, message: messages.Message, address: str) -> str:
        """Where another node of that name is, if it is still there."""
        if message.sender == self.name:
            return self.address
        known, life = self.addresses.get(message.sender), self._lives.get(message.sender)
        if known in (None, address) or life in (None, message.incarnation):
            return ""
        return known if _who(known, self.token) == (message.sender, life) else ""

    # Calling others.

    def send(self, to: str, message: messages.Message) -> None:
        """Have it sent to that neighbour."""
        if to not in self._lines:
            self._lines[to] = Outbox(self, to)
        line = self._lines[to]
        if line.queue.qsize() > MAX_QUEUED_MESSAGES:
            line.clear()
            self.events.put(
                NeighbourUnreachable(to, f"more than {MAX_QUEUED_MESSAGES} messages wait for it")
            )
        line.queue.put(msgspec.msgpack.encode(message))

    def flush(self, hurry: threading.Event, within_s: float) -> None:
        """Wait until all that was sent has arrived, or was given up; in a hurry not for long."""
        for line in self._lines.values():
            line.queue.put(None)
        while any(line.thread.is_alive() for line in self._lines.values()):
            if hurry.is_set():
                within_s -= PAUSE_S
                if within_s < 0:
                    return
            time.sleep(PAUSE_S / 4 if not hurry.is_set() else PAUSE_S)

    def count_sent(self, size_bytes: int) -> None:
        """One more was sent."""
        with self._lock:
            self.sent_messages += 1
            self.sent_bytes += size_bytes

    def address_of(self, name: str) -> str | None:
        """Where that neighbour is called."""
        known = self.addresses.get(name)
        if known is None and (found := self.look_up(name)) is not None:
            known = self.addresses.setdefault(name, found)
        return known


class Outbox:
    """Sends to one neighbour, one message after the other."""

    def __init__(self, post: Messenger, to: str) -> None:
        self._post, self._to = post, to
        self.queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._remote: tuple[str, axon.Remote] | None = None
        self._why = ""
        self.thread = threading.Thread(target=self._work, name=f"to-{to}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        post = self._post
        while (content := self.queue.get()) is not None:
            began = time.monotonic()
            refused = self._tried(content, began + post.patience_s)
            if refused is None:
                # What waits behind it would take as long again, one by one.
                ends = self.clear()
                post.events.put(NeighbourUnreachable(self._to, self._why))
                if ends:
                    break
            elif refused:
                why = messages.Rejected(
                    sender=self._to, incarnation="", to_incarnation=post.incarnation, reason=refused
                )
                post.events.put(MessageReceived(why))
            else:
                post.events.put(MessageAcknowledged(time.monotonic() - began))
        if self._remote is not None:
            self._remote[1].__exit__()

    def clear(self) -> bool:
        """Forget what was to be sent so far; whether there will be no more."""
        while not self.queue.empty():
            if self.queue.get() is None:
                self.queue.put(None)
                return True
        return False

    def _tried(self, content: bytes, until: float) -> str | None:
        """Until it is heard: why it was refused, or nothing; `None` if nobody answers in time."""
        post = self._post
        while (left_s := until - time.monotonic()) > 0:
            try:
                remote = self._connected()
                if remote is not None:
                    refused = str(remote(deadline_s=left_s).deliver(content, post.address))
                    post.count_sent(len(content))
                    return refused
            except (BusyError, LostError) as error:
                # It may well have been sent, and is sent again.
                post.count_sent(len(content))
                self._why = str(error)
            except PERMANENT_ERRORS as error:
                return str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - whatever it is, the line must not end
                self._remote, self._why = None, str(error) or type(error).__name__
            time.sleep(min(PAUSE_S, max(0.0, until - time.monotonic())))
        return None

    def _connected(self) -> axon.Remote | None:
        address = self._post.address_of(self._to)
        if address is None:
            self._why = "nobody knows its address"
            return None
        if self._remote is None or self._remote[0] != address:
            self._remote = address, axon.connect(address, token=self._post.token)
        return self._remote[1]


def _who(address: str, token: str | None) -> tuple[str, str] | None:
    """Who is called at an address; nobody, if it does not answer."""
    try:
        with axon.connect(address, token=token, deadline_s=ANSWER_S) as remote:
            found = remote.identify()
    except MelismaError:
        return None
    return found["name"], found["incarnation"]

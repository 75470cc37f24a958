"""Messages between nodes over Axon: received by calls, sent until a call returns.

Every message carries the address of its sender, so that nodes that join later, or return at
another address, are found. A second node with the name of another is rejected.
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
from melisma.peer.group import NODE_NAME

IDENTIFY_S = 2.0
"""The time that a node is given to identify itself."""
RETRY_S = 0.2
MAX_INCARNATION_LETTERS = 64
MAX_QUEUED_MESSAGES = 200
"""The number of messages to one neighbour after which it counts as too slow."""
PERMANENT_ERRORS = (UnauthorizedError, RefusedError, TooLargeError, SettingError)
"""Errors for which a second attempt is useless."""
DECODER: msgspec.msgpack.Decoder[messages.Message] = msgspec.msgpack.Decoder(messages.Message)


@dataclass(frozen=True)
class MessageReceived:
    """A message arrived."""

    message: messages.Message


@dataclass(frozen=True)
class MessageAcknowledged:
    """A message that was sent arrived; the call took that long."""

    round_trip_s: float


@dataclass(frozen=True)
class NeighbourUnreachable:
    """A neighbour does not answer any more."""

    name: str
    reason: str


NetworkEvent = MessageReceived | MessageAcknowledged | NeighbourUnreachable
LookUp = Callable[[str], str | None]


@dataclass
class Messenger:
    """Receives the messages of one node, with an outbox for each of its neighbours.

    `look_up` returns the address of a neighbour that is not in `addresses`. Events for the node
    are in the queue `events`.
    """

    name: str
    incarnation: str
    token: str | None
    patience_s: float
    addresses: dict[str, str]
    look_up: LookUp = lambda _: None
    events: "SimpleQueue[NetworkEvent]" = field(default_factory=SimpleQueue)
    status: Callable[[], Mapping[str, float]] = dict
    expected: frozenset[str] = frozenset()
    address: str = ""
    sent_bytes: int = 0
    sent_messages: int = 0

    def __post_init__(self) -> None:
        self._incarnations: dict[str, str] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._lock = threading.Lock()

    # Remote methods.

    def deliver(self, content: bytes, address: str) -> str:
        """Receive a message of the node at `address`; return why it is rejected, or nothing."""
        try:
            message = DECODER.decode(content)
        except msgspec.DecodeError as error:
            return f"invalid message: {error}"
        too_long = len(message.incarnation) > MAX_INCARNATION_LETTERS
        if not NODE_NAME.fullmatch(message.sender) or too_long:
            return "invalid name of a node; expected letters, digits, . _ -, at most 32"
        if owner := self._address_of_namesake(message, address):
            return f"the name {message.sender} is in use by the node at {owner}"
        try:
            Address.parse(address)
        except SettingError as error:
            return str(error)
        self._record_address(message, address)
        self.events.put(MessageReceived(message))
        return ""

    def identify(self) -> dict[str, str]:
        """Return the name and incarnation of this node."""
        return {"name": self.name, "incarnation": self.incarnation}

    def progress(self) -> dict[str, float]:
        """Return the progress of this node."""
        return dict(self.status())

    def _address_of_namesake(self, message: messages.Message, address: str) -> str:
        """Return the address of another node of the sender's name that still answers."""
        if message.sender == self.name:
            return self.address
        known = self.addresses.get(message.sender)
        incarnation = self._incarnations.get(message.sender)
        if known in (None, address) or incarnation in (None, message.incarnation):
            return ""
        return known if _identify(known, self.token) == (message.sender, incarnation) else ""

    def _record_address(self, message: messages.Message, address: str) -> None:
        """Record the sender's address; a given address is kept until the neighbour restarts."""
        sender = message.sender
        with self._lock:
            incarnation = self._incarnations.get(sender)
            expected = sender in self.expected or isinstance(message, messages.Hello)
            if incarnation is None and expected:
                self.addresses.setdefault(sender, address)
            elif incarnation is not None and message.incarnation > incarnation:
                self.addresses[sender] = address
            if message.incarnation > (incarnation or ""):
                self._incarnations[sender] = message.incarnation

    # Sending.

    def send(self, to: str, message: messages.Message) -> None:
        """Queue a message for a neighbour."""
        if to not in self._outboxes:
            self._outboxes[to] = Outbox(self, to)
        outbox = self._outboxes[to]
        if outbox.queue.qsize() > MAX_QUEUED_MESSAGES:
            outbox.clear()
            reason = f"more than {MAX_QUEUED_MESSAGES} messages are queued for it"
            self.events.put(NeighbourUnreachable(to, reason))
        outbox.queue.put(msgspec.msgpack.encode(message))

    def flush(self, interrupted: threading.Event, limit_s: float) -> None:
        """Wait until all messages have arrived or are given up; up to `limit_s` if interrupted."""
        for outbox in self._outboxes.values():
            outbox.queue.put(None)
        while any(outbox.thread.is_alive() for outbox in self._outboxes.values()):
            if interrupted.is_set():
                limit_s -= RETRY_S
                if limit_s < 0:
                    return
            time.sleep(RETRY_S / 4 if not interrupted.is_set() else RETRY_S)

    def count_sent(self, size_bytes: int) -> None:
        """Count a message that was sent."""
        with self._lock:
            self.sent_messages += 1
            self.sent_bytes += size_bytes

    def address_of(self, name: str) -> str | None:
        """Return the address of a neighbour; None if it is not known yet."""
        known = self.addresses.get(name)
        if known is None and (address := self.look_up(name)) is not None:
            known = self.addresses.setdefault(name, address)
        return known


class Outbox:
    """Sends messages to one neighbour in order, in a thread of its own."""

    def __init__(self, messenger: Messenger, to: str) -> None:
        self._messenger, self._to = messenger, to
        self.queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._remote: tuple[str, axon.Remote] | None = None
        self._reason = ""
        self.thread = threading.Thread(target=self._run, name=f"to-{to}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        messenger = self._messenger
        while (content := self.queue.get()) is not None:
            start_s = time.monotonic()
            rejection = self._send(content, start_s + messenger.patience_s)
            if rejection is None:
                # Each of the messages behind it would take as long again.
                closed = self.clear()
                messenger.events.put(NeighbourUnreachable(self._to, self._reason))
                if closed:
                    break
            elif rejection:
                rejected = messages.Rejected(
                    sender=self._to,
                    incarnation="",
                    to_incarnation=messenger.incarnation,
                    reason=rejection,
                )
                messenger.events.put(MessageReceived(rejected))
            else:
                messenger.events.put(MessageAcknowledged(time.monotonic() - start_s))
        if self._remote is not None:
            self._remote[1].__exit__()

    def clear(self) -> bool:
        """Drop all queued messages; return whether the outbox was closed behind them."""
        while not self.queue.empty():
            if self.queue.get() is None:
                self.queue.put(None)
                return True
        return False

    def _send(self, content: bytes, until_s: float) -> str | None:
        """Try until it arrives; return a rejection, an empty string, or None if out of time."""
        messenger = self._messenger
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                remote = self._connect()
                if remote is not None:
                    rejection = str(remote(deadline_s=left_s).deliver(content, messenger.address))
                    messenger.count_sent(len(content))
                    return rejection
            except (BusyError, LostError) as error:
                # It may have arrived; it is counted, and sent again.
                messenger.count_sent(len(content))
                self._reason = str(error)
            except PERMANENT_ERRORS as error:
                return str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - no error may end the thread
                self._remote, self._reason = None, str(error) or type(error).__name__
            time.sleep(min(RETRY_S, max(0.0, until_s - time.monotonic())))
        return None

    def _connect(self) -> axon.Remote | None:
        address = self._messenger.address_of(self._to)
        if address is None:
            self._reason = "its address is unknown"
            return None
        if self._remote is None or self._remote[0] != address:
            self._remote = address, axon.connect(address, token=self._messenger.token)
        return self._remote[1]


def _identify(address: str, token: str | None) -> tuple[str, str] | None:
    """Ask the node at an address for its name and incarnation; None if it does not answer."""
    try:
        with axon.connect(address, token=token, deadline_s=IDENTIFY_S) as remote:
            identity = remote.identify()
    except MelismaError:
        return None
    return identity["name"], identity["incarnation"]

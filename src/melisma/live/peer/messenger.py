"""Messages between nodes over Axon: received by calls, and sent by an outbox for each neighbour.

Both ends prove to know the token of the group before the first message, and each message is signed
by its sender for its receiver. Every message carries the address of its sender, so that nodes that
join later, or return at another address, are found. A second node with the name of another is
rejected.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import msgspec

from melisma import axon
from melisma.axon.server.authentication import OWNER
from melisma.errors import BusyError, MelismaError, SettingError, UnauthorizedError
from melisma.live.peer.admission import IDENTIFY_S, NOT_ADMITTED, Admission, is_protected
from melisma.live.peer.network_events import (
    MessageReceived,
    NameRefused,
    NeighbourUnreachable,
    NetworkEvent,
)
from melisma.live.peer.outbox import RETRY_S, Outbox
from melisma.peer import messages
from melisma.peer.group import NODE_NAME
from melisma.peer.neighbour import Neighbour
from melisma.peer.proofs import content_to_sign, is_signed

MAX_RECEIVED_MESSAGES = 64
"""The number of messages of one node that may wait to be handled."""
MAX_QUEUED_MESSAGES = 200
"""The number of messages to one neighbour after which it counts as too slow."""
DECODER: msgspec.msgpack.Decoder[messages.Message] = msgspec.msgpack.Decoder(messages.Message)


LookUp = Callable[[str], Sequence[str]]
Keep = Callable[[messages.Message, str], int]
"""Write a received message with its key to disk; return its number, 0 if it is not kept."""


@dataclass
class Messenger:
    """Receives the messages of one node, with an outbox for each of its neighbours.

    `look_up` returns possible addresses of a neighbour that is not in `addresses`. Events for the
    node are in the queue `events`. `begun` is set when the owner lets the node begin. A message is
    acknowledged when `keep` has returned.
    """

    admission: Admission
    patience_s: float
    addresses: dict[str, str]
    look_up: LookUp = lambda _: ()
    events: "SimpleQueue[NetworkEvent]" = field(default_factory=SimpleQueue)
    status: Callable[[], Mapping[str, float]] = dict
    expected: frozenset[str] = frozenset()
    begun: threading.Event = field(default_factory=threading.Event)
    keep: Keep = lambda *_: 0
    address: str = ""
    sent_bytes: int = 0
    sent_messages: int = 0

    def __post_init__(self) -> None:
        self.name = self.admission.name
        self._waiting: Counter[str] = Counter()
        self._incarnations: dict[str, tuple[int, int]] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._lock = threading.Lock()

    def restore(self, addresses: Mapping[str, str], neighbours: Iterable[Neighbour]) -> None:
        """Set the addresses of neighbours that called before, and their known processes."""
        self.addresses = {**addresses, **self.addresses}
        for each in neighbours:
            if each.incarnation:
                self._incarnations[each.name] = each.incarnation, each.restarts

    # Remote methods.

    def introduce(self, nonce: bytes) -> dict[str, Any]:
        """Prove to know the token of the group."""
        answer: dict[str, Any] = msgspec.structs.asdict(self.admission.introduce(nonce))
        return answer

    def admit(self, nonce: bytes, name: str, key: str, proof: bytes, signature: bytes) -> str:
        """Admit a node that proves the same; return why it is rejected, or nothing."""
        if not NODE_NAME.fullmatch(name):
            return "invalid name of a node; expected up to 32 letters, digits, . _ -"
        refusal = self.admission.admit(nonce, name, key, proof, signature)
        if refusal and self._waiting[""] < MAX_RECEIVED_MESSAGES:
            self._put(NameRefused(name, refusal), "")
        return refusal

    def deliver(self, content: bytes, address: str, key: str, signature: bytes) -> str:
        """Receive a message of the node at `address`; return why it is rejected, or nothing."""
        name = self.admission.name_of(key)
        if name is None:
            raise UnauthorizedError(NOT_ADMITTED)
        if not is_signed(key, content_to_sign(self.name, address, content), signature):
            return "the signature of the message is wrong"
        try:
            message = DECODER.decode(content)
            protected = is_protected(address)
        except msgspec.DecodeError as error:
            return f"invalid message: {error}"
        except SettingError as error:
            return str(error)
        if not protected:
            return "the address of the sender has no TLS: use https with a fingerprint"
        if message.sender != name:
            # The node reports it: its key ring knows whose name this is.
            self._put(MessageReceived(message, key), key)
            return f"this key belongs to {name}, not to {message.sender}"
        if owner := self._address_of_namesake(message, address):
            return f"the name {message.sender} is in use by the node at {owner}"
        self._receive(message, key)
        self._record_address(message, address)
        return ""

    def progress(self) -> dict[str, float]:
        """Return the progress of this node to the process that started it."""
        self._check_owner("ask for progress")
        return dict(self.status())

    def begin(self) -> None:
        """Let this node begin, because the other nodes of its group are up."""
        self._check_owner("let it begin")
        self.begun.set()

    def _check_owner(self, action: str) -> None:
        if axon.current_call().caller != OWNER:
            raise UnauthorizedError(f"only the process that started this node may {action}")

    def _put(self, event: NetworkEvent, key: str) -> None:
        """Queue an event for the node, unless too many of that sender wait already."""
        self._reserve(key)
        self.events.put(event)

    def _reserve(self, key: str) -> None:
        with self._lock:
            if self._waiting[key] >= MAX_RECEIVED_MESSAGES:
                waiting = f"{MAX_RECEIVED_MESSAGES} messages of this node wait to be handled"
                raise BusyError(f"{waiting}: send this one later")
            self._waiting[key] += 1

    def _receive(self, message: messages.Message, key: str) -> None:
        """Queue a message for the node when it is on disk."""
        self._reserve(key)
        try:
            number = self.keep(message, key)
        except BaseException:
            with self._lock:
                self._waiting[key] -= 1
            raise
        self.events.put(MessageReceived(message, key, number))

    def record_handled(self, event: NetworkEvent) -> None:
        """Allow the sender of an event to send another one."""
        key = event.key if isinstance(event, MessageReceived) else ""
        if isinstance(event, MessageReceived | NameRefused):
            with self._lock:
                self._waiting[key] -= 1

    def _address_of_namesake(self, message: messages.Message, address: str) -> str:
        """Return the address of another node of the sender's name that still answers."""
        known = self.addresses.get(message.sender)
        process = self._incarnations.get(message.sender)
        if known in (None, address) or process in (None, _process_of(message)):
            return ""
        assert known is not None
        assert process is not None
        return known if self._identify(known) == (message.sender, process[0]) else ""

    def _identify(self, address: str) -> tuple[str, int] | None:
        """Ask a node for its name and incarnation; None without an answer or a proof."""
        try:
            with axon.connect(address) as remote:
                meeting, name = self.admission.ask(remote, address, IDENTIFY_S)
        except MelismaError:
            return None
        return name, meeting.incarnation

    def _record_address(self, message: messages.Message, address: str) -> None:
        """Record the sender's address; a given address is kept until the neighbour restarts."""
        sender = message.sender
        with self._lock:
            former, process = self._incarnations.get(sender), _process_of(message)
            expected = sender in self.expected or isinstance(message, messages.Hello)
            if former is None and expected:
                self.addresses.setdefault(sender, address)
            elif former is not None and process > former:
                self.addresses[sender] = address
            if process > (former or (0, 0)):
                self._incarnations[sender] = process

    # Sending.

    def send(self, to: str, message: messages.Message, number: int = 0) -> None:
        """Queue a message for a neighbour; `number` is returned when it is acknowledged."""
        if to not in self._outboxes:
            self._outboxes[to] = Outbox(self, to)
        outbox = self._outboxes[to]
        if outbox.queue.qsize() > MAX_QUEUED_MESSAGES:
            outbox.clear()
            reason = f"more than {MAX_QUEUED_MESSAGES} messages are queued for it"
            self.events.put(NeighbourUnreachable(to, reason))
        outbox.queue.put((number, msgspec.msgpack.encode(message)))

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

    def reject(self, rejected: messages.Rejected, key: str) -> None:
        """Tell the node that a neighbour rejects it."""
        with self._lock:
            self._waiting[key] += 1
        self.events.put(MessageReceived(rejected, key))

    def count_sent(self, size_bytes: int) -> None:
        """Count a message that was sent."""
        with self._lock:
            self.sent_messages += 1
            self.sent_bytes += size_bytes

    def addresses_of(self, name: str) -> list[str]:
        """Return the address of a neighbour, or those that it may have; empty if none is known."""
        known = self.addresses.get(name)
        return [known] if known is not None else [*filter(_is_usable, self.look_up(name))]


def _process_of(message: messages.Message) -> tuple[int, int]:
    """Return the incarnation of a sender and its restarts: a later process has larger ones."""
    return message.incarnation, message.restarts


def _is_usable(address: str) -> bool:
    """Return whether an announced address, which may be invalid, can be called."""
    try:
        return is_protected(address)
    except SettingError:
        return False

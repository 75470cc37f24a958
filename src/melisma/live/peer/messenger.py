"""Messages between nodes over Axon: received by calls, sent until a call returns.

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
from melisma.errors import (
    BusyError,
    LostError,
    MelismaError,
    RefusedError,
    SettingError,
    TooLargeError,
    UnauthorizedError,
)
from melisma.live.peer.admission import NOT_ADMITTED, Admission, is_protected
from melisma.peer import messages
from melisma.peer.group import NODE_NAME
from melisma.peer.neighbour import Neighbour
from melisma.peer.proofs import SIGNATURE_BYTES, content_to_sign, is_signed

IDENTIFY_S = 2.0
"""The time that a node is given to identify itself."""
MEETING_SHARE = 0.1
"""The share of the patience that an announced address is given to prove itself."""
MAX_CANDIDATES = 4
"""The number of announced addresses that are tried in one attempt."""
RETRY_S = 0.2
MAX_RECEIVED_MESSAGES = 64
"""The number of messages of one node that may wait to be handled."""
MAX_QUEUED_MESSAGES = 200
"""The number of messages to one neighbour after which it counts as too slow."""
PERMANENT_ERRORS = (RefusedError, TooLargeError, SettingError)
"""Errors for which a second attempt is useless."""
DECODER: msgspec.msgpack.Decoder[messages.Message] = msgspec.msgpack.Decoder(messages.Message)


@dataclass(frozen=True)
class MessageReceived:
    """A message arrived, signed with `key`; `number` is that of the inbox on disk, or 0."""

    message: messages.Message
    key: str = ""
    number: int = 0


@dataclass(frozen=True)
class MessageAcknowledged:
    """A message that was sent arrived; the call took that long. None if it was rejected."""

    number: int
    round_trip_s: float | None


@dataclass(frozen=True)
class NameRefused:
    """A node that knows the token asked for a name that belongs to another key."""

    name: str
    reason: str


@dataclass(frozen=True)
class NeighbourUnreachable:
    """A neighbour does not answer any more."""

    name: str
    reason: str


NetworkEvent = MessageReceived | MessageAcknowledged | NameRefused | NeighbourUnreachable
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


class Outbox:
    """Sends messages to one neighbour in order, in a thread of its own."""

    def __init__(self, messenger: Messenger, to: str) -> None:
        self._messenger, self._to = messenger, to
        self.queue: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._remote: tuple[str, axon.Remote] | None = None
        self._reason, self._proved = "", False
        self._tried = 0
        self.thread = threading.Thread(target=self._run, name=f"to-{to}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        messenger = self._messenger
        while (queued := self.queue.get()) is not None:
            number, content = queued
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
                    incarnation=0,
                    to_incarnation=messenger.admission.incarnation,
                    reason=rejection,
                )
                key = messenger.admission.keyring.key_of(self._to)
                messenger.reject(rejected, key or "")
                messenger.events.put(MessageAcknowledged(number, None))
            else:
                round_trip_s = time.monotonic() - start_s
                messenger.events.put(MessageAcknowledged(number, round_trip_s))
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
                self._forget_old_address()
                if self._remote is None and (refusal := self._connect(left_s)):
                    return refusal
                if self._remote is not None:
                    return self._deliver(self._remote[1], content, left_s)
            except (BusyError, LostError) as error:
                # It may have arrived; it is counted, and sent again.
                messenger.count_sent(len(content))
                self._reason = str(error)
            except UnauthorizedError as error:
                # A node that restarted has forgotten whom it had admitted.
                self._remote, self._reason = None, str(error)
                if not self._proved:
                    return self._reason
            except PERMANENT_ERRORS as error:
                return str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - no error may end the thread
                self._remote, self._reason = None, str(error) or type(error).__name__
            time.sleep(min(RETRY_S, max(0.0, until_s - time.monotonic())))
        return None

    def _deliver(self, remote: axon.Remote, content: bytes, left_s: float) -> str:
        messenger, key = self._messenger, self._messenger.admission.key
        address = messenger.address
        signature = key.sign(content_to_sign(self._to, address, content))
        deliver = remote(deadline_s=left_s).deliver
        rejection = str(deliver(content, address, key.public, signature))
        messenger.count_sent(len(content) + SIGNATURE_BYTES)
        return rejection

    def _forget_old_address(self) -> None:
        if self._remote is not None and self._remote[0] != self._messenger.addresses.get(self._to):
            self._remote[1].__exit__()
            self._remote = None

    def _connect(self, left_s: float) -> str:
        """Connect to the first address that proves to be the neighbour; return a refusal."""
        messenger = self._messenger
        given = self._to in messenger.addresses
        addresses = messenger.addresses_of(self._to)
        if not given:
            addresses = self._candidates(addresses)
            left_s = min(left_s, max(IDENTIFY_S, MEETING_SHARE * messenger.patience_s))
        self._reason = "its address is unknown"
        for address in addresses:
            remote = axon.connect(address)
            try:
                refusal = messenger.admission.meet(remote, address, self._to, left_s)
            except MelismaError as error:
                remote.__exit__()
                if given:
                    raise
                # An impostor may be found beside the neighbour.
                self._reason = str(error)
                continue
            self._remote, self._proved = (address, remote), True
            messenger.addresses.setdefault(self._to, address)
            return refusal
        return ""

    def _candidates(self, addresses: list[str]) -> list[str]:
        """Return some of the announced addresses, others at each attempt.

        Impostors may announce any number of them, and may not answer.
        """
        start = self._tried % max(1, len(addresses))
        self._tried += MAX_CANDIDATES
        return [*addresses[start:], *addresses[:start]][:MAX_CANDIDATES]

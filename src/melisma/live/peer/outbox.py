"""Messages to one neighbour, sent in order until a call returns.

The neighbour proves its identity before the first message. Its address may be given, known from its
own calls, or one of those that are announced, which need not be its own.
"""

import threading
import time
from queue import SimpleQueue
from typing import Protocol

from melisma import axon
from melisma.errors import (
    BusyError,
    LostError,
    MelismaError,
    RefusedError,
    SettingError,
    TooLargeError,
    UnauthorizedError,
)
from melisma.live.peer.admission import IDENTIFY_S, Admission
from melisma.live.peer.network_events import (
    MessageAcknowledged,
    NeighbourUnreachable,
    NetworkEvent,
)
from melisma.peer import messages
from melisma.peer.proofs import SIGNATURE_BYTES, content_to_sign

RETRY_S = 0.2
MEETING_SHARE = 0.1
"""The share of the patience that an announced address is given to prove itself."""
MAX_CANDIDATES = 4
"""The number of announced addresses that are tried in one attempt."""
PERMANENT_ERRORS = (RefusedError, TooLargeError, SettingError)
"""Errors for which a second attempt is useless."""


class Sender(Protocol):
    """The node that sends, as an outbox knows it."""

    admission: Admission
    patience_s: float
    address: str
    addresses: dict[str, str]
    events: "SimpleQueue[NetworkEvent]"

    def addresses_of(self, name: str) -> list[str]:
        """Return the address of a neighbour, or those that it may have."""

    def reject(self, rejected: messages.Rejected, key: str) -> None:
        """Tell the node that a neighbour rejects it."""

    def count_sent(self, size_bytes: int) -> None:
        """Count a message that was sent."""


class Outbox:
    """Sends messages to one neighbour in order, in a thread of its own."""

    def __init__(self, sender: Sender, to: str) -> None:
        self._sender, self._to = sender, to
        self.queue: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._remote: tuple[str, axon.Remote] | None = None
        self._reason, self._proved = "", False
        self._tried = 0
        self.thread = threading.Thread(target=self._run, name=f"to-{to}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        sender = self._sender
        while (queued := self.queue.get()) is not None:
            number, content = queued
            start_s = time.monotonic()
            rejection = self._send(content, start_s + sender.patience_s)
            if rejection is None:
                # Each of the messages behind it would take as long again.
                closed = self.clear()
                sender.events.put(NeighbourUnreachable(self._to, self._reason))
                if closed:
                    break
            elif rejection:
                rejected = messages.Rejected(
                    sender=self._to,
                    incarnation=0,
                    to_incarnation=sender.admission.incarnation,
                    reason=rejection,
                )
                key = sender.admission.keyring.key_of(self._to)
                sender.reject(rejected, key or "")
                sender.events.put(MessageAcknowledged(number, None))
            else:
                round_trip_s = time.monotonic() - start_s
                sender.events.put(MessageAcknowledged(number, round_trip_s))
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
        sender = self._sender
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                self._forget_old_address()
                if self._remote is None and (refusal := self._connect(left_s)):
                    return refusal
                if self._remote is not None:
                    return self._deliver(self._remote[1], content, left_s)
            except (BusyError, LostError) as error:
                # It may have arrived; it is counted, and sent again.
                sender.count_sent(len(content))
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
        sender, key = self._sender, self._sender.admission.key
        address = sender.address
        signature = key.sign(content_to_sign(self._to, address, content))
        deliver = remote(deadline_s=left_s).deliver
        rejection = str(deliver(content, address, key.public, signature))
        sender.count_sent(len(content) + SIGNATURE_BYTES)
        return rejection

    def _forget_old_address(self) -> None:
        if self._remote is not None and self._remote[0] != self._sender.addresses.get(self._to):
            self._remote[1].__exit__()
            self._remote = None

    def _connect(self, left_s: float) -> str:
        """Connect to the first address that proves to be the neighbour; return a refusal."""
        sender = self._sender
        given = self._to in sender.addresses
        addresses = sender.addresses_of(self._to)
        if not given:
            addresses = self._candidates(addresses)
            left_s = min(left_s, max(IDENTIFY_S, MEETING_SHARE * sender.patience_s))
        self._reason = "its address is unknown"
        for address in addresses:
            remote = axon.connect(address)
            try:
                refusal = sender.admission.meet(remote, address, self._to, left_s)
            except MelismaError as error:
                remote.__exit__()
                if given:
                    raise
                # An impostor may be found beside the neighbour.
                self._reason = str(error)
                continue
            self._remote, self._proved = (address, remote), True
            sender.addresses.setdefault(self._to, address)
            return refusal
        return ""

    def _candidates(self, addresses: list[str]) -> list[str]:
        """Return some of the announced addresses, others at each attempt.

        Impostors may announce any number of them, and may not answer.
        """
        start = self._tried % max(1, len(addresses))
        self._tried += MAX_CANDIDATES
        return [*addresses[start:], *addresses[:start]][:MAX_CANDIDATES]

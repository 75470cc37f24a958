"""Messages between nodes in virtual time, with the faults and attacks that affect them.

Messages arrive at least once: lost ones are sent again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from melisma.peer import messages
from melisma.peer.node_state import Outputs
from melisma.simulation.faults import Fault
from melisma.simulation.kernel import EventQueue
from melisma.simulation.peers.attacks import FORGED_KEY, Attack, forged_messages
from melisma.simulation.peers.peer_scenario import PeerScenario, SimulatedNode

RESENDS = 4
"""How often a lost message is sent within the patience of a node."""
CORRUPT_CONTENT = b"\xff" * 7


@dataclass(frozen=True)
class Flight:
    """A message on its way, with its number at the sender."""

    sender: SimulatedNode
    to: str
    message: messages.Message
    number: int
    sent_s: float

    @property
    def is_cut(self) -> bool:
        """Whether it is lost because the process of its sender crashed: every other one is."""
        return self.sender.crashed and self.number % 2 == 1


class PeerNetwork:
    """Carries messages between `nodes`, and passes what a node answers to `execute`."""

    def __init__(
        self,
        scenario: PeerScenario,
        queue: EventQueue,
        nodes: Mapping[str, SimulatedNode],
        execute: Callable[[SimulatedNode, Outputs], None],
    ) -> None:
        self.in_flight = 0
        self._scenario, self._queue, self._nodes, self._execute = scenario, queue, nodes, execute
        self._index = scenario.index
        self._messages_from: Counter[str] = Counter()
        self._messages_to: Counter[str] = Counter()
        self._updates_from: Counter[str] = Counter()

    def send(self, sender: SimulatedNode, to: str, message: messages.Message, number: int) -> None:
        """Send a message; its sender learns if it arrives, or the receiver cannot be reached.

        `number` is that of the message among those of the sender that are not acknowledged.
        """
        if self._is_silent(sender.name) and not isinstance(message, messages.Heartbeat):
            return
        size_bytes = len(msgspec.msgpack.encode(message))
        self._messages_from[sender.name] += 1
        self._messages_to[to] += 1
        if isinstance(message, messages.Update):
            size_bytes += self._scenario.update_bytes
            self._updates_from[sender.name] += 1
            message = self._corrupt(sender.name, message)
        sender.recorder.record_sent(size_bytes)
        delay_s, duplicates_s = self._delays(sender, to, size_bytes)
        now_s = self._queue.now_s
        give_up_s, arrival_s = now_s + sender.patience_s, now_s + delay_s
        flight = Flight(sender, to, message, number, now_s)
        if self._transmit(flight, arrival_s) > give_up_s:
            self._queue.schedule(give_up_s, partial(self._on_unreachable, sender, to))
        for later_s in duplicates_s:
            self._transmit(flight, arrival_s + later_s)

    def _is_silent(self, name: str) -> bool:
        """Return whether a node withholds its messages now."""
        index, now_s = self._index[name], self._queue.now_s
        return any(
            attack.kind == "silence" and attack.node == index and attack.at_s <= now_s
            for attack in self._scenario.attacks
        )

    def _corrupt(self, sender: str, update: messages.Update) -> messages.Update:
        for fault in self._scenario.faults:
            matches = fault.kind == "corrupt" and self._index[sender] in fault.learners
            if matches and fault.nth == self._updates_from[sender]:
                return msgspec.structs.replace(update, content=CORRUPT_CONTENT)
        return update

    def _delays(self, sender: SimulatedNode, to: str, size_bytes: int) -> tuple[float, list[float]]:
        """Return the delay of the message just counted, and how much later duplicates arrive."""
        index, nth = self._index[sender.name], self._messages_from[sender.name]
        delay_s = self._scenario.delays.message_seconds(index, nth, size_bytes)
        duplicates_s: list[float] = []
        for fault in self._message_faults(sender.name, to):
            if fault.kind == "delay":
                delay_s += fault.by
                continue
            sender.recorder.record_sent(size_bytes)
            if fault.kind == "lose":
                delay_s += sender.patience_s / RESENDS
            else:
                duplicates_s.append(fault.by)
        return delay_s, duplicates_s

    def _message_faults(self, sender: str, to: str) -> list[Fault]:
        """Return the faults that lose, delay or duplicate the message just counted."""
        counted = {
            "report": (self._messages_from[sender], self._index[sender]),
            "instruction": (self._messages_to[to], self._index.get(to, -1)),
        }
        return [
            fault
            for fault in self._scenario.faults
            if fault.kind in ("lose", "delay", "duplicate")
            and fault.nth == counted[fault.message][0]
            and counted[fault.message][1] in fault.learners
        ]

    def _transmit(self, flight: Flight, at_s: float) -> float:
        """Schedule an arrival, after the end of partitions; return its time."""
        for fault in sorted(self._scenario.faults, key=lambda fault: fault.at_s):
            if fault.kind == "partition" and fault.is_active(at_s):
                inside = [
                    self._index[name] in fault.learners for name in (flight.sender.name, flight.to)
                ]
                at_s = fault.end_s if inside[0] != inside[1] else at_s
        self.in_flight += 1
        self._queue.schedule(at_s, partial(self._arrive, flight))
        return at_s

    def _arrive(self, flight: Flight) -> None:
        self.in_flight -= 1
        if not flight.is_cut:
            self._deliver(flight)

    def _deliver(self, flight: Flight) -> None:
        """Give a message to its receiver, or try again later if it is not there."""
        sender, receiver, now_s = flight.sender, self._nodes.get(flight.to), self._queue.now_s
        if receiver is None or not receiver.alive:
            self._retry(flight)
            return
        if sender.alive:
            sender.sent.acknowledge(flight.number)
            sender.node.on_acknowledged(2 * (now_s - flight.sent_s))
        self._receive(receiver, flight.message, sender.key)

    def _receive(self, receiver: SimulatedNode, message: messages.Message, key: str) -> None:
        """Let a node handle a message that is signed with a key."""
        now_s = self._queue.now_s
        receiver.catch_up(now_s)
        receiver.keep(message, key)
        outputs = receiver.node.on_message(receiver.local_time(now_s), message, key)
        self._execute(receiver, outputs)

    def _retry(self, flight: Flight) -> None:
        """Deliver later, or report the receiver as unreachable when patience is over."""
        sender, now_s = flight.sender, self._queue.now_s
        if not sender.alive:
            return
        if now_s > flight.sent_s + sender.patience_s:
            self._on_unreachable(sender, flight.to)
        else:
            retry_s = now_s + sender.patience_s / RESENDS
            self._queue.schedule(retry_s, partial(self._deliver, flight))

    def _on_unreachable(self, sender: SimulatedNode, name: str) -> None:
        if sender.alive:
            now_s = self._queue.now_s
            sender.catch_up(now_s)
            sender.sent.drop(name)
            outputs = sender.node.on_unreachable(sender.local_time(now_s), name)
            self._execute(sender, outputs)

    def forge(self, attack: Attack, incarnation: int) -> None:
        """Deliver forged messages in the name of a node to its neighbours."""
        name = self._scenario.topology.names[attack.node]
        for neighbour in self._scenario.topology.neighbours(name):
            receiver = self._nodes.get(neighbour)
            for message in forged_messages(name, incarnation):
                if receiver is not None and receiver.alive:
                    self._receive(receiver, message, FORGED_KEY)

"""The state machine of a node: events in, commands and notices out; no I/O and no clock.

A node greets its neighbours and starts when each has answered or is lost (`handshake`). It computes
while its algorithm allows it, sends updates, and applies those that arrive meanwhile
(`received_updates`). It finishes when it has taken its steps and its neighbours have sent their
last updates. An algorithm is a subclass that makes the decisions of `NodeState`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from melisma.errors import DataError
from melisma.learning.compression import Compression
from melisma.peer import commands, messages, notices
from melisma.peer.handshake import (
    join,
    on_accepted,
    on_hello,
    on_rejected,
    on_started,
    restore,
)
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.membership import FORMER_INCARNATION
from melisma.peer.neighbour import Neighbour
from melisma.peer.node_state import NodeState, Outputs
from melisma.peer.received_updates import (
    apply_early_updates,
    best_offer,
    on_update,
    record_own_size,
)
from melisma.peer.stalls import stall, stall_limit_s


class Node(NodeState):
    """The behaviour that all algorithms share."""

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
    ) -> None:
        super().__init__(identity, neighbours, model, compression)
        self.blocked_since_s: float | None = None
        """The time since which this node waits for neighbours."""
        self._round_began_s = 0.0

    # Events.

    def start(self, at_s: float) -> Outputs:
        """Greet all neighbours."""
        self.now_s = at_s
        greetings: Outputs = [self.membership.greet(name) for name in self.neighbours]
        return [*greetings, self._next_wake(), *self._continue()]

    def resume(self, at_s: float) -> Outputs:
        """Continue from a restored state; the time since then counts against no neighbour.

        Messages show the neighbours that this node is back, and where.
        """
        self.now_s = self._round_began_s = at_s
        if self.blocked_since_s is not None:
            self.blocked_since_s = at_s
        outputs: Outputs = []
        for neighbour in self.neighbours.values():
            neighbour.progress_at_s = at_s
            # Between nodes that have said goodbye only unacknowledged messages remain.
            parted = self.said_goodbye and neighbour.finished
            if neighbour.reachable and not neighbour.rejected and not parted:
                outputs.append(self.membership.send(neighbour.name, messages.Heartbeat))
                outputs += [self.say_goodbye(neighbour)] if self.said_goodbye else []
        return [*outputs, self._next_wake(), *self._continue()]

    def on_message(self, at_s: float, message: messages.Message, key: str = "") -> Outputs:
        """Handle a message that arrived, signed with `key`."""
        self.now_s = at_s
        if message.sender in self.neighbours or isinstance(message, messages.Hello):
            outputs = self._receive(message, key)
        else:
            outputs = []
        return outputs + self._continue()

    def _receive(self, message: messages.Message, key: str) -> Outputs:
        sender, keyring = message.sender, self.membership.keyring
        if refusal := keyring.bind(sender, key):
            if keyring.key_of(sender) is None and isinstance(message, messages.Hello):
                return self.membership.reject_hello(message, refusal)
            return [*self.membership.report_forgery(sender, refusal)]
        if reason := self.membership.describe_implausible(message):
            outputs: Outputs = [notices.MessageRejected(sender=sender, reason=reason)]
        elif isinstance(message, messages.Hello):
            outputs = on_hello(self, message)
        else:
            outputs = self._dispatch(message)
        return outputs + self.membership.reject_if_too_often_invalid(sender, outputs)

    def _dispatch(self, message: messages.Message) -> Outputs:
        neighbour = self.neighbours.get(message.sender)
        if (
            neighbour is None
            or neighbour.rejected
            or not messages.is_for(message, self.identity.incarnation)
        ):
            return []
        if isinstance(message, messages.Rejected):
            return on_rejected(self, neighbour, message)
        if reason := self._describe_invalid(neighbour, message):
            return [notices.MessageRejected(sender=message.sender, reason=reason)]
        outputs: Outputs = []
        if neighbour.incarnation not in (0, message.incarnation):
            if self.membership.greets_too_often(self.now_s, message.sender):
                return []
            # Its hello is late or lost; the answer to ours says where its updates start.
            outputs += [join(self, message), self.membership.greet(message.sender)]
            neighbour = self.neighbours[message.sender]
        neighbour.incarnation = message.incarnation
        neighbour.record_restarts(message.restarts)
        if neighbour.lost:
            outputs += restore(self, neighbour)
        return outputs + HANDLERS[type(message)](self, neighbour, message)

    def _describe_invalid(self, neighbour: Neighbour, message: messages.Message) -> str:
        """Return why a message is rejected; empty if it is valid."""
        if isinstance(message, messages.Accepted | messages.Started) and (
            reason := self.model.describe_invalid(message.model)
        ):
            return reason
        return FORMER_INCARNATION if message.incarnation < neighbour.incarnation else ""

    def on_computed(self, at_s: float) -> Outputs:
        """Send updates: the steps of the last `TakeSteps` are done."""
        self.now_s = at_s
        assert self.computing is not None
        computed, self.computing = self.computing, None
        self.steps += computed.steps
        self.round_s = at_s - self._round_began_s
        try:
            updates = self.updates_after(computed)
        except DataError as error:
            return self.fail(f"training diverged: {error}; use a smaller learning rate")
        outputs: Outputs = []
        for learning_rate, content in updates:
            self.update_number += 1
            self.own_updates += 1
            sends = self.membership.send_update(self.update_number, learning_rate, content)
            if sends:
                record_own_size(self, sends[0].message)
            outputs += sends
        return outputs + self._continue()

    def on_unreachable(self, at_s: float, name: str) -> Outputs:
        """Continue without a neighbour that does not answer."""
        self.now_s = at_s
        neighbour = self.neighbours.get(name)
        # A node that was rejected is told so, but never became a neighbour.
        if neighbour is None or neighbour.lost:
            return []
        return [self.membership.lose(neighbour), *self._continue()]

    def on_forgery(self, at_s: float, name: str, reason: str) -> Outputs:
        """Report that another key asked for the name of a node."""
        self.now_s = at_s
        return [*self.membership.report_forgery(name, reason)]

    def on_acknowledged(self, round_trip_s: float) -> None:
        """Record how long a message and its acknowledgement took."""

    def on_wake(self, at_s: float) -> Outputs:
        """Give up neighbours that have not answered, look for lost ones, contact the others.

        A driver notices by the heartbeat that a neighbour has become unreachable.
        """
        self.now_s = at_s
        if self.finished:
            return []
        outputs = self._give_up_stalled()
        waiting = self.blocked_since_s is not None
        for neighbour in self.neighbours.values():
            if neighbour.rejected:
                continue
            if neighbour.lost and neighbour.incarnation and self.started:
                outputs.append(self.announce_start(neighbour))
            elif neighbour.lost:
                outputs.append(self.membership.greet(neighbour.name))
            elif not self.started and not neighbour.answered:
                outputs.append(self.membership.lose(neighbour))
            elif not neighbour.finished:
                heartbeat = self.membership.send(
                    neighbour.name, messages.Heartbeat, waiting=waiting
                )
                outputs.append(heartbeat)
        return [*outputs, self._next_wake(), *self._continue()]

    def leave(self) -> Outputs:
        """Finish early, and tell the neighbours not to wait."""
        self.finished = True
        return [self.say_goodbye(neighbour) for neighbour in self.membership.reachable_neighbours()]

    def wait_limit_s(self, neighbour: Neighbour) -> float:
        """Return how long this node waits for a neighbour that makes no progress."""
        predicted_s = self.predict_update_s(neighbour)
        return stall_limit_s(neighbour, self.identity.patience_s, predicted_s)

    def _give_up_stalled(self) -> Outputs:
        """Give up neighbours that answer, and for which this node has waited too long."""
        if self.blocked_since_s is None:
            return []
        ending = self.steps >= self.identity.iterations
        awaited = self.membership.neighbours_to_await() if ending else self.blocking_neighbours()
        outputs: Outputs = []
        for neighbour in awaited:
            waited_s = self.now_s - max(self.blocked_since_s, neighbour.progress_at_s)
            if waited_s > self.wait_limit_s(neighbour):
                stall(neighbour)
                outputs.append(notices.NeighbourStalled(name=neighbour.name, waited_s=waited_s))
        return outputs

    # Progress.

    def _continue(self) -> Outputs:
        """Start, compute or finish, whichever is possible now."""
        if self.finished or not (self.started or self.membership.all_answered):
            return []
        outputs = [] if self.started else self._start_training()
        if self.computing is None and self.steps < self.identity.iterations:
            self.computing = self.next_steps()
            if self.computing is not None:
                self._round_began_s = self.now_s
                outputs.append(self.computing)
        if self.steps >= self.identity.iterations:
            outputs += self._end()
        if self.computing is not None:
            self.blocked_since_s = None
        elif self.blocked_since_s is None:
            self.blocked_since_s = self.now_s
        return outputs

    def _start_training(self) -> Outputs:
        """Start with the offered model that has most steps, or with the initial model."""
        self.started, self.started_s = True, self.now_s
        offer, self.offers = best_offer(self), []
        if offer is not None:
            self.model.vector[:] = np.frombuffer(offer.model, np.float32)
            self.adopt_progress(offer)
        model_from = "" if offer is None else offer.sender
        outputs: Outputs = [
            notices.TrainingStarted(model_from=model_from, updates_done=self.update_number)
        ]
        outputs += [self.announce_start(each) for each in self.membership.reachable_neighbours()]
        return outputs + apply_early_updates(self)

    def _end(self) -> Outputs:
        """Say goodbye once, and finish when all neighbours have."""
        outputs: Outputs = []
        if not self.said_goodbye:
            self.said_goodbye = True
            outputs += [self.say_goodbye(each) for each in self.membership.reachable_neighbours()]
        if self.membership.all_finished:
            self.finished = True
            self.finish()
            outputs.append(commands.Finish())
        return outputs

    def _next_wake(self) -> commands.Wake:
        return commands.Wake(at_s=self.now_s + self.identity.patience_s)


def on_heartbeat(_: NodeState, neighbour: Neighbour, heartbeat: messages.Heartbeat) -> Outputs:
    """Record whether a neighbour waits; any message shows that it is reachable."""
    neighbour.waiting = heartbeat.waiting
    return []


def on_goodbye(_: NodeState, neighbour: Neighbour, goodbye: messages.Goodbye) -> Outputs:
    """Record the last update to expect; a node that resumed since then may send more."""
    if goodbye.restarts >= neighbour.restarts:
        neighbour.last_update = goodbye.last_update
    return []


HANDLERS: dict[type[messages.PeerMessage], Callable[[Node, Neighbour, Any], Outputs]] = {
    messages.Accepted: on_accepted,
    messages.Started: on_started,
    messages.Update: on_update,
    messages.Heartbeat: on_heartbeat,
    messages.Goodbye: on_goodbye,
}

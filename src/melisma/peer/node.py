"""The state machine of a node: events in, commands and notices out; no I/O and no clock.

A node greets its neighbours and starts when each has answered or is lost. It computes while its
algorithm allows it, sends updates, and applies those that arrive meanwhile. It finishes when it
has taken its steps and its neighbours have sent their last updates. An algorithm is a subclass: it
decides when to compute, what to send and how to apply an update.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from melisma.errors import DataError
from melisma.learning.compression import Compression
from melisma.peer import commands, messages, notices
from melisma.peer.guard import CLIP_MEDIANS, NeighbourGuard, norm_of
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.membership import (
    FORMER_INCARNATION,
    LATER_INCARNATION,
    MAX_INCARNATION_JUMP,
    Membership,
    describe_ready,
)
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.stalls import resume, stall, stall_limit_s

Outputs = list[commands.AnyCommand | notices.AnyNotice]
MAX_UPDATES_AHEAD = 1000
"""The largest number of updates that may arrive ahead of a missing one."""
MAX_BYTES_AHEAD = 256 << 20
"""The same in bytes of unpacked updates; at least 8 updates are kept."""
MAX_INVALID_MESSAGES = 100
"""The number of invalid messages after which a neighbour is rejected."""
MAX_REFUTATIONS = 3


class Node(ABC):
    """The behaviour that all algorithms share."""

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
    ) -> None:
        self.model, self.compression = model, compression
        self.membership = Membership(identity, neighbours)
        self.guard = NeighbourGuard(identity.guard)
        self.max_ahead = min(
            MAX_UPDATES_AHEAD, max(8, MAX_BYTES_AHEAD // max(1, model.vector.nbytes))
        )
        self.neighbours = self.membership.neighbours
        self.update_number = self.steps = 0
        """The last update and the steps taken, those of an adopted model included."""
        self.own_updates = 0
        self.now_s = 0.0
        self.computing: commands.TakeSteps | None = None
        self.started = self.finished = False
        self._offers: list[messages.Accepted] = []
        self._early_updates: list[messages.Update] = []
        self._said_goodbye = False
        self._refutations = 0
        self._blocked_since_s: float | None = None
        self._started_s = self._round_s = self._round_began_s = 0.0

    @property
    def identity(self) -> NodeIdentity:
        """The name of this node and its present incarnation."""
        return self.membership.identity

    # Decisions of an algorithm.

    @abstractmethod
    def next_steps(self) -> commands.TakeSteps | None:
        """Return the next steps to take, or None while the node has to wait."""

    @abstractmethod
    def updates_after(self, computed: commands.TakeSteps) -> list[tuple[float, bytes]]:
        """Return the updates to send after these steps: learning rates and contents."""

    @abstractmethod
    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """Apply an update that was not applied before."""

    def update_size(
        self, share: float, update: messages.Update, change: Vector
    ) -> tuple[float, float]:
        """Return the norm of an update, and the factor by which such updates differ in size."""
        raise NotImplementedError

    def blocking_neighbours(self) -> list[Neighbour]:
        """Return the neighbours for which this node has to wait before it computes."""
        return []

    def predict_update_s(self, neighbour: Neighbour) -> float:  # noqa: ARG002
        """Return how long the next update of a neighbour takes, judged by this node's own."""
        return self._round_s

    def public_model(self) -> Vector:
        """Return the model that is offered to a node that joins."""
        return self.model.vector

    def model_to_announce(self) -> bytes:
        """Return the model to which the next update applies; empty if updates need none."""
        return b""

    def on_announced_model(self, neighbour: Neighbour, content: bytes) -> None:  # noqa: B027
        """Take over the model that a neighbour announced."""

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """Continue from the progress of a neighbour whose model was adopted."""
        self.update_number, self.steps = offer.updates_done, offer.steps

    def finish(self) -> None:  # noqa: B027 - most algorithms have nothing to do
        """Complete the model after the last update of all neighbours."""

    # Events.

    def start(self, at_s: float) -> Outputs:
        """Greet all neighbours."""
        self.now_s = at_s
        greetings: Outputs = [self.membership.greet(name) for name in self.neighbours]
        return [*greetings, self._next_wake(), *self._continue()]

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
            outputs = self.on_hello(message)
        else:
            outputs = self._dispatch(message)
        return outputs + self._reject_if_too_often_invalid(sender, outputs)

    def _reject_if_too_often_invalid(self, sender: str, outputs: Outputs) -> Outputs:
        neighbour = self.neighbours.get(sender)
        invalid = any(isinstance(output, notices.MessageRejected) for output in outputs)
        if neighbour is None or neighbour.rejected or not invalid:
            return []
        neighbour.invalid_messages += 1
        if neighbour.invalid_messages < MAX_INVALID_MESSAGES:
            return []
        neighbour.lost = neighbour.rejected = True
        reason = f"{MAX_INVALID_MESSAGES} invalid messages: training continues without it"
        return [notices.MessageRejected(sender=sender, reason=reason)]

    def on_computed(self, at_s: float) -> Outputs:
        """Send updates: the steps of the last `TakeSteps` are done."""
        self.now_s = at_s
        assert self.computing is not None
        computed, self.computing = self.computing, None
        self.steps += computed.steps
        self._round_s = at_s - self._round_began_s
        try:
            updates = self.updates_after(computed)
        except DataError as error:
            return self._fail(f"training diverged: {error}; use a smaller learning rate")
        outputs: Outputs = []
        for learning_rate, content in updates:
            self.update_number += 1
            self.own_updates += 1
            sends = self.membership.send_update(self.update_number, learning_rate, content)
            if sends:
                self._record_own_size(sends[0].message)
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

    def on_acknowledged(self, round_trip_s: float) -> None:  # noqa: B027 - few algorithms need it
        """Record how long a message and its acknowledgement took."""

    def on_wake(self, at_s: float) -> Outputs:
        """Give up neighbours that have not answered, look for lost ones, contact the others.

        A driver notices by the heartbeat that a neighbour has become unreachable.
        """
        self.now_s = at_s
        if self.finished:
            return []
        outputs = self._give_up_stalled()
        waiting = self._blocked_since_s is not None
        for neighbour in self.neighbours.values():
            if neighbour.rejected:
                continue
            if neighbour.lost and neighbour.incarnation and self.started:
                outputs.append(self._announce_start(neighbour))
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
        return [
            self._say_goodbye(neighbour) for neighbour in self.membership.reachable_neighbours()
        ]

    def wait_limit_s(self, neighbour: Neighbour) -> float:
        """Return how long this node waits for a neighbour that makes no progress."""
        predicted_s = self.predict_update_s(neighbour)
        return stall_limit_s(neighbour, self.identity.patience_s, predicted_s)

    def _give_up_stalled(self) -> Outputs:
        """Give up neighbours that answer, and for which this node has waited too long."""
        if self._blocked_since_s is None:
            return []
        ending = self.steps >= self.identity.iterations
        awaited = self.membership.neighbours_to_await() if ending else self.blocking_neighbours()
        outputs: Outputs = []
        for neighbour in awaited:
            waited_s = self.now_s - max(self._blocked_since_s, neighbour.progress_at_s)
            if waited_s > self.wait_limit_s(neighbour):
                stall(neighbour)
                outputs.append(notices.NeighbourStalled(name=neighbour.name, waited_s=waited_s))
        return outputs

    # Messages.

    def on_hello(self, hello: messages.Hello) -> Outputs:
        """Accept or reject a node that asks to become a neighbour."""
        neighbour = self.neighbours.get(hello.sender, Neighbour(hello.sender))
        if self.membership.greets_too_often(self.now_s, hello.sender):
            return []
        if hello.incarnation < neighbour.incarnation:
            known = neighbour.incarnation
            return self.membership.reject_hello(hello, LATER_INCARNATION, known)
        if mismatch := self.identity.describe_mismatch(hello.compatibility):
            if hello.sender in self.neighbours:
                neighbour.lost = neighbour.rejected = True
            reason = f"{hello.sender} cannot be a neighbour: {mismatch}"
            rejection = self.membership.reject_hello(hello, mismatch)
            return [*rejection, *self._fail_if_all_rejected(reason)]
        self.neighbours[hello.sender] = neighbour
        known = hello.incarnation == neighbour.incarnation
        # A neighbour that receives all updates needs no model: its hello is only late.
        offer_model = self.started and not (known and neighbour.receives_all)
        outputs: Outputs = []
        if not known:
            outputs.append(self._join(hello))
        elif neighbour.lost:
            # It may have been accepted long ago, and would ignore a second acceptance.
            outputs += self._restore(neighbour)
        neighbour = self.neighbours[hello.sender]
        neighbour.degree, neighbour.share = hello.degree, hello.share
        outputs.append(self._accept(neighbour, offer_model))
        return outputs + ([self._say_goodbye(neighbour)] if self._said_goodbye else [])

    def _dispatch(self, message: messages.Message) -> Outputs:
        neighbour = self.neighbours.get(message.sender)
        if (
            neighbour is None
            or neighbour.rejected
            or not messages.is_for(message, self.identity.incarnation)
        ):
            return []
        if isinstance(message, messages.Rejected):
            return self.on_rejected(neighbour, message)
        if reason := self._describe_invalid(neighbour, message):
            return [notices.MessageRejected(sender=message.sender, reason=reason)]
        outputs: Outputs = []
        if neighbour.incarnation not in (0, message.incarnation):
            if self.membership.greets_too_often(self.now_s, message.sender):
                return []
            # Its hello is late or lost; the answer to ours says where its updates start.
            outputs += [self._join(message), self.membership.greet(message.sender)]
            neighbour = self.neighbours[message.sender]
        neighbour.incarnation = message.incarnation
        if neighbour.lost:
            outputs += self._restore(neighbour)
        return outputs + HANDLERS[type(message)](self, neighbour, message)

    def on_rejected(self, neighbour: Neighbour, rejected: messages.Rejected) -> Outputs:
        """Continue without a neighbour that rejected this node, or as a later incarnation."""
        if refutation := self._refute(rejected):
            return refutation
        neighbour.lost = neighbour.rejected = True
        reason = f"rejected this node: {rejected.reason}"
        notice = notices.MessageRejected(sender=rejected.sender, reason=reason)
        return [notice, *self._fail_if_all_rejected(f"{rejected.sender} {reason}")]

    def _refute(self, rejected: messages.Rejected) -> Outputs:
        """Continue as an incarnation after the one that a neighbour knows.

        Only the holder of this node's key can have made it known: this node, with another clock.
        """
        mine, known = self.identity.incarnation, rejected.known_incarnation
        too_often = self._refutations >= MAX_REFUTATIONS
        if not mine < known <= mine + MAX_INCARNATION_JUMP or too_often:
            return []
        self._refutations += 1
        self.membership.identity = replace(self.identity, incarnation=known + 1)
        for neighbour in self.neighbours.values():
            # Updates to the former incarnation are lost; the new answer says where to count from.
            neighbour.answered = False
        notice = notices.IncarnationRefuted(known_by=rejected.sender, incarnation=known + 1)
        names = [name for name, each in self.neighbours.items() if not each.rejected]
        return [notice, *(self.membership.greet(name) for name in names)]

    def on_accepted(self, neighbour: Neighbour, accepted: messages.Accepted) -> Outputs:
        """Record the first acceptance of a neighbour, and the model that it offers."""
        neighbour.degree, neighbour.share = accepted.degree, accepted.share
        if neighbour.answered:
            return []
        neighbour.answered = True
        if not accepted.training:
            return []
        if self.started:
            return self._count_from_later(neighbour, accepted.updates_done, accepted.model)
        self._offers.append(accepted)
        return self._count_from(neighbour, accepted.updates_done, accepted.model)

    def on_started(self, neighbour: Neighbour, started: messages.Started) -> Outputs:
        """Count the updates of a neighbour that trains."""
        return self._count_from_later(neighbour, started.updates_done, started.model)

    def on_update(self, neighbour: Neighbour, update: messages.Update) -> Outputs:
        """Apply an update once, or keep it until training starts."""
        ahead = update.number - neighbour.received if neighbour.started else 0
        if max(ahead, len(neighbour.out_of_order)) > self.max_ahead:
            reason = f"update {update.number} is too far ahead of update {neighbour.received}"
            notice = notices.MessageRejected(sender=update.sender, reason=reason)
            return [notice, self.membership.lose(neighbour)]
        if not neighbour.record_update(update.number):
            return []
        neighbour.progress_at_s = self.now_s
        resumed: Outputs = []
        if resume(neighbour):
            resumed = [describe_ready(neighbour, returned=True)]
        if not self.started:
            self._early_updates.append(update)
            return resumed
        return [self._apply(neighbour, update), *resumed]

    def on_heartbeat(self, neighbour: Neighbour, heartbeat: messages.Heartbeat) -> Outputs:
        """Record whether a neighbour waits; any message shows that it is reachable."""
        neighbour.waiting = heartbeat.waiting
        return []

    def on_goodbye(self, neighbour: Neighbour, goodbye: messages.Goodbye) -> Outputs:
        """Record the last update to expect."""
        neighbour.last_update = goodbye.last_update
        return []

    def _describe_invalid(self, neighbour: Neighbour, message: messages.Message) -> str:
        """Return why a message is rejected; empty if it is valid."""
        if isinstance(message, messages.Accepted | messages.Started) and (
            reason := self.model.describe_invalid(message.model)
        ):
            return reason
        return FORMER_INCARNATION if message.incarnation < neighbour.incarnation else ""

    def _join(self, message: messages.PeerMessage) -> notices.NeighbourJoined:
        """Start a new record of a neighbour; updates of its former incarnation do not count."""
        self._drop_early_updates(message.sender)
        return self.membership.join(self.now_s, message, self.update_number)

    def _restore(self, neighbour: Neighbour) -> Outputs:
        """Send a neighbour that was lost the messages that it may have missed."""
        neighbour.lost = False
        outputs: Outputs = [describe_ready(neighbour, returned=True)]
        outputs += [self._announce_start(neighbour)] if self.started else []
        outputs += [self._say_goodbye(neighbour)] if self._said_goodbye else []
        return outputs

    def _count_from_later(self, neighbour: Neighbour, updates_done: int, model: bytes) -> Outputs:
        if neighbour.started and updates_done <= neighbour.received:
            return []
        return self._count_from(neighbour, updates_done, model)

    def _count_from(self, neighbour: Neighbour, updates_done: int, model: bytes) -> Outputs:
        """Expect updates after `updates_done`; the announced model contains the earlier ones."""
        overtaken = self.started and neighbour.received > updates_done
        self._drop_early_updates(neighbour.name, updates_done)
        neighbour.start_after(updates_done)
        neighbour.progress_at_s = self.now_s
        resume(neighbour)
        if not overtaken:
            self.on_announced_model(neighbour, model)
        return [describe_ready(neighbour)]

    def _drop_early_updates(self, sender: str, up_to: float = np.inf) -> None:
        self._early_updates = [
            update
            for update in self._early_updates
            if update.sender != sender or update.number > up_to
        ]

    def _apply(
        self, neighbour: Neighbour, update: messages.Update
    ) -> notices.UpdateApplied | notices.MessageRejected:
        sender, incarnation, number = update.sender, update.incarnation, update.number
        try:
            change = self.compression.unpack(update.content, self.model.vector.size)
        except DataError as error:
            return reject_update(update, f"update {number}: {error}")
        factor = self._guard_factor(neighbour, update, change)
        if factor == 0:
            return reject_update(update, f"update {number} is left out: far larger than others")
        if factor < 1:
            change = change * np.float32(factor)
        self.apply_update(neighbour, update, change)
        return notices.UpdateApplied(
            sender=sender, incarnation=incarnation, number=number, factor=factor
        )

    def _guard_factor(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> float:
        """Return the factor by which an update is scaled; 0 if it is left out."""
        if self.guard.mode == "off" or not change.size:
            return 1.0
        norm, scale = self.update_size(neighbour.share, update, change)
        model_norm = norm_of(self.model.vector)
        factor = self.guard.factor(update.sender, norm / scale, model_norm / scale)
        self.guard.record(update.sender, factor * norm / scale)
        return factor

    def _record_own_size(self, message: messages.Message) -> None:
        if self.guard.mode == "off" or not self.model.vector.size:
            return
        assert isinstance(message, messages.Update)
        change = self.compression.unpack(message.content, self.model.vector.size)
        norm, scale = self.update_size(self.identity.share, message, change)
        self.guard.record(self.identity.name, norm / scale)

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
            self._blocked_since_s = None
        elif self._blocked_since_s is None:
            self._blocked_since_s = self.now_s
        return outputs

    def _start_training(self) -> Outputs:
        """Start with the offered model that has most steps, or with the initial model."""
        self.started, self._started_s = True, self.now_s
        offers = self._plausible_offers()
        offer = max(offers, key=lambda offer: (offer.steps, offer.sender), default=None)
        if offer is not None:
            self.model.vector[:] = np.frombuffer(offer.model, np.float32)
            self.adopt_progress(offer)
        model_from = "" if offer is None else offer.sender
        outputs: Outputs = [
            notices.TrainingStarted(model_from=model_from, updates_done=self.update_number)
        ]
        outputs += [self._announce_start(each) for each in self.membership.reachable_neighbours()]
        early, self._early_updates, self._offers = self._early_updates, [], []
        for update in sorted(early, key=lambda update: update.number):
            outputs.append(self._apply(self.neighbours[update.sender], update))
        return outputs

    def _plausible_offers(self) -> list[messages.Accepted]:
        """Return the offered models that are not far from the initial one, compared with others."""
        offers = [offer for offer in self._offers if offer.steps]
        if self.guard.mode == "off" or len(offers) < 3:
            return offers
        models = [np.frombuffer(offer.model, np.float32) for offer in offers]
        distances = np.array([norm_of(model - self.model.vector) for model in models])
        limit = CLIP_MEDIANS * float(np.median(distances))
        return [
            offer for offer, distance in zip(offers, distances, strict=True) if distance <= limit
        ]

    def _end(self) -> Outputs:
        """Say goodbye once, and finish when all neighbours have."""
        outputs: Outputs = []
        if not self._said_goodbye:
            self._said_goodbye = True
            outputs += [self._say_goodbye(each) for each in self.membership.reachable_neighbours()]
        if self.membership.all_finished:
            self.finished = True
            self.finish()
            outputs.append(commands.Finish())
        return outputs

    def _fail_if_all_rejected(self, reason: str) -> Outputs:
        """Fail before training if no neighbour is left to start with."""
        return self._fail(reason) if self.membership.all_rejected and not self.started else []

    def _fail(self, reason: str) -> Outputs:
        self.finished = True
        return [commands.Finish(reason=reason)]

    # Commands.

    def _next_wake(self) -> commands.Wake:
        return commands.Wake(at_s=self.now_s + self.identity.patience_s)

    def _accept(self, neighbour: Neighbour, offer_model: bool) -> commands.Send:
        return self.membership.send(
            neighbour.name,
            messages.Accepted,
            to_incarnation=neighbour.incarnation,
            degree=self.membership.degree,
            training=offer_model,
            updates_done=self.update_number,
            steps=self.steps,
            model=self.public_model().tobytes() if offer_model else b"",
            share=self.identity.share,
        )

    def _announce_start(self, neighbour: Neighbour) -> commands.Send:
        neighbour.receives_all = self.steps == 0
        done, model = self.update_number, self.model_to_announce()
        return self.membership.send(
            neighbour.name, messages.Started, updates_done=done, model=model
        )

    def _say_goodbye(self, neighbour: Neighbour) -> commands.Send:
        last = self.update_number
        return self.membership.send(neighbour.name, messages.Goodbye, last_update=last)


def reject_update(update: messages.Update, reason: str) -> notices.MessageRejected:
    """Return the notice of an update that counts as received, but is not applied."""
    return notices.MessageRejected(
        sender=update.sender, reason=reason, incarnation=update.incarnation, number=update.number
    )


HANDLERS: dict[type[messages.PeerMessage], Callable[[Any, Neighbour, Any], Outputs]] = {
    messages.Accepted: Node.on_accepted,
    messages.Started: Node.on_started,
    messages.Update: Node.on_update,
    messages.Heartbeat: Node.on_heartbeat,
    messages.Goodbye: Node.on_goodbye,
}

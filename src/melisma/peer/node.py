"""A node of training without an orchestrator, without I/O: told what happens, it says what to do.

It greets its neighbours, begins when they have answered or are given up, computes while it may,
sends what it has computed, applies what comes meanwhile, and ends when it has done its steps and
its neighbours theirs. When it computes, what it sends and what it makes of what comes is the
algorithm's, which is a class of its own.

The parameters are one array that the driver trains on: between two steps a node may change them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from melisma.errors import DataError
from melisma.learning.compression import Compression, compression_for
from melisma.peer import commands, messages
from melisma.peer.neighbour import Neighbour, Vector

Outputs = list[commands.AnyCommand]
MAX_UPDATES_AHEAD = 1000
"""Updates that may come before one that is missing."""
UNCOMPRESSED = compression_for("none")


@dataclass(frozen=True, eq=False)
class Model:
    """All parameters, and the sum of gradients since it was last set to 0; each as one array."""

    vector: Vector
    gradient_sum: Vector


@dataclass(frozen=True)
class NodeIdentity:
    """Who a node is: its name, its life, and what must be the same at its neighbours.

    It takes `iterations` steps. `patience_s` is how long it waits for a neighbour's answer, and how
    often it looks for one that is gone.
    """

    name: str
    incarnation: str
    iterations: int
    compatibility: Mapping[str, str]
    patience_s: float


class Node(ABC):
    """What all algorithms have in common."""

    def __init__(
        self, me: NodeIdentity, neighbours: Iterable[str], model: Model, compression: Compression
    ) -> None:
        self.identity, self.model, self.compression = me, model, compression
        self.neighbours = {name: Neighbour(name) for name in neighbours}
        self.update_number = self.steps = self.own_updates = 0
        """Of updates and of steps, with those of a model that was taken over; and of its own."""
        self.now_s = 0.0
        self.computing: commands.Compute | None = None
        self.started = self.finished = False
        self._offers: list[messages.Accepted] = []
        self._kept: list[messages.Update] = []
        self._said_bye = False

    # What an algorithm is made of.

    @abstractmethod
    def next_compute(self) -> commands.Compute | None:
        """What to compute now; nothing while it has to wait."""

    @abstractmethod
    def updates_after(self, computed: commands.Compute) -> list[tuple[float, bytes]]:
        """Updates to send when that is done: step sizes and contents."""

    @abstractmethod
    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """What to make of a neighbour's update; it was not applied before."""

    def public_model(self) -> Vector:
        """The model that a newcomer begins with."""
        return self.model.vector

    def finish(self) -> None:  # noqa: B027 - not all need it
        """All that will come has come."""

    def announced_model(self) -> bytes:
        """What neighbours must know of the model to make sense of updates."""
        return b""

    def on_announced_model(self, neighbour: Neighbour, content: bytes) -> None:  # noqa: B027 - not all need it
        """What a neighbour tells of its own."""

    def on_acknowledged(self, took_s: float) -> None:  # noqa: B027 - not all need it
        """A message has arrived, and it is known so long after it was sent."""

    # What happens.

    def start(self, at_s: float) -> Outputs:
        """Greet everybody."""
        self.now_s = at_s
        greetings: Outputs = [self._hello(name) for name in self.neighbours]
        return [*greetings, commands.Wake(at_s=at_s + self.identity.patience_s), *self._go_on()]

    def on_computed(self, at_s: float) -> Outputs:
        """The steps of the last `Compute` are done."""
        self.now_s = at_s
        assert self.computing is not None
        computed, self.computing = self.computing, None
        self.steps += computed.steps
        found: Outputs = []
        try:
            updates = self.updates_after(computed)
        except DataError as error:
            self.finished = True
            return [commands.Finish(why=f"it cannot go on: {error}; try smaller steps")]
        for rate, content in updates:
            self.update_number += 1
            self.own_updates += 1
            found += self._updates(rate, content)
        return found + self._go_on()

    def on_message(self, at_s: float, message: messages.Message) -> Outputs:
        """A message has come."""
        self.now_s = at_s
        neighbour = self.neighbours.get(message.sender, Neighbour(message.sender))
        match message:
            case messages.Hello():
                found = self._greeted(neighbour, message)
            case _ if message.sender not in self.neighbours or neighbour.rejected:
                found = []
            case messages.Accepted() | messages.Rejected() | messages.Update() if (
                message.to_incarnation != self.identity.incarnation
            ):
                found = []
            case messages.Rejected():
                found = self._turned_away(neighbour, message)
            case messages.Accepted() | messages.Started() if why := self._unfit(message.model):
                found = [commands.MessageRejected(sender=message.sender, reason=why)]
            case _ if message.incarnation < neighbour.incarnation:
                found = [
                    commands.MessageRejected(sender=message.sender, reason="it is of a former life")
                ]
            case _ if neighbour.incarnation not in ("", message.incarnation):
                # It has not greeted yet, or that is late: its answer tells from where it counts.
                found = [self._met(message), self._hello(message.sender)]
                found += self._of_a_neighbour(self.neighbours[message.sender], message)
            case _:
                found = self._of_a_neighbour(neighbour, message)
        return found + self._go_on()

    def on_unreachable(self, at_s: float, name: str) -> Outputs:
        """A neighbour does not answer any more."""
        self.now_s = at_s
        neighbour = self.neighbours[name]
        if neighbour.lost:
            return []
        return [*self._given_up(neighbour), *self._go_on()]

    def leave(self) -> Outputs:
        """It is to end before its time: neighbours need not wait for it."""
        self.finished = True
        there = [each.name for each in self.neighbours.values() if each.reachable]
        return [commands.Send(to=name, message=self._bye()) for name in there]

    def on_wake(self, at_s: float) -> Outputs:
        """Time has passed: who has not answered is given up, who is gone is looked for.

        Others are told that this node is there, by which its driver finds out if they are not.
        """
        self.now_s = at_s
        if self.finished:
            return []
        found: Outputs = []
        for neighbour in self.neighbours.values():
            if neighbour.rejected:
                continue
            if neighbour.lost:
                met = neighbour.incarnation and self.started
                found.append(self._begun(neighbour) if met else self._hello(neighbour.name))
            elif not self.started and not neighbour.answered:
                found += self._given_up(neighbour)
            elif neighbour.reachable and not neighbour.finished:
                found.append(
                    commands.Send(to=neighbour.name, message=messages.Heartbeat(**self._by()))
                )
        return [*found, commands.Wake(at_s=at_s + self.identity.patience_s), *self._go_on()]

    @property
    def degree(self) -> int:
        """How many neighbours it has, those who are gone too."""
        return sum(not each.rejected for each in self.neighbours.values())

    # Meeting.

    def _greeted(self, neighbour: Neighbour, hello: messages.Hello) -> Outputs:
        if hello.incarnation < neighbour.incarnation:
            why = "a later life of that name is known here; is its clock right?"
            return self._refusal(hello, why)
        if different := _difference(self.identity.compatibility, hello.compatibility):
            if hello.sender in self.neighbours:
                neighbour.lost = neighbour.rejected = True
            why = f"{hello.sender} would be a neighbour, but {different}"
            return [*self._refusal(hello, different), *self._unless_refused(why)]
        self.neighbours[hello.sender] = neighbour
        found: Outputs = []
        # To whom all updates go, its greeting is only late: it needs no model to begin with.
        offers = self.started and not (
            hello.incarnation == neighbour.incarnation and neighbour.receives_all
        )
        if hello.incarnation != neighbour.incarnation:
            found.append(self._met(hello))
            neighbour = self.neighbours[hello.sender]
        elif neighbour.lost:
            # It may have had a welcome long ago, and would not look at another one.
            found += self._back(neighbour)
        neighbour.degree = hello.degree
        welcome = messages.Accepted(
            **self._by(),
            to_incarnation=hello.incarnation,
            degree=self.degree,
            training=offers,
            updates_done=self.update_number,
            steps=self.steps,
            model=self.public_model().tobytes() if offers else b"",
        )
        found.append(commands.Send(to=neighbour.name, message=welcome))
        if self._said_bye:
            found.append(commands.Send(to=neighbour.name, message=self._bye()))
        return found

    def _refusal(self, hello: messages.Hello, why: str) -> Outputs:
        refusal = messages.Rejected(**self._by(), to_incarnation=hello.incarnation, reason=why)
        refused = commands.MessageRejected(
            sender=hello.sender, reason=f"it would be a neighbour, but {why}"
        )
        return [refused, commands.Send(to=hello.sender, message=refusal)]

    def _turned_away(self, neighbour: Neighbour, refusal: messages.Rejected) -> Outputs:
        """Whom everybody turns away has nobody to train with."""
        neighbour.lost = neighbour.rejected = True
        why = f"{refusal.sender} refuses: {refusal.reason}"
        return [
            commands.MessageRejected(sender=refusal.sender, reason=why),
            *self._unless_refused(why),
        ]

    def _unless_refused(self, why: str) -> Outputs:
        """Who has not begun ends if nobody is left to begin with."""
        alone = self.neighbours and all(each.rejected for each in self.neighbours.values())
        if self.started or not alone:
            return []
        self.finished = True
        return [commands.Finish(why=why)]

    def _met(self, message: messages.PeerMessage) -> commands.NeighbourJoined:
        """Another life of a neighbour begins; what the former one sent is not for the next."""
        name, life = message.sender, message.incarnation
        self.neighbours[name] = Neighbour(name, life, assumed_updates=self.update_number)
        self._kept = [each for each in self._kept if each.sender != name]
        return commands.NeighbourJoined(
            name=name, incarnation=life, assumed_updates=self.update_number
        )

    def _back(self, neighbour: Neighbour) -> Outputs:
        """It was gone, and is not: it is told what it may have missed."""
        neighbour.lost = False
        found = self._found(neighbour, back=True)
        found += [self._begun(neighbour)] if self.started else []
        found += [commands.Send(to=neighbour.name, message=self._bye())] if self._said_bye else []
        return found

    def _of_a_neighbour(self, neighbour: Neighbour, message: messages.Message) -> Outputs:
        found: Outputs = []
        neighbour.incarnation = message.incarnation
        if neighbour.lost:
            found += self._back(neighbour)
        match message:
            case messages.Accepted():
                neighbour.degree = message.degree
                found += self._welcomed(neighbour, message)
            case messages.Started(updates_done=done, model=content):
                found += self._counted(neighbour, done, content)
            case messages.Update():
                found += self._updated(neighbour, message)
            case messages.Goodbye(last_update=last):
                neighbour.last_update = last
        return found

    def _welcomed(self, neighbour: Neighbour, welcome: messages.Accepted) -> Outputs:
        if neighbour.answered:
            return []
        neighbour.answered = True
        if not welcome.training:
            return []
        if self.started:
            return self._counted(neighbour, welcome.updates_done, welcome.model)
        self._offers.append(welcome)
        return self._counts(neighbour, welcome.updates_done, welcome.model)

    def _counted(self, neighbour: Neighbour, done: int, content: bytes) -> Outputs:
        if neighbour.started and done <= neighbour.received:
            return []
        return self._counts(neighbour, done, content)

    def _counts(self, neighbour: Neighbour, done: int, content: bytes) -> Outputs:
        """From there on: what it tells has its updates up to that one in it."""
        name, overtaken = neighbour.name, self.started and neighbour.received > done
        self._kept = [each for each in self._kept if each.sender != name or each.number > done]
        neighbour.start_after(done)
        if not overtaken:
            self.on_announced_model(neighbour, content)
        return self._found(neighbour)

    def _found(self, neighbour: Neighbour, *, back: bool = False) -> Outputs:
        name, life = neighbour.name, neighbour.incarnation
        if not neighbour.started:
            return [
                commands.NeighbourJoined(
                    name=name, incarnation=life, assumed_updates=neighbour.assumed_updates
                )
            ]
        return [
            commands.NeighbourReady(
                name=name, incarnation=life, updates_done=neighbour.received, returned=back
            )
        ]

    def _given_up(self, neighbour: Neighbour) -> Outputs:
        neighbour.lost, neighbour.receives_all = True, False
        alone = all(each.lost for each in self.neighbours.values())
        return [commands.NeighbourLost(name=neighbour.name, alone=alone)]

    # Training.

    def _updates(self, rate: float, content: bytes) -> Outputs:
        return [
            commands.Send(
                to=each.name,
                message=messages.Update(
                    **self._by(),
                    to_incarnation=each.incarnation,
                    number=self.update_number,
                    learning_rate=rate,
                    content=content,
                ),
            )
            for each in self.neighbours.values()
            if each.reachable
        ]

    def _updated(self, neighbour: Neighbour, update: messages.Update) -> Outputs:
        if neighbour.started and update.number > neighbour.received + MAX_UPDATES_AHEAD:
            why = f"update {update.number} after {neighbour.received}; that is too far ahead"
            return [
                commands.MessageRejected(sender=update.sender, reason=why),
                *self._given_up(neighbour),
            ]
        if not neighbour.record_update(update.number):
            return []
        if not self.started:
            self._kept.append(update)
            return []
        return self._applied(neighbour, update)

    def _applied(self, neighbour: Neighbour, update: messages.Update) -> Outputs:
        try:
            change = self.compression.unpack(update.content, self.model.vector.size)
        except DataError as error:
            why = f"update {update.number}: {error}"
            who, number = update.sender, update.number
            return [
                commands.MessageRejected(
                    sender=who, reason=why, incarnation=update.incarnation, number=number
                )
            ]
        self.apply_update(neighbour, update, change)
        return [
            commands.UpdateApplied(
                sender=update.sender, incarnation=update.incarnation, number=update.number
            )
        ]

    def _unfit(self, content: bytes) -> str:
        """Why a model that a neighbour tells is none; empty if it is one, or none is told."""
        try:
            UNCOMPRESSED.unpack(content, self.model.vector.size if content else 0)
        except DataError as error:
            return f"its model: {error}"
        return ""

    def _go_on(self) -> Outputs:
        if self.finished:
            return []
        found: Outputs = []
        if not self.started:
            if any(not each.answered and not each.lost for each in self.neighbours.values()):
                return []
            found += self._begin()
        if self.computing is None and self.steps < self.identity.iterations:
            self.computing = self.next_compute()
            found += [self.computing] if self.computing else []
        if self.steps >= self.identity.iterations:
            found += self._end()
        return found

    def _begin(self) -> Outputs:
        """With the model of whoever is farthest, or with the one that all begin with."""
        self.started = True
        offer = max(self._offers, key=lambda each: (each.steps, each.sender), default=None)
        if offer is not None and offer.steps:
            self.model.vector[:] = np.frombuffer(offer.model, np.float32)
            self.adopt_progress(offer)
        model_of = offer.sender if offer is not None and offer.steps else ""
        found: Outputs = [
            commands.TrainingStarted(model_from=model_of, updates_done=self.update_number)
        ]
        found += [self._begun(each) for each in self.neighbours.values() if each.reachable]
        kept, self._kept, self._offers = self._kept, [], []
        for update in sorted(kept, key=lambda each: each.number):
            found += self._applied(self.neighbours[update.sender], update)
        return found

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """Count on from where a neighbour is, whose model was taken over."""
        self.update_number, self.steps = offer.updates_done, offer.steps

    def _end(self) -> Outputs:
        found: Outputs = []
        if not self._said_bye:
            self._said_bye = True
            there = [each.name for each in self.neighbours.values() if each.reachable]
            found += [commands.Send(to=name, message=self._bye()) for name in there]
        if all(each.finished or each.lost for each in self.neighbours.values()):
            self.finished = True
            self.finish()
            found.append(commands.Finish())
        return found

    # What it says.

    def _by(self) -> dict[str, str]:
        return {"sender": self.identity.name, "incarnation": self.identity.incarnation}

    def _hello(self, name: str) -> commands.Send:
        hello = messages.Hello(
            **self._by(), compatibility=dict(self.identity.compatibility), degree=self.degree
        )
        return commands.Send(to=name, message=hello)

    def _begun(self, neighbour: Neighbour) -> commands.Send:
        neighbour.receives_all = self.steps == 0
        begun = messages.Started(
            **self._by(), updates_done=self.update_number, model=self.announced_model()
        )
        return commands.Send(to=neighbour.name, message=begun)

    def _bye(self) -> messages.Goodbye:
        return messages.Goodbye(**self._by(), last_update=self.update_number)


def _difference(mine: Mapping[str, str], its: Mapping[str, str]) -> str:
    """What is not the same at both ends, in words; empty if nothing is."""
    for name in [*mine, *(its.keys() - mine.keys())]:
        here, there = mine.get(name, "none"), its.get(name, "none")
        if here != there:
            return f"{name} here is {here}, there {there}"
    return ""

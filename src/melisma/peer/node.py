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

Commands = list[commands.Any]
FARTHEST = 1000
"""Updates that may come before one that is missing."""
WHOLE = compression_for("none")


@dataclass(frozen=True, eq=False)
class Model:
    """All parameters, and the sum of gradients since it was last set to 0; each as one array."""

    vector: Vector
    slopes: Vector


@dataclass(frozen=True)
class Self:
    """Who a node is: its name, its life, and what must be the same at its neighbours.

    It takes `iterations` steps. `patience_s` is how long it waits for a neighbour's answer, and how
    often it looks for one that is gone.
    """

    name: str
    life: str
    iterations: int
    form: Mapping[str, str]
    patience_s: float


class Node(ABC):
    """What all algorithms have in common."""

    def __init__(
        self, me: Self, neighbours: Iterable[str], model: Model, compression: Compression
    ) -> None:
        self.me, self.model, self.compression = me, model, compression
        self.neighbours = {name: Neighbour(name) for name in neighbours}
        self.number = self.steps = self.told_updates = 0
        """Of updates and of steps, with those of a model that was taken over; and of its own."""
        self.now_s = 0.0
        self.computing: commands.Compute | None = None
        self.began = self.finished = False
        self._offers: list[messages.Welcome] = []
        self._kept: list[messages.Update] = []
        self._said_bye = False

    # What an algorithm is made of.

    @abstractmethod
    def next(self) -> commands.Compute | None:
        """What to compute now; nothing while it has to wait."""

    @abstractmethod
    def after(self, computed: commands.Compute) -> list[tuple[float, bytes]]:
        """Updates to send when that is done: step sizes and contents."""

    @abstractmethod
    def apply(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """What to make of a neighbour's update; it was not applied before."""

    def public(self) -> Vector:
        """The model that a newcomer begins with."""
        return self.model.vector

    def finish(self) -> None:  # noqa: B027 - not all need it
        """All that will come has come."""

    def tells(self) -> bytes:
        """What neighbours must know of the model to make sense of updates."""
        return b""

    def told(self, neighbour: Neighbour, content: bytes) -> None:  # noqa: B027 - not all need it
        """What a neighbour tells of its own."""

    def acknowledged(self, took_s: float) -> None:  # noqa: B027 - not all need it
        """A message has arrived, and it is known so long after it was sent."""

    # What happens.

    def start(self, at_s: float) -> Commands:
        """Greet everybody."""
        self.now_s = at_s
        greetings: Commands = [self._hello(name) for name in self.neighbours]
        return [*greetings, commands.Wake(at_s=at_s + self.me.patience_s), *self._go_on()]

    def computed(self, at_s: float) -> Commands:
        """The steps of the last `Compute` are done."""
        self.now_s = at_s
        assert self.computing is not None
        computed, self.computing = self.computing, None
        self.steps += computed.steps
        found: Commands = []
        try:
            updates = self.after(computed)
        except DataError as error:
            self.finished = True
            return [commands.Finish(why=f"it cannot go on: {error}; try smaller steps")]
        for rate, content in updates:
            self.number += 1
            self.told_updates += 1
            found += self._updates(rate, content)
        return found + self._go_on()

    def heard(self, at_s: float, message: messages.Message) -> Commands:
        """A message has come."""
        self.now_s = at_s
        neighbour = self.neighbours.get(message.sender, Neighbour(message.sender))
        match message:
            case messages.Hello():
                found = self._greeted(neighbour, message)
            case _ if message.sender not in self.neighbours or neighbour.refused:
                found = []
            case messages.Welcome() | messages.Refusal() | messages.Update() if (
                message.to != self.me.life
            ):
                found = []
            case messages.Refusal():
                found = self._turned_away(neighbour, message)
            case messages.Welcome() | messages.Begun() if why := self._unfit(message.content):
                found = [commands.Refused(sender=message.sender, why=why)]
            case _ if message.life < neighbour.life:
                found = [commands.Refused(sender=message.sender, why="it is of a former life")]
            case _ if neighbour.life not in ("", message.life):
                # It has not greeted yet, or that is late: its answer tells from where it counts.
                found = [self._met(message), self._hello(message.sender)]
                found += self._of_a_neighbour(self.neighbours[message.sender], message)
            case _:
                found = self._of_a_neighbour(neighbour, message)
        return found + self._go_on()

    def gone(self, at_s: float, name: str) -> Commands:
        """A neighbour does not answer any more."""
        self.now_s = at_s
        neighbour = self.neighbours[name]
        if neighbour.gone:
            return []
        return [*self._given_up(neighbour), *self._go_on()]

    def leave(self) -> Commands:
        """It is to end before its time: neighbours need not wait for it."""
        self.finished = True
        there = [each.name for each in self.neighbours.values() if each.here]
        return [commands.Send(to=name, message=self._bye()) for name in there]

    def woke(self, at_s: float) -> Commands:
        """Time has passed: who has not answered is given up, who is gone is looked for.

        Others are told that this node is there, by which its driver finds out if they are not.
        """
        self.now_s = at_s
        if self.finished:
            return []
        found: Commands = []
        for neighbour in self.neighbours.values():
            if neighbour.refused:
                continue
            if neighbour.gone:
                met = neighbour.life and self.began
                found.append(self._begun(neighbour) if met else self._hello(neighbour.name))
            elif not self.began and not neighbour.answered:
                found += self._given_up(neighbour)
            elif neighbour.here and not neighbour.ended:
                found.append(commands.Send(to=neighbour.name, message=messages.Alive(**self._by())))
        return [*found, commands.Wake(at_s=at_s + self.me.patience_s), *self._go_on()]

    @property
    def degree(self) -> int:
        """How many neighbours it has, those who are gone too."""
        return sum(not each.refused for each in self.neighbours.values())

    # Meeting.

    def _greeted(self, neighbour: Neighbour, hello: messages.Hello) -> Commands:
        if hello.life < neighbour.life:
            why = "a later life of that name is known here; is its clock right?"
            return self._refusal(hello, why)
        if different := _difference(self.me.form, hello.form):
            if hello.sender in self.neighbours:
                neighbour.gone = neighbour.refused = True
            why = f"{hello.sender} would be a neighbour, but {different}"
            return [*self._refusal(hello, different), *self._unless_refused(why)]
        self.neighbours[hello.sender] = neighbour
        found: Commands = []
        # To whom all updates go, its greeting is only late: it needs no model to begin with.
        offers = self.began and not (hello.life == neighbour.life and neighbour.all_sent)
        if hello.life != neighbour.life:
            found.append(self._met(hello))
            neighbour = self.neighbours[hello.sender]
        elif neighbour.gone:
            # It may have had a welcome long ago, and would not look at another one.
            found += self._back(neighbour)
        neighbour.degree = hello.degree
        welcome = messages.Welcome(
            **self._by(),
            to=hello.life,
            degree=self.degree,
            begun=offers,
            done=self.number,
            steps=self.steps,
            content=self.public().tobytes() if offers else b"",
        )
        found.append(commands.Send(to=neighbour.name, message=welcome))
        if self._said_bye:
            found.append(commands.Send(to=neighbour.name, message=self._bye()))
        return found

    def _refusal(self, hello: messages.Hello, why: str) -> Commands:
        refusal = messages.Refusal(**self._by(), to=hello.life, why=why)
        refused = commands.Refused(sender=hello.sender, why=f"it would be a neighbour, but {why}")
        return [refused, commands.Send(to=hello.sender, message=refusal)]

    def _turned_away(self, neighbour: Neighbour, refusal: messages.Refusal) -> Commands:
        """Whom everybody turns away has nobody to train with."""
        neighbour.gone = neighbour.refused = True
        why = f"{refusal.sender} refuses: {refusal.why}"
        return [commands.Refused(sender=refusal.sender, why=why), *self._unless_refused(why)]

    def _unless_refused(self, why: str) -> Commands:
        """Who has not begun ends if nobody is left to begin with."""
        alone = self.neighbours and all(each.refused for each in self.neighbours.values())
        if self.began or not alone:
            return []
        self.finished = True
        return [commands.Finish(why=why)]

    def _met(self, message: messages.Said) -> commands.Met:
        """Another life of a neighbour begins; what the former one sent is not for the next."""
        name, life = message.sender, message.life
        self.neighbours[name] = Neighbour(name, life, level=self.number)
        self._kept = [each for each in self._kept if each.sender != name]
        return commands.Met(name=name, life=life, level=self.number)

    def _back(self, neighbour: Neighbour) -> Commands:
        """It was gone, and is not: it is told what it may have missed."""
        neighbour.gone = False
        found = self._found(neighbour, back=True)
        found += [self._begun(neighbour)] if self.began else []
        found += [commands.Send(to=neighbour.name, message=self._bye())] if self._said_bye else []
        return found

    def _of_a_neighbour(self, neighbour: Neighbour, message: messages.Message) -> Commands:
        found: Commands = []
        neighbour.life = message.life
        if neighbour.gone:
            found += self._back(neighbour)
        match message:
            case messages.Welcome():
                neighbour.degree = message.degree
                found += self._welcomed(neighbour, message)
            case messages.Begun(done=done, content=content):
                found += self._counted(neighbour, done, content)
            case messages.Update():
                found += self._updated(neighbour, message)
            case messages.Bye(last=last):
                neighbour.last = last
        return found

    def _welcomed(self, neighbour: Neighbour, welcome: messages.Welcome) -> Commands:
        if neighbour.answered:
            return []
        neighbour.answered = True
        if not welcome.begun:
            return []
        if self.began:
            return self._counted(neighbour, welcome.done, welcome.content)
        self._offers.append(welcome)
        return self._counts(neighbour, welcome.done, welcome.content)

    def _counted(self, neighbour: Neighbour, done: int, content: bytes) -> Commands:
        if neighbour.begun and done <= neighbour.done:
            return []
        return self._counts(neighbour, done, content)

    def _counts(self, neighbour: Neighbour, done: int, content: bytes) -> Commands:
        """From there on: what it tells has its updates up to that one in it."""
        name, overtaken = neighbour.name, self.began and neighbour.done > done
        self._kept = [each for each in self._kept if each.sender != name or each.number > done]
        neighbour.counts_from(done)
        if not overtaken:
            self.told(neighbour, content)
        return self._found(neighbour)

    def _found(self, neighbour: Neighbour, *, back: bool = False) -> Commands:
        name, life = neighbour.name, neighbour.life
        if not neighbour.begun:
            return [commands.Met(name=name, life=life, level=neighbour.level)]
        return [commands.Found(name=name, life=life, done=neighbour.done, back=back)]

    def _given_up(self, neighbour: Neighbour) -> Commands:
        neighbour.gone, neighbour.all_sent = True, False
        alone = all(each.gone for each in self.neighbours.values())
        return [commands.Lost(name=neighbour.name, alone=alone)]

    # Training.

    def _updates(self, rate: float, content: bytes) -> Commands:
        return [
            commands.Send(
                to=each.name,
                message=messages.Update(
                    **self._by(), to=each.life, number=self.number, rate=rate, content=content
                ),
            )
            for each in self.neighbours.values()
            if each.here
        ]

    def _updated(self, neighbour: Neighbour, update: messages.Update) -> Commands:
        if neighbour.begun and update.number > neighbour.done + FARTHEST:
            why = f"update {update.number} after {neighbour.done}; that is too far ahead"
            return [commands.Refused(sender=update.sender, why=why), *self._given_up(neighbour)]
        if not neighbour.takes(update.number):
            return []
        if not self.began:
            self._kept.append(update)
            return []
        return self._applied(neighbour, update)

    def _applied(self, neighbour: Neighbour, update: messages.Update) -> Commands:
        try:
            change = self.compression.unpack(update.content, self.model.vector.size)
        except DataError as error:
            why = f"update {update.number}: {error}"
            who, number = update.sender, update.number
            return [commands.Refused(sender=who, why=why, life=update.life, number=number)]
        self.apply(neighbour, update, change)
        return [commands.Took(sender=update.sender, life=update.life, number=update.number)]

    def _unfit(self, content: bytes) -> str:
        """Why a model that a neighbour tells is none; empty if it is one, or none is told."""
        try:
            WHOLE.unpack(content, self.model.vector.size if content else 0)
        except DataError as error:
            return f"its model: {error}"
        return ""

    def _go_on(self) -> Commands:
        if self.finished:
            return []
        found: Commands = []
        if not self.began:
            if any(not each.answered and not each.gone for each in self.neighbours.values()):
                return []
            found += self._begin()
        if self.computing is None and self.steps < self.me.iterations:
            self.computing = self.next()
            found += [self.computing] if self.computing else []
        if self.steps >= self.me.iterations:
            found += self._end()
        return found

    def _begin(self) -> Commands:
        """With the model of whoever is farthest, or with the one that all begin with."""
        self.began = True
        offer = max(self._offers, key=lambda each: (each.steps, each.sender), default=None)
        if offer is not None and offer.steps:
            self.model.vector[:] = np.frombuffer(offer.content, np.float32)
            self.adopt(offer)
        model_of = offer.sender if offer is not None and offer.steps else ""
        found: Commands = [commands.Began(model_of=model_of, done=self.number)]
        found += [self._begun(each) for each in self.neighbours.values() if each.here]
        kept, self._kept, self._offers = self._kept, [], []
        for update in sorted(kept, key=lambda each: each.number):
            found += self._applied(self.neighbours[update.sender], update)
        return found

    def adopt(self, offer: messages.Welcome) -> None:
        """Count on from where a neighbour is, whose model was taken over."""
        self.number, self.steps = offer.done, offer.steps

    def _end(self) -> Commands:
        found: Commands = []
        if not self._said_bye:
            self._said_bye = True
            there = [each.name for each in self.neighbours.values() if each.here]
            found += [commands.Send(to=name, message=self._bye()) for name in there]
        if all(each.ended or each.gone for each in self.neighbours.values()):
            self.finished = True
            self.finish()
            found.append(commands.Finish())
        return found

    # What it says.

    def _by(self) -> dict[str, str]:
        return {"sender": self.me.name, "life": self.me.life}

    def _hello(self, name: str) -> commands.Send:
        hello = messages.Hello(**self._by(), form=dict(self.me.form), degree=self.degree)
        return commands.Send(to=name, message=hello)

    def _begun(self, neighbour: Neighbour) -> commands.Send:
        neighbour.all_sent = self.steps == 0
        begun = messages.Begun(**self._by(), done=self.number, content=self.tells())
        return commands.Send(to=neighbour.name, message=begun)

    def _bye(self) -> messages.Bye:
        return messages.Bye(**self._by(), last=self.number)


def _difference(mine: Mapping[str, str], its: Mapping[str, str]) -> str:
    """What is not the same at both ends, in words; empty if nothing is."""
    for name in [*mine, *(its.keys() - mine.keys())]:
        here, there = mine.get(name, "none"), its.get(name, "none")
        if here != there:
            return f"{name} here is {here}, there {there}"
    return ""

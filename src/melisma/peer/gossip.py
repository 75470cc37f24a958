"""Decentralised parallel SGD: a step, then the mean of one's own model and the neighbours'.

Nobody takes the next step before the models of all neighbours are in. The weight of a neighbour is
1 / (1 + the larger of both degrees) (Metropolis and Hastings), and the rest is one's own, so that
the mean of all models stays where it is while nobody joins. With compressed differences this is
CHOCO-SGD.
"""

from collections.abc import Iterable
from math import sqrt

import numpy as np

from melisma.learning.compression import Compression
from melisma.peer import commands
from melisma.peer.neighbour import Neighbour
from melisma.peer.node import Model, Self
from melisma.peer.public import Public
from melisma.peer.settings import Gossip


class GossipNode(Public):
    """A node of decentralised parallel SGD."""

    def __init__(
        self,
        me: Self,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        said: Gossip,
    ) -> None:
        super().__init__(me, neighbours, model, compression)
        self._said, self._mixed = said, 0

    def next(self) -> commands.Compute | None:
        """The next steps, when everybody's last model is in."""
        awaited = [each for each in self.neighbours.values() if each.here and not each.ended]
        if any(each.reached < self.number for each in awaited):
            return None
        self._mix()
        steps = min(self._said.steps, self.me.iterations - self.steps)
        rate = self._said.eta / (1 + self._said.beta * sqrt(self.steps))
        return commands.Compute(number=self.number + 1, steps=steps, rate=rate)

    def after(self, computed: commands.Compute) -> list[tuple[float, bytes]]:  # noqa: ARG002
        """The model as it is now."""
        self.model.slopes[:] = 0
        return [(1.0, self.difference())]

    def finish(self) -> None:
        """The last models count as well."""
        self._mix()

    def ready(self, neighbour: Neighbour, number: int) -> bool:
        """A neighbour may be one model ahead, which is for the next mean."""
        return super().ready(neighbour, number) and number <= self.number

    def _mix(self) -> None:
        """Once for each model that was told."""
        if self._mixed == self.number:
            return
        self._mixed = self.number
        for neighbour in self.neighbours.values():
            if neighbour.pending:
                self._in_order(neighbour)
        degree, pull = self.degree, np.zeros_like(self.own)
        for name, estimate in self.estimates().items():
            weight = 1 / (1 + max(degree, self.neighbours[name].degree))
            pull += np.float32(weight) * (estimate - self.own)
        self.model.vector[:] += np.float32(self._said.gamma) * pull

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
from melisma.peer.algorithms import GossipSgd
from melisma.peer.difference_node import DifferenceNode
from melisma.peer.neighbour import Neighbour
from melisma.peer.node import Model, NodeIdentity


class GossipNode(DifferenceNode):
    """A node of decentralised parallel SGD."""

    def __init__(
        self,
        me: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        said: GossipSgd,
    ) -> None:
        super().__init__(me, neighbours, model, compression)
        self._said, self._mixed = said, 0

    def next_compute(self) -> commands.Compute | None:
        """The next steps, when everybody's last model is in."""
        awaited = [
            each for each in self.neighbours.values() if each.reachable and not each.finished
        ]
        if any(each.progress < self.update_number for each in awaited):
            return None
        self._mix()
        steps = min(self._said.steps, self.identity.iterations - self.steps)
        rate = self._said.learning_rate / (1 + self._said.decay * sqrt(self.steps))
        return commands.Compute(number=self.update_number + 1, steps=steps, learning_rate=rate)

    def updates_after(self, computed: commands.Compute) -> list[tuple[float, bytes]]:  # noqa: ARG002
        """The model as it is now."""
        self.model.gradient_sum[:] = 0
        return [(1.0, self.pack_difference())]

    def finish(self) -> None:
        """The last models count as well."""
        self._mix()

    def is_due(self, neighbour: Neighbour, number: int) -> bool:
        """A neighbour may be one model ahead, which is for the next mean."""
        return super().is_due(neighbour, number) and number <= self.update_number

    def _mix(self) -> None:
        """Once for each model that was told."""
        if self._mixed == self.update_number:
            return
        self._mixed = self.update_number
        for neighbour in self.neighbours.values():
            if neighbour.pending:
                self._apply_pending(neighbour)
        degree, pull = self.degree, np.zeros_like(self.own_public)
        for name, estimate in self.neighbour_models().items():
            weight = 1 / (1 + max(degree, self.neighbours[name].degree))
            pull += np.float32(weight) * (estimate - self.own_public)
        self.model.vector[:] += np.float32(self._said.mixing) * pull

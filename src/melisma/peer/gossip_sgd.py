"""Decentralised parallel SGD: some steps, then a weighted mean with the neighbours' models.

A node starts its next steps when the models of all neighbours have arrived. The weight of a
neighbour is 1 / (1 + the larger of both degrees) (Metropolis and Hastings), the rest is the node's
own weight, so that mixing preserves the mean of all models while no node joins. With compressed
differences this is CHOCO-SGD.
"""

from collections.abc import Iterable
from math import sqrt

import numpy as np
from msgspec.structs import replace

from melisma.learning.compression import Compression
from melisma.peer import commands
from melisma.peer.algorithms import GossipSgd
from melisma.peer.difference_node import DifferenceNode
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.neighbour import Neighbour
from melisma.peer.node_state import OwnState


class GossipNode(DifferenceNode):
    """A node of decentralised parallel SGD."""

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        settings: GossipSgd,
    ) -> None:
        super().__init__(identity, neighbours, model, compression)
        self._settings, self._mixed_updates = settings, 0

    def next_steps(self) -> commands.TakeSteps | None:
        """Mix and return the next steps, when the last models of all neighbours have arrived."""
        if self.blocking_neighbours():
            return None
        self._mix()
        steps = min(self._settings.steps, self.identity.iterations - self.steps)
        rate = self._settings.learning_rate / (1 + self._settings.decay * sqrt(self.steps))
        return commands.TakeSteps(number=self.update_number + 1, steps=steps, learning_rate=rate)

    def blocking_neighbours(self) -> list[Neighbour]:
        """Return the neighbours whose last model has not arrived."""
        awaited = self.membership.neighbours_to_await()
        return [each for each in awaited if each.progress < self.update_number]

    def updates_after(self, computed: commands.TakeSteps) -> list[tuple[float, bytes]]:  # noqa: ARG002
        """Return the difference to the public model."""
        self.model.gradient_sum[:] = 0
        return [(1.0, self.pack_difference())]

    def finish(self) -> None:
        """Mix with the neighbours' last models."""
        self._mix()

    def own_state(self) -> OwnState:
        """Return the public model, and the number of updates that were mixed."""
        return replace(super().own_state(), mixed_updates=self._mixed_updates)

    def restore_own(self, own: OwnState) -> None:
        """Set the public model, and the number of updates that were mixed."""
        super().restore_own(own)
        self._mixed_updates = own.mixed_updates

    def is_due(self, neighbour: Neighbour, number: int) -> bool:
        """Hold back the model of a neighbour that is one ahead until the next mean."""
        return super().is_due(neighbour, number) and number <= self.update_number

    def _mix(self) -> None:
        """Mix once for each update that this node has sent."""
        if self._mixed_updates == self.update_number:
            return
        self._mixed_updates = self.update_number
        for neighbour in self.neighbours.values():
            if neighbour.pending:
                self._apply_pending(neighbour)
        degree, change = self.membership.degree, np.zeros_like(self.own_public)
        for name, pull in self.pulls().items():
            weight = 1 / (1 + max(degree, self.neighbours[name].degree))
            change += np.float32(weight) * pull
        self.model.vector[:] += np.float32(self._settings.mixing) * change

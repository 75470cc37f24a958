"""Event-triggered SGD (George and Gurram): who has moved far enough tells its model.

Every step goes down the gradient, and from the model that this node last told towards those that
its neighbours last told; nobody waits. (Were it from the model as it is, all would be held where
they began, and nobody would ever move far enough to tell.) A model is told when its distance from
the one told before (the sum over parameters) exceeds the threshold, which shrinks with the step
size.
"""

from collections.abc import Iterable

import numpy as np

from melisma.learning.compression import Compression
from melisma.peer import commands
from melisma.peer.algorithms import EventTriggeredSgd
from melisma.peer.difference_node import DifferenceNode
from melisma.peer.neighbour import Vector
from melisma.peer.node import Model, NodeIdentity


class EventTriggeredNode(DifferenceNode):
    """A node of event-triggered SGD."""

    def __init__(
        self,
        me: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        said: EventTriggeredSgd,
    ) -> None:
        super().__init__(me, neighbours, model, compression)
        self._said = said
        self._pull: Vector = np.zeros_like(model.vector)

    def next_compute(self) -> commands.Compute:
        """One step, from where it is pulled towards its neighbours at the same time."""
        said, slower = self._said, self._said.decay * self.steps + 1
        self._pull[:] = 0
        for estimate in self.neighbour_models().values():
            self._pull += estimate - self.own_public
        self._pull *= np.float32(said.coupling * said.learning_rate / slower**0.1)
        return commands.Compute(
            number=self.steps + 1, steps=1, learning_rate=said.learning_rate / slower
        )

    def updates_after(self, computed: commands.Compute) -> list[tuple[float, bytes]]:
        """The model, if it is far from what was told; at last in any case."""
        self.model.gradient_sum[:] = 0
        vector = self.model.vector
        vector += self._pull
        moved = float(np.abs(vector - self.own_public).sum())
        far = moved > self._said.threshold * computed.learning_rate * vector.size
        return (
            [(1.0, self.pack_difference())] if far or self.steps >= self.identity.iterations else []
        )

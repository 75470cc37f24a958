"""Models that are told by their changes: each node knows what its neighbours last told of theirs.

What is sent is the difference to what was told before. Compression may drop a part of it: that part
is in the next difference, so nothing is dropped for good. Differences make sense in their order;
those that come early wait.
"""

from collections.abc import Iterable

import numpy as np

from melisma.learning.compression import Compression
from melisma.peer import messages
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node import Model, Node, NodeIdentity


class DifferenceNode(Node):
    """What event-triggered SGD and gossip have in common."""

    def __init__(
        self, me: NodeIdentity, neighbours: Iterable[str], model: Model, compression: Compression
    ) -> None:
        super().__init__(me, neighbours, model, compression)
        self._start = model.vector.copy()
        self.own_public = model.vector.copy()
        """The model as the neighbours know it."""

    def public_model(self) -> Vector:
        """What was told, so that differences go on from there."""
        return self.own_public

    def announced_model(self) -> bytes:
        """The same, unless it is what everybody begins with."""
        return self.own_public.tobytes() if self.update_number else b""

    def on_announced_model(self, neighbour: Neighbour, content: bytes) -> None:
        """Its differences go on from this model."""
        known = np.frombuffer(content, np.float32) if content else self._start
        neighbour.model = known.copy()
        self._apply_pending(neighbour)

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """What neighbours will be told to begin with is what was taken over."""
        super().adopt_progress(offer)
        self.own_public[:] = self.model.vector

    def pack_difference(self) -> bytes:
        """The difference to what was told before, which is told now."""
        content = self.compression.pack(self.model.vector - self.own_public)
        # As the neighbours do it, whom rounding leads elsewhere than to the model, too.
        self.own_public += self.compression.unpack(content, self.own_public.size)
        return content

    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """Its model moves, as soon as all that came before has."""
        if neighbour.model is None:
            neighbour.model = self._start.copy()
        neighbour.pending[update.number] = change
        self._apply_pending(neighbour)

    def neighbour_models(self) -> dict[str, Vector]:
        """The models of neighbours that are not gone."""
        present = (each for each in self.neighbours.values() if each.reachable)
        return {each.name: each.model for each in present if each.model is not None}

    def is_due(self, neighbour: Neighbour, number: int) -> bool:
        """Whether that change is to go into its model by now."""
        return number <= neighbour.received

    def _apply_pending(self, neighbour: Neighbour) -> None:
        assert neighbour.model is not None
        for number in sorted(neighbour.pending):
            if self.is_due(neighbour, number):
                neighbour.model += neighbour.pending.pop(number)

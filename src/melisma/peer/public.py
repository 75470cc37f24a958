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
from melisma.peer.node import Model, Node, Self


class Public(Node):
    """What event-triggered SGD and gossip have in common."""

    def __init__(
        self, me: Self, neighbours: Iterable[str], model: Model, compression: Compression
    ) -> None:
        super().__init__(me, neighbours, model, compression)
        self._start = model.vector.copy()
        self.own = model.vector.copy()
        """The model as the neighbours know it."""

    def public(self) -> Vector:
        """What was told, so that differences go on from there."""
        return self.own

    def tells(self) -> bytes:
        """The same, unless it is what everybody begins with."""
        return self.own.tobytes() if self.number else b""

    def told(self, neighbour: Neighbour, content: bytes) -> None:
        """Its differences go on from this model."""
        known = np.frombuffer(content, np.float32) if content else self._start
        neighbour.estimate = known.copy()
        self._in_order(neighbour)

    def adopt(self, offer: messages.Welcome) -> None:
        """What neighbours will be told to begin with is what was taken over."""
        super().adopt(offer)
        self.own[:] = self.model.vector

    def difference(self) -> bytes:
        """The difference to what was told before, which is told now."""
        content = self.compression.pack(self.model.vector - self.own)
        # As the neighbours do it, whom rounding leads elsewhere than to the model, too.
        self.own += self.compression.unpack(content, self.own.size)
        return content

    def apply(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """Its model moves, as soon as all that came before has."""
        if neighbour.estimate is None:
            neighbour.estimate = self._start.copy()
        neighbour.pending[update.number] = change
        self._in_order(neighbour)

    def estimates(self) -> dict[str, Vector]:
        """The models of neighbours that are not gone."""
        present = (each for each in self.neighbours.values() if each.here)
        return {each.name: each.estimate for each in present if each.estimate is not None}

    def ready(self, neighbour: Neighbour, number: int) -> bool:
        """Whether that change is to go into its model by now."""
        return number <= neighbour.done

    def _in_order(self, neighbour: Neighbour) -> None:
        assert neighbour.estimate is not None
        for number in sorted(neighbour.pending):
            if self.ready(neighbour, number):
                neighbour.estimate += neighbour.pending.pop(number)

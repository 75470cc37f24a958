"""Event-triggered SGD (George and Gurram): a node sends its model when it has moved far enough.

Every step follows the gradient, and moves from the node's public model towards those of its
neighbours; no node waits. (Moving from the present model instead would hold all nodes near the
initial model, and none would move far enough to send.) A model is sent when its distance from the
public one, summed over parameters, exceeds the threshold, which shrinks with the learning rate.
"""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from melisma.learning.compression import Compression
from melisma.peer import commands
from melisma.peer.algorithms import EventTriggeredSgd
from melisma.peer.difference_node import DifferenceNode
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node_state import OwnState

CONSENSUS_STEP = "move towards neighbours"


class EventTriggeredNode(DifferenceNode):
    """A node of event-triggered SGD."""

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        settings: EventTriggeredSgd,
    ) -> None:
        super().__init__(identity, neighbours, model, compression)
        self._settings = settings
        self._consensus_step: Vector = np.zeros_like(model.vector)

    def next_steps(self) -> commands.TakeSteps:
        """Return one step, and compute the move towards the neighbours that goes with it."""
        settings, divisor = self._settings, self._settings.decay * self.steps + 1
        self._consensus_step[:] = 0
        for pull in self.pulls().values():
            self._consensus_step += pull
        factor = settings.coupling * settings.learning_rate / divisor**0.1
        self._consensus_step *= np.float32(factor)
        rate = settings.learning_rate / divisor
        return commands.TakeSteps(number=self.steps + 1, steps=1, learning_rate=rate)

    def own_state(self) -> OwnState:
        """Return the public model, and the move towards the neighbours."""
        own = super().own_state()
        return replace(own, vectors={**own.vectors, CONSENSUS_STEP: self._consensus_step})

    def restore_own(self, own: OwnState) -> None:
        """Set the public model, and the move towards the neighbours."""
        super().restore_own(own)
        self._consensus_step[:] = own.vectors[CONSENSUS_STEP]

    def predict_update_s(self, neighbour: Neighbour) -> float:  # noqa: ARG002
        """Return the time of this node's steps: a neighbour may send only after its last one."""
        ended_s = self.now_s if self.blocked_since_s is None else self.blocked_since_s
        return ended_s - self.started_s

    def updates_after(self, computed: commands.TakeSteps) -> list[tuple[float, bytes]]:
        """Return the difference if it exceeds the threshold, and always after the last step."""
        self.model.gradient_sum[:] = 0
        vector = self.model.vector
        vector += self._consensus_step
        moved = float(np.abs(vector - self.own_public).sum())
        exceeded = moved > self._settings.threshold * computed.learning_rate * vector.size
        last = self.steps >= self.identity.iterations
        return [(1.0, self.pack_difference())] if exceeded or last else []

"""Nodes that send differences of their models, and keep a copy of each neighbour's model.

A difference is taken to the public model, the one that the neighbours can reconstruct. What
compression leaves out of one difference is part of the next, so nothing is lost. Differences are
applied in order; those that arrive early wait.
"""

from collections.abc import Iterable

import numpy as np

from melisma.learning.compression import Compression
from melisma.peer import messages
from melisma.peer.guard import CLIP_MEDIANS, norm_of
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node import Node
from melisma.peer.node_state import OwnState

PUBLIC_MODEL = "public model"


class DifferenceNode(Node):
    """The behaviour that event-triggered SGD and gossip share."""

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
    ) -> None:
        super().__init__(identity, neighbours, model, compression)
        self._initial_model = model.vector.copy()
        self.own_public: Vector = model.vector.copy()
        """This node's model as its neighbours know it."""

    def public_model(self) -> Vector:
        """Return the public model, to which later differences apply."""
        return self.own_public

    def model_to_announce(self) -> bytes:
        """Return the public model; empty while it is the initial one, which all nodes have."""
        return self.own_public.tobytes() if self.update_number else b""

    def on_announced_model(self, neighbour: Neighbour, content: bytes) -> None:
        """Replace the copy of the neighbour's model."""
        model = np.frombuffer(content, np.float32) if content else self._initial_model
        neighbour.model = model.copy()
        self._apply_pending(neighbour)

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """Make the adopted model the public one, to which the first difference applies."""
        super().adopt_progress(offer)
        self.own_public[:] = self.model.vector

    def own_state(self) -> OwnState:
        """Return the public model."""
        return OwnState(vectors={PUBLIC_MODEL: self.own_public})

    def restore_own(self, own: OwnState) -> None:
        """Set the public model."""
        self.own_public[:] = own.vectors[PUBLIC_MODEL]

    def pack_difference(self) -> bytes:
        """Pack the difference to the public model, and apply it there."""
        content = self.compression.pack(self.model.vector - self.own_public)
        # Computed as the neighbours do, so that rounding is the same at both ends.
        self.own_public += self.compression.unpack(content, self.own_public.size)
        return content

    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """Apply a difference to the neighbour's model once all earlier ones have arrived."""
        if neighbour.model is None:
            neighbour.model = self._initial_model.copy()
        neighbour.pending[update.number] = change
        self._apply_pending(neighbour)

    def update_size(
        self,
        share: float,  # noqa: ARG002 - rounds of all nodes have the same size
        update: messages.Update,  # noqa: ARG002
        change: Vector,
    ) -> tuple[float, float]:
        """Return the norm of the difference."""
        return norm_of(change), 1.0

    def pulls(self) -> dict[str, Vector]:
        """Return the way from the public model to each neighbour's, bounded by the others'.

        A single neighbour is bounded by the norm of the public model.
        """
        pulls = {name: model - self.own_public for name, model in self.neighbour_models().items()}
        if self.guard.mode == "off" or not self.own_public.size:
            return pulls
        norms = {name: norm_of(pull) for name, pull in pulls.items()}
        model_norm = norm_of(self.own_public)
        for name, norm in norms.items():
            others = [other for key, other in norms.items() if key != name and other > 0]
            limit = CLIP_MEDIANS * float(np.median(others)) if others else model_norm
            if norm > limit > 0:
                pulls[name] *= np.float32(limit / norm)
        return pulls

    def neighbour_models(self) -> dict[str, Vector]:
        """Return the models of reachable neighbours by name."""
        reachable = self.membership.reachable_neighbours()
        return {each.name: each.model for each in reachable if each.model is not None}

    def is_due(self, neighbour: Neighbour, number: int) -> bool:
        """Return whether that difference may be applied to the neighbour's model now."""
        return number <= neighbour.received

    def _apply_pending(self, neighbour: Neighbour) -> None:
        assert neighbour.model is not None
        for number in sorted(neighbour.pending):
            if self.is_due(neighbour, number):
                neighbour.model += neighbour.pending.pop(number)

"""The state of a node, and the decisions that an algorithm makes about it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import inf

import msgspec

from melisma.learning.compression import Compression
from melisma.peer import commands, messages, notices
from melisma.peer.guard import NeighbourGuard
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.lag import LagState
from melisma.peer.membership import Membership
from melisma.peer.neighbour import Neighbour, Vector


class OwnState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an algorithm beyond that of all nodes: arrays as long as the model, and more."""

    vectors: dict[str, Vector] = msgspec.field(default_factory=dict)
    mixed_updates: int = 0
    lag: LagState | None = None


Outputs = list[commands.AnyCommand | notices.AnyNotice]
MAX_UPDATES_AHEAD = 1000
"""The largest number of updates that may arrive ahead of a missing one."""
MAX_BYTES_AHEAD = 256 << 20
"""The same in bytes of unpacked updates; at least 8 updates are kept."""


class NodeState(ABC):
    """The progress of a node, its model and its neighbours."""

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
    ) -> None:
        self.model, self.compression = model, compression
        self.membership = Membership(identity, neighbours)
        self.guard = NeighbourGuard(identity.guard)
        self.max_ahead = min(
            MAX_UPDATES_AHEAD, max(8, MAX_BYTES_AHEAD // max(1, model.vector.nbytes))
        )
        self.neighbours = self.membership.neighbours
        self.update_number = self.steps = 0
        """The last update and the steps taken, those of an adopted model included."""
        self.own_updates = 0
        self.now_s = 0.0
        self.started_s = 0.0
        """The time at which training started."""
        self.round_s = 0.0
        """The time that the last steps took."""
        self.computing: commands.TakeSteps | None = None
        self.started = self.finished = self.said_goodbye = False
        self.offers: list[messages.Accepted] = []
        """Models that neighbours offered before this node started."""
        self.early_updates: list[messages.Update] = []
        """Updates that arrived before this node started."""

    @property
    def identity(self) -> NodeIdentity:
        """The name of this node and its present incarnation."""
        return self.membership.identity

    # Decisions of an algorithm.

    @abstractmethod
    def next_steps(self) -> commands.TakeSteps | None:
        """Return the next steps to take, or None while the node has to wait."""

    @abstractmethod
    def updates_after(self, computed: commands.TakeSteps) -> list[tuple[float, bytes]]:
        """Return the updates to send after these steps: learning rates and contents."""

    @abstractmethod
    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """Apply an update that was not applied before."""

    def update_size(
        self, share: float, update: messages.Update, change: Vector
    ) -> tuple[float, float]:
        """Return the norm of an update, and the factor by which such updates differ in size."""
        raise NotImplementedError

    def blocking_neighbours(self) -> list[Neighbour]:
        """Return the neighbours for which this node has to wait before it computes."""
        return []

    def predict_update_s(self, neighbour: Neighbour) -> float:  # noqa: ARG002
        """Return how long the next update of a neighbour takes, judged by this node's own."""
        return self.round_s

    def public_model(self) -> Vector:
        """Return the model that is offered to a node that joins."""
        return self.model.vector

    def model_to_announce(self) -> bytes:
        """Return the model to which the next update applies; empty if updates need none."""
        return b""

    def on_announced_model(self, neighbour: Neighbour, content: bytes) -> None:  # noqa: B027
        """Take over the model that a neighbour announced."""

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """Continue from the progress of a neighbour whose model was adopted."""
        self.update_number, self.steps = offer.updates_done, offer.steps

    def finish(self) -> None:  # noqa: B027 - most algorithms have nothing to do
        """Complete the model after the last update of all neighbours."""

    def own_state(self) -> OwnState:
        """Return the state of the algorithm, for `restore_own`."""
        return OwnState()

    def restore_own(self, own: OwnState) -> None:  # noqa: B027 - most algorithms have none
        """Set the state of the algorithm."""

    # Commands.

    def announce_start(self, neighbour: Neighbour) -> commands.Send:
        """Tell a neighbour that this node trains, and which updates follow."""
        neighbour.receives_all = self.steps == 0
        done, model = self.update_number, self.model_to_announce()
        return self.membership.send(
            neighbour.name, messages.Started, updates_done=done, model=model
        )

    def say_goodbye(self, neighbour: Neighbour) -> commands.Send:
        """Tell a neighbour which update of this node is the last."""
        last = self.update_number
        return self.membership.send(neighbour.name, messages.Goodbye, last_update=last)

    def fail(self, reason: str) -> Outputs:
        """End without success."""
        self.finished = True
        return [commands.Finish(reason=reason)]

    def drop_early_updates(self, sender: str, up_to: float = inf) -> None:
        """Drop the updates of a neighbour that arrived before this node started."""
        self.early_updates = [
            update
            for update in self.early_updates
            if update.sender != sender or update.number > up_to
        ]

"""Nodes that train in rounds and send the sum of each round's gradients to their neighbours.

The lag of a neighbour is the number of rounds done here minus the number of its rounds received
without a gap. A node computes only while no lag exceeds the maximum d. Counting all updates that
arrived, as the paper does, would allow one to be missing for ever while later ones arrive.

Applied in full, as in the paper, the updates of neighbours make the nodes of most topologies
diverge: where neighbours deviate to opposite sides, each pushes the other farther than its own
gradient pulls it back. On a quadratic, modes of the topology's adjacency matrix A with an
eigenvalue below -1 grow (in a ring of five the lowest is -1.6). With the weights of `gossip_sgd`
all eigenvalues are above -1, on any graph.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from math import sqrt
from typing import Generic, TypeVar

import numpy as np

from melisma.learning.compression import Compression
from melisma.peer import commands, messages
from melisma.peer.algorithms import AetSgd, LocalSgd
from melisma.peer.guard import norm_of
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.lag import LagPolicy
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node import Node
from melisma.peer.node_state import OwnState

ERROR_FEEDBACK = "error feedback"
Settings = TypeVar("Settings", AetSgd, LocalSgd)
MAX_SHARE_RATIO = 16.0
"""The largest factor by which the rounds of a neighbour may claim to be larger than this node's."""


class GradientNode(Node, Generic[Settings]):
    """The behaviour that AET-SGD and constant local SGD share; they differ in `round_steps`.

    All steps of a round have the learning rate r / (1 + decay sqrt(t)), after t earlier steps.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        settings: Settings,
    ) -> None:
        super().__init__(identity, neighbours, model, compression)
        self.settings: Settings = settings
        self.round_size = whole_round_sizes(settings.share, self.round_steps)
        fixed = None if settings.max_lag == "auto" else settings.max_lag
        self.lag = LagPolicy(fixed, self.round_size)
        # The part of the model's change that compression has not sent yet.
        self.error_feedback = np.zeros_like(model.vector)

    @abstractmethod
    def round_steps(self, number: int) -> float:
        """Return the steps of a round for a node with a share of 1."""

    def next_steps(self) -> commands.TakeSteps | None:
        """Return the next round, unless a neighbour lags too far behind."""
        if self.blocking_neighbours():
            return None
        number = self.update_number + 1
        steps = min(self.round_size(number), self.identity.iterations - self.steps)
        rate = self.settings.learning_rate / (1 + self.settings.decay * sqrt(self.steps))
        return commands.TakeSteps(number=number, steps=steps, learning_rate=rate)

    def blocking_neighbours(self) -> list[Neighbour]:
        """Return the neighbours that lag too far behind."""
        max_lag = self.lag.max_lag(self.update_number, self.steps)
        awaited = self.membership.neighbours_to_await()
        return [each for each in awaited if self.update_number - each.progress > max_lag]

    def predict_update_s(self, neighbour: Neighbour) -> float:
        """Return the time of the awaited round, by measured times of a step of either node."""
        return self.lag.predict_round_s(neighbour.name, self._known_round(neighbour.progress + 1))

    def update_size(
        self, share: float, update: messages.Update, change: Vector
    ) -> tuple[float, float]:
        """Return the norm of the change of parameters, and the number of steps in the round."""
        relative = float(np.clip(share / self.identity.share, 1 / MAX_SHARE_RATIO, MAX_SHARE_RATIO))
        steps = self.round_size(self._known_round(update.number))
        return update.learning_rate * norm_of(change), steps * relative

    def _known_round(self, number: int) -> int:
        """Limit a number that a neighbour claims: the sizes of all rounds up to it are computed."""
        return min(number, self.update_number + self.max_ahead)

    def updates_after(self, computed: commands.TakeSteps) -> list[tuple[float, bytes]]:
        """Return the sum of the round's gradients, with what compression held back before."""
        self.lag.record_round(self.round_s, computed.steps)
        gradient_sum, rate = self.model.gradient_sum, np.float32(computed.learning_rate)
        if self.compression.exact:
            content = self.compression.pack(gradient_sum)
        else:
            # Held back as a change of parameters: the next round has another learning rate.
            whole = gradient_sum + self.error_feedback / rate
            content = self.compression.pack(whole)
            self.error_feedback = rate * (whole - self.compression.unpack(content, whole.size))
        gradient_sum[:] = 0
        return [(computed.learning_rate, content)]

    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """Step along the neighbour's gradients with its learning rate times the gain."""
        self.lag.record_update(self.now_s, update.sender, update.number)
        self.model.vector[:] -= np.float32(self._gain(neighbour) * update.learning_rate) * change

    def _gain(self, neighbour: Neighbour) -> float:
        if self.settings.gain is not None:
            return self.settings.gain
        return 1 / (1 + max(self.membership.degree, neighbour.degree))

    def on_acknowledged(self, round_trip_s: float) -> None:
        """Record the duration of a message, by which the lag is chosen."""
        self.lag.record_round_trip(round_trip_s)

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """Continue in the neighbour's round; rounds of this node may have another size."""
        self.update_number, self.steps, number = offer.updates_done, 0, 1
        # Stop early: the number of rounds is a claim of the neighbour.
        while number <= offer.updates_done and self.steps < self.identity.iterations:
            self.steps += self.round_size(number)
            number += 1
        self.steps = min(self.steps, self.identity.iterations)

    def own_state(self) -> OwnState:
        """Return what compression held back, and the choices of the lag."""
        return OwnState(vectors={ERROR_FEEDBACK: self.error_feedback}, lag=self.lag.state())

    def restore_own(self, own: OwnState) -> None:
        """Set what compression held back, and the choices of the lag."""
        self.error_feedback[:] = own.vectors[ERROR_FEEDBACK]
        if own.lag is not None:
            self.lag.restore(own.lag)


def whole_round_sizes(share: float, size: Callable[[int], float]) -> Callable[[int], int]:
    """Return a function from a round's number to its whole number of steps, at least 1.

    The steps of all rounds up to any round are rounded together. Were each round rounded by
    itself, nodes of different shares would end in different rounds.
    """
    ends = [0.0]

    def end(number: int) -> int:
        return round(share * round(ends[number]))

    def whole_size(number: int) -> int:
        while len(ends) <= number:
            ends.append(ends[-1] + size(len(ends)))
        return max(1, end(number) - end(number - 1))

    return whole_size

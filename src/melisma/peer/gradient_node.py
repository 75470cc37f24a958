"""Rounds: so many steps, then the sum of their gradients goes to the neighbours.

A neighbour's lag is how many rounds are done here of which its own have not all come; a node
computes only while no lag exceeds d. Its rounds count without a gap: were it the number of updates
that came, one could be missing for ever while others overtake it.

Applied whole, as the paper has it, updates of neighbours part the nodes of most topologies: where
neighbours err to opposite sides, each pushes the other farther than its own gradient pulls it back.
On a quadratic, modes of the topology's matrix A with an eigenvalue below -1 grow (in a ring of five
the lowest is -1.6). With the weights of `gossip` all eigenvalues are above -1, on any graph.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from math import sqrt
from typing import Generic, TypeVar

import numpy as np

from melisma.learning.compression import Compression
from melisma.peer import commands, messages
from melisma.peer.algorithms import AetSgd, LocalSgd
from melisma.peer.lag import LagPolicy
from melisma.peer.neighbour import Neighbour, Vector
from melisma.peer.node import Model, Node, NodeIdentity

Settings = TypeVar("Settings", AetSgd, LocalSgd)


class GradientNode(Node, Generic[Settings]):
    """What AET-SGD and constant local SGD have in common; `planned` is what tells them apart.

    Steps of a round are of one size, eta / (1 + beta sqrt(t)) after t steps before it.
    """

    def __init__(
        self,
        me: NodeIdentity,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        said: Settings,
    ) -> None:
        super().__init__(me, neighbours, model, compression)
        self.settings: Settings = said
        self.round_size = whole_round_sizes(said.share, self.round_steps)
        self.lag = LagPolicy(None if said.max_lag == "auto" else said.max_lag, self.round_size)
        self._round_at = 0.0
        # What compression has kept back so far.
        self.error_feedback = np.zeros_like(model.vector)

    @abstractmethod
    def round_steps(self, number: int) -> float:
        """Steps of the round of that number, of a node with a share of 1."""

    def next_compute(self) -> commands.Compute | None:
        """The next round, unless a neighbour lags too far behind."""
        most = self.lag.max_lag(self.update_number, self.steps)
        awaited = (
            each for each in self.neighbours.values() if each.reachable and not each.finished
        )
        if any(self.update_number - each.progress > most for each in awaited):
            return None
        self._round_at = self.now_s
        steps = min(self.round_size(self.update_number + 1), self.identity.iterations - self.steps)
        rate = self.settings.learning_rate / (1 + self.settings.decay * sqrt(self.steps))
        return commands.Compute(number=self.update_number + 1, steps=steps, learning_rate=rate)

    def updates_after(self, computed: commands.Compute) -> list[tuple[float, bytes]]:
        """The sum of the round's gradients; what compression keeps back goes with the next one."""
        self.lag.record_round(self.now_s - self._round_at, computed.steps)
        slopes, rate = self.model.gradient_sum, np.float32(computed.learning_rate)
        if self.compression.exact:
            content = self.compression.pack(slopes)
        else:
            # In parameters, not in gradients: the next round has another step size.
            whole = slopes + self.error_feedback / rate
            content = self.compression.pack(whole)
            self.error_feedback = rate * (whole - self.compression.unpack(content, whole.size))
        slopes[:] = 0
        return [(computed.learning_rate, content)]

    def apply_update(self, neighbour: Neighbour, update: messages.Update, change: Vector) -> None:
        """A step along the neighbour's gradients, as large as its own were times the gain.

        When updates come tells how long rounds take.
        """
        self.lag.record_update(self.now_s, update.sender, update.number)
        self.model.vector[:] -= np.float32(self._gain(neighbour) * update.learning_rate) * change

    def on_acknowledged(self, took_s: float) -> None:
        """That is how long messages take."""
        self.lag.record_round_trip(took_s)

    def _gain(self, neighbour: Neighbour) -> float:
        if self.settings.gain is not None:
            return self.settings.gain
        return 1 / (1 + max(self.degree, neighbour.degree))

    def adopt_progress(self, offer: messages.Accepted) -> None:
        """In the same round; steps are this node's own, whose rounds may have another size."""
        self.update_number = offer.updates_done
        steps = sum(self.round_size(number) for number in range(1, offer.updates_done + 1))
        self.steps = min(steps, self.identity.iterations)


def whole_round_sizes(share: float, size: Callable[[int], float]) -> Callable[[int], int]:
    """Whole steps of each round, so that all up to any round are that share of theirs, rounded.

    Were each round rounded by itself, nodes of other shares would end in other rounds.
    """
    ends = [0.0]

    def end(number: int) -> int:
        return round(share * round(ends[number]))

    def whole(number: int) -> int:
        while len(ends) <= number:
            ends.append(ends[-1] + size(len(ends)))
        return max(1, end(number) - end(number - 1))

    return whole

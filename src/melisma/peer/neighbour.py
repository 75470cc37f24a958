"""A node's record of one neighbour."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass
class Neighbour:
    """The state of a neighbour and the updates received from it.

    Updates 1 to `received` have arrived without a gap; later ones are in `out_of_order`.
    `incarnation` is empty until the first message. Until the neighbour has `started` to train it
    counts as having reached `assumed_updates`, the progress of this node when it joined. It
    `receives_all` updates of this node if it joined before the first one was sent.
    """

    name: str
    incarnation: int = 0
    restarts: int = 0
    """How often this incarnation is known to have resumed from its state."""
    degree: int = 1
    assumed_updates: int = 0
    answered: bool = False
    started: bool = False
    lost: bool = False
    rejected: bool = False
    share: float = 1.0
    stalled: bool = False
    """Whether it answers, but sent no update in time: this node does not wait for it."""
    stalls: int = 0
    waiting: bool = False
    """Whether it reports that it waits for neighbours of its own."""
    progress_at_s: float = 0.0
    """The time of its last progress: it joined, started, or sent an update."""
    invalid_messages: int = 0
    receives_all: bool = False
    received: int = 0
    out_of_order: set[int] = field(default_factory=set)
    last_update: int | None = None
    model: Vector | None = None
    """The neighbour's model as reconstructed from its differences, where an algorithm needs it."""
    pending: dict[int, Vector] = field(default_factory=dict)
    """Differences of that model that arrived before earlier ones."""

    @property
    def reachable(self) -> bool:
        """Whether updates are sent to this neighbour."""
        return bool(self.incarnation) and not self.lost

    @property
    def awaited(self) -> bool:
        """Whether more updates are expected from this neighbour."""
        return self.reachable and not self.finished and not self.stalled

    @property
    def progress(self) -> int:
        """The number of its updates that count as received when lag is computed."""
        return self.received if self.started else max(self.received, self.assumed_updates)

    @property
    def finished(self) -> bool:
        """Whether all updates up to its last one have arrived."""
        return self.last_update is not None and self.received >= self.last_update

    @property
    def done_or_given_up(self) -> bool:
        """Whether this node need not wait for it before it ends."""
        return self.finished or self.lost or self.stalled

    def record_update(self, number: int) -> bool:
        """Record that an update arrived; return False if it had arrived before."""
        if number <= self.received or number in self.out_of_order:
            return False
        self.out_of_order.add(number)
        self._advance()
        return True

    def record_restarts(self, restarts: int) -> None:
        """Record that the neighbour resumed from its state; a goodbye before that does not count.

        An interrupted node says goodbye, and may resume later.
        """
        if restarts > self.restarts:
            self.restarts, self.last_update = restarts, None

    def start_after(self, number: int) -> None:
        """Mark the neighbour as started; updates up to `number` will not arrive any more."""
        self.started, self.received = True, max(self.received, number)
        self.out_of_order = {later for later in self.out_of_order if later > self.received}
        self.pending = {later: diff for later, diff in self.pending.items() if later > number}
        self._advance()

    def _advance(self) -> None:
        while self.received + 1 in self.out_of_order:
            self.received += 1
            self.out_of_order.remove(self.received)

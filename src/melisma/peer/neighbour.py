"""What a node knows of one neighbour."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass
class Neighbour:
    """Its updates are numbered one after the other; `done` are in without a gap, `early` beyond.

    `life` is empty until it was heard of. It `answered` when it said welcome, `begun` when it
    trains; until then it counts as having reached `level`, where this node was when they met. To
    `all_sent` go all updates of this node: it was told of it before there were any.
    """

    name: str
    incarnation: str = ""
    degree: int = 1
    assumed_updates: int = 0
    answered: bool = False
    started: bool = False
    lost: bool = False
    rejected: bool = False
    receives_all: bool = False
    received: int = 0
    out_of_order: set[int] = field(default_factory=set)
    last_update: int | None = None
    model: Vector | None = None
    """Its model as it has told it; for algorithms that need it."""
    pending: dict[int, Vector] = field(default_factory=dict)
    """Changes of that model which came before others that are to come before them."""

    @property
    def reachable(self) -> bool:
        """Whether updates are sent to it."""
        return bool(self.incarnation) and not self.lost

    @property
    def progress(self) -> int:
        """How many of its updates may be counted on."""
        return self.received if self.started else max(self.received, self.assumed_updates)

    @property
    def finished(self) -> bool:
        """Whether it has sent all that it will, and all of that is in."""
        return self.last_update is not None and self.received >= self.last_update

    def record_update(self, number: int) -> bool:
        """Note that this update came; whether it is the first time."""
        if number <= self.received or number in self.out_of_order:
            return False
        self.out_of_order.add(number)
        self._advance()
        return True

    def start_after(self, done: int) -> None:
        """Nothing that is still to come has this number or a lower one."""
        self.started, self.received = True, max(self.received, done)
        self.out_of_order = {number for number in self.out_of_order if number > self.received}
        self.pending = {each: change for each, change in self.pending.items() if each > done}
        self._advance()

    def _advance(self) -> None:
        while self.received + 1 in self.out_of_order:
            self.received += 1
            self.out_of_order.remove(self.received)

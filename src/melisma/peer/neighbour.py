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
    life: str = ""
    degree: int = 1
    level: int = 0
    answered: bool = False
    begun: bool = False
    gone: bool = False
    refused: bool = False
    all_sent: bool = False
    done: int = 0
    early: set[int] = field(default_factory=set)
    last: int | None = None
    estimate: Vector | None = None
    """Its model as it has told it; for algorithms that need it."""
    pending: dict[int, Vector] = field(default_factory=dict)
    """Changes of that model which came before others that are to come before them."""

    @property
    def here(self) -> bool:
        """Whether updates are sent to it."""
        return bool(self.life) and not self.gone

    @property
    def reached(self) -> int:
        """How many of its updates may be counted on."""
        return self.done if self.begun else max(self.done, self.level)

    @property
    def ended(self) -> bool:
        """Whether it has sent all that it will, and all of that is in."""
        return self.last is not None and self.done >= self.last

    def takes(self, number: int) -> bool:
        """Note that this update came; whether it is the first time."""
        if number <= self.done or number in self.early:
            return False
        self.early.add(number)
        self._close_up()
        return True

    def counts_from(self, done: int) -> None:
        """Nothing that is still to come has this number or a lower one."""
        self.begun, self.done = True, max(self.done, done)
        self.early = {number for number in self.early if number > self.done}
        self.pending = {each: change for each, change in self.pending.items() if each > done}
        self._close_up()

    def _close_up(self) -> None:
        while self.done + 1 in self.early:
            self.done += 1
            self.early.remove(self.done)

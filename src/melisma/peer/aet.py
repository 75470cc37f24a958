"""AET-SGD (Nguyen and Han): rounds grow, so that messages become rare.

The round of number i has a i^p + b steps, times this node's share where nodes are unlike. With
a = 10, p = 1 and b = 0, 60,000 steps are 110 rounds.
"""

import math
from collections.abc import Iterable

from melisma.learning.compression import Compression
from melisma.peer.node import Model, Self
from melisma.peer.rounds import Rounds
from melisma.peer.settings import Aet


class AetNode(Rounds):
    """A node of AET-SGD."""

    def __init__(
        self,
        me: Self,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        said: Aet,
    ) -> None:
        def size(number: int) -> float:
            return said.a * math.pow(number, said.p) + said.b

        super().__init__(me, neighbours, model, compression, said, size)

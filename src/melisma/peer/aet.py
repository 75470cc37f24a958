"""AET-SGD (Nguyen and Han): rounds grow, so that messages become rare.

The round of number i has a i^p + b steps, times this node's share where nodes are unlike. With
a = 10, p = 1 and b = 0, 60,000 steps are 110 rounds.
"""

import math

from melisma.peer.round_nodes import Rounds
from melisma.peer.settings import Aet


class AetNode(Rounds[Aet]):
    """A node of AET-SGD."""

    def planned(self, number: int) -> float:
        """More from round to round."""
        return self.said.a * math.pow(number, self.said.p) + self.said.b

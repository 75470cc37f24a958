"""AET-SGD (Nguyen and Han): rounds grow, so that messages become rare.

Round i has a i^p + b steps (`growth`, `power`, `base_steps`), times the node's share. With
a = 10, p = 1 and b = 0, 60,000 steps make 110 rounds.
"""

import math

from melisma.peer.algorithms import AetSgd
from melisma.peer.gradient_node import GradientNode


class AetNode(GradientNode[AetSgd]):
    """A node of AET-SGD."""

    def round_steps(self, number: int) -> float:
        """Return a i^p + b."""
        return self.settings.growth * math.pow(number, self.settings.power) + (
            self.settings.base_steps
        )

"""Constant local SGD: every round has the same number of steps, times the node's share."""

from melisma.peer.algorithms import LocalSgd
from melisma.peer.gradient_node import GradientNode


class LocalNode(GradientNode[LocalSgd]):
    """A node of constant local SGD."""

    def round_steps(self, number: int) -> float:  # noqa: ARG002
        """Return the same number for all rounds."""
        return self.settings.steps

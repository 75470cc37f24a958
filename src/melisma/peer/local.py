"""Constant local SGD: every round has as many steps, times this node's share."""

from melisma.peer.round_nodes import Rounds
from melisma.peer.settings import Local


class LocalNode(Rounds[Local]):
    """A node of constant local SGD."""

    def planned(self, number: int) -> float:  # noqa: ARG002
        """The same in all rounds."""
        return self.said.steps

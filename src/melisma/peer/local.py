"""Constant local SGD: every round has as many steps, times this node's share."""

from collections.abc import Iterable

from melisma.learning.compression import Compression
from melisma.peer.node import Model, Self
from melisma.peer.rounds import Rounds
from melisma.peer.settings import Local


class LocalNode(Rounds):
    """A node of constant local SGD."""

    def __init__(
        self,
        me: Self,
        neighbours: Iterable[str],
        model: Model,
        compression: Compression,
        said: Local,
    ) -> None:
        super().__init__(me, neighbours, model, compression, said, lambda _: said.steps)

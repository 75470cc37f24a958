"""A node for what was said of its algorithm."""

from collections.abc import Iterable

from melisma.learning.compression import Compression
from melisma.peer.aet import AetNode
from melisma.peer.event_triggered import EventNode
from melisma.peer.gossip import GossipNode
from melisma.peer.local import LocalNode
from melisma.peer.node import Model, Node, Self
from melisma.peer.settings import Aet, Algorithm, Event, Gossip, Local


def node_for(
    me: Self, neighbours: Iterable[str], model: Model, compression: Compression, said: Algorithm
) -> Node:
    """The machine of that algorithm."""
    match said:
        case Aet():
            return AetNode(me, neighbours, model, compression, said)
        case Local():
            return LocalNode(me, neighbours, model, compression, said)
        case Event():
            return EventNode(me, neighbours, model, compression, said)
        case Gossip():
            return GossipNode(me, neighbours, model, compression, said)

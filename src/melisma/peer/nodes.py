"""A node for what was said of its algorithm."""

from collections.abc import Iterable

from melisma.learning.compression import Compression
from melisma.peer.aet_sgd import AetNode
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.event_triggered_sgd import EventTriggeredNode
from melisma.peer.gossip_sgd import GossipNode
from melisma.peer.local_sgd import LocalNode
from melisma.peer.node import Model, Node, NodeIdentity


def create_node(
    me: NodeIdentity,
    neighbours: Iterable[str],
    model: Model,
    compression: Compression,
    said: Algorithm,
) -> Node:
    """The machine of that algorithm."""
    match said:
        case AetSgd():
            return AetNode(me, neighbours, model, compression, said)
        case LocalSgd():
            return LocalNode(me, neighbours, model, compression, said)
        case EventTriggeredSgd():
            return EventTriggeredNode(me, neighbours, model, compression, said)
        case GossipSgd():
            return GossipNode(me, neighbours, model, compression, said)

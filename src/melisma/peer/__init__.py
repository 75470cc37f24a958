"""Training without an orchestrator: AET-SGD and its baselines, as machines without I/O.

What is where::

    messages.py, commands.py   what nodes say to each other, and what they want done
    node.py, neighbour.py      what all algorithms have in common: meeting, counting, ending
    rounds.py                  sums of gradients, a round at a time: aet.py, local.py
    public.py                  models told by their changes: event_triggered.py, gossip.py
    lag.py                     how far neighbours may be behind
    topology.py                who is whose neighbour
    settings.py, nodes.py      what can be said of each algorithm, and the machine for it
    group.py                   what all nodes of a run have in common

Drivers are in `live/peer/` and `simulation/peers/`.
"""

from melisma.peer.algorithms import AetSgd, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.group import Peers, peers_for
from melisma.peer.topology import Topology, topology_for

__all__ = [
    "AetSgd",
    "EventTriggeredSgd",
    "GossipSgd",
    "LocalSgd",
    "Peers",
    "Topology",
    "peers_for",
    "topology_for",
]

"""Training without an orchestrator: AET-SGD and its baselines as state machines without I/O.

::

    messages.py              messages between nodes
    commands.py              work for the driver of a node
    notices.py               state changes that a node makes known to its driver
    identity.py              identity and model of a node
    neighbour.py             a node's record of one neighbour
    proofs.py                keys, signatures, and proofs of the group's token
    keyring.py               the keys to which names belong
    membership.py            the neighbours of a node: reachable, lost, stalled, rejected
    stalls.py                the time for which a node waits for a neighbour without progress
    guard.py                 a bound on the size of updates
    node_state.py            the state of a node, and the decisions of its algorithm
    handshake.py             greetings, their answers, and from which update on to count
    received_updates.py      applying updates of neighbours within bounds
    sent_messages.py         messages that are not acknowledged
    node_snapshot.py         the state of a node as bytes, and how a node resumes from it
    node.py                  the state machine that all algorithms share
    gradient_node.py         nodes that send sums of gradients after each round
    aet_sgd.py               AET-SGD: rounds that grow
    local_sgd.py             constant local SGD
    difference_node.py       nodes that send differences of models
    event_triggered_sgd.py   event-triggered SGD
    gossip_sgd.py            decentralised parallel SGD
    lag.py                   the number of rounds that a neighbour may be behind
    algorithms.py            settings of the algorithms
    group.py                 the settings that nodes share, and the nodes made from them
    topology.py              graphs of named nodes
    topology_file.py         topologies from files
    topologies.py            topologies by name

Drivers are in `live/peer/` and `simulation/peers/`.
"""

from melisma.peer.algorithms import AetSgd, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.group import Peers, peers_for
from melisma.peer.topologies import topology_for
from melisma.peer.topology import Topology

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

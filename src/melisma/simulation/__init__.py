"""The same machines in virtual time: to plan with, to compare, and to try every fault."""

from melisma.simulation.comparison.comparison import Comparison, compare
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers
from melisma.simulation.simulation import Options, simulate

__all__ = [
    "Comparison",
    "Delays",
    "Options",
    "PeerOptions",
    "compare",
    "simulate",
    "simulate_peers",
]

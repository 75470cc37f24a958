"""The same machines in virtual time: to plan with, to compare, and to try every fault."""

from melisma.simulation.comparison.comparison import Comparison, compare
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers
from melisma.simulation.simulation import SimulationOptions, simulate

__all__ = [
    "Comparison",
    "Delays",
    "PeerOptions",
    "SimulationOptions",
    "compare",
    "simulate",
    "simulate_peers",
]

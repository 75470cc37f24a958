"""The same machines in virtual time: to plan with, to compare, and to try every fault."""

from melisma.simulation.comparison import Comparison, compare
from melisma.simulation.delays import Delays
from melisma.simulation.peer_run import PeerOptions, simulate_peers
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

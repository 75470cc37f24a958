"""The same machines in virtual time: to plan with, to compare, and to try every fault."""

from melisma.simulation.comparison import Comparison, compare
from melisma.simulation.simulation import Options, simulate

__all__ = ["Comparison", "Options", "compare", "simulate"]

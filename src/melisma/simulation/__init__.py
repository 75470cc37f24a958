"""Runs in virtual time: the decisions of live runs, with simulated devices, network and faults.

::

    simulation.py         `simulate`: from files and options to a report
    scenario.py           the task, fleet, data and faults of one run
    driver.py             the orchestrator in virtual time
    kernel.py             the event queue
    learners.py           all learners at once, as arrays
    timeline.py           how far each learner gets in a cycle
    forecast.py           how much of a plan arrives by the deadline, without a run
    devices.py            how long work takes on each device
    network.py            messages between learners and orchestrator
    churn.py              joins, departures, crashes, restarts and sleep
    faults.py             faults as text, random faults, faults of devices
    invariants.py         properties that are checked after each step
    assignment_record.py  what the invariants know of an assignment
    fault_search.py       random fault schedules; shrinks those that violate an invariant
    compute/              the computation of learners: timing only, or real training
    comparison/           schemes compared on the same seeds
    peers/                training without an orchestrator
"""

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

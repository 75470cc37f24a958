"""Runs in virtual time: the decisions of live runs, with simulated devices, network and faults.

::

    simulation.py         `simulate`: from files and options to a report
    scenario.py           the task, fleet, data and faults of one run
    driver.py             the orchestrator in virtual time
    surroundings.py       the clock, the network and the presence of learners
    training_rounds.py    the training of a cycle: work to learners, requests and updates back
    kernel.py             the event queue
    forecast.py           how much of a plan arrives by the deadline, without a run
    network.py            messages between learners and orchestrator
    churn.py              joins, departures, crashes, restarts and sleep
    batteries.py          the charge of each battery
    energy_use.py         the energy that work draws from batteries
    faults.py             faults as text, random faults, faults of devices
    fault_targets.py      the learners that a fault names: by name, group or percentage
    fault_sources.py      the faults of a scenario: text, a seed or a function of the user
    fault_search.py       random fault schedules; shrinks those that violate a law
    journaling/           the process of the orchestrator: its journal, its stops, its faulty disk
    learners/             all learners at once, as arrays
    invariants/           properties that are checked after each step
    compute/              the computation of learners: timing only, or real training
    comparison/           schemes compared on the same seeds
    plans/                plans of a cycle without a run
    sizing/               what a goal needs: deadline, devices, budget or model
    service/              several tasks that share a fleet
    peers/                training without an orchestrator
"""

from melisma.simulation.comparison.comparison import Comparison
from melisma.simulation.comparison.scheme_runs import compare
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers
from melisma.simulation.plans.plan_request import plan
from melisma.simulation.plans.plan_result import Plan
from melisma.simulation.simulation import SimulationOptions, simulate
from melisma.simulation.sizing.sizing import Sizing, size

__all__ = [
    "Comparison",
    "Delays",
    "PeerOptions",
    "Plan",
    "SimulationOptions",
    "Sizing",
    "compare",
    "plan",
    "simulate",
    "simulate_peers",
    "size",
]

"""The surroundings of simulated learners: the clock, the network, and which of them are up.

Several tasks that share learners share these, too.
"""

from melisma.simulation.churn import (
    Churn,
    ChurnListener,
    SleepSpans,
    changes_of_run,
    departure_times_s,
)
from melisma.simulation.kernel import EventQueue
from melisma.simulation.network import SimulatedNetwork
from melisma.simulation.scenario import Scenario


class Surroundings:
    """The surroundings of the learners of a scenario; `listener` receives changes in presence."""

    def __init__(self, scenario: Scenario, listener: ChurnListener) -> None:
        fleet = scenario.fleet
        self.queue = EventQueue()
        changes = changes_of_run(fleet, scenario.horizon_s)
        leaves_s = departure_times_s(changes, fleet.learners)
        self.network = SimulatedNetwork(self.queue, scenario.faults, leaves_s)
        self.sleep = SleepSpans(changes, fleet.learners)
        self.churn = Churn(scenario, changes, self.queue, listener)

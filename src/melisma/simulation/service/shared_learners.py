"""Learners that work for several tasks: one thing at a time, in one operating state.

Each task has a driver of its own with the learners' costs, caches and training of that task. When a
learner is free, its clock and its state are shared by all of them.
"""

from collections.abc import Callable, Sequence

from melisma.allocation.schemes import Scheme
from melisma.fleet.array_types import Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.observed_states import ObservedStates
from melisma.fleet.states import cycle_states
from melisma.fleet.task import Task
from melisma.simulation.driver import Driver
from melisma.simulation.learners.cost_reports import CostReports
from melisma.simulation.learners.devices import Devices


class Rounds:
    """The operating state of each learner: drawn for each round, the same for all tasks.

    `observed` are the states that learners were in, from which they may estimate probabilities.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.number = 0
        self._fleet = fleet
        self.states = fleet.states_in_cycle(0)
        self.observed = ObservedStates(fleet.state_probability, fleet.state_probabilities)

    def next_states(self, learners: Ints) -> Ints:
        """Return the state that each learner is going to train in next."""
        fleet = self._fleet
        probability = fleet.state_probability[learners]
        return cycle_states(self.number + 1, probability, fleet.seed, learners)


class SharedDevices(Devices):
    """The devices of a task, whose operating states are those of the present round."""

    def __init__(self, task: Task, fleet: Fleet, rounds: Rounds) -> None:
        super().__init__(task, fleet)
        self._rounds, self._state = rounds, rounds.states

    def enter(self, cycle: int, learners: Ints) -> None:  # noqa: ARG002 - tasks count their own
        """Draw the operating state of these learners for the present round."""
        number = self._rounds.number
        super().enter(number, learners)
        self._rounds.observed.count(number, learners, self._state[learners])


def share_learners(drivers: Sequence[Driver], fleet: Fleet, scheme: Scheme, rounds: Rounds) -> None:
    """Let the learners of all drivers be the same ones, which report what the scheme needs."""
    first = drivers[0].learners
    for driver in drivers:
        learners = driver.learners
        learners.free_s, learners.fetch_free_s = first.free_s, first.fetch_free_s
        learners.clock = first.clock
        learners.devices = SharedDevices(learners.task, fleet, rounds)
        learners.reports = CostReports(
            learners.devices,
            rounds.observed,
            scheme.costs_in,
            rounds.next_states,
            learners.task.shard_samples,
        )
        # Otherwise the costs of a cycle tell nothing that the scheme plans with.
        learners.reports_costs = scheme.costs_in == "expected"


class SharedPresence:
    """Passes changes in presence to the submitted tasks: first learners change, then tasks hear."""

    def __init__(self, joined: Callable[[Ints], object]) -> None:
        self.drivers: list[Driver] = []
        self.is_down: Callable[[], bool] = lambda: False
        self._joined = joined

    def restart(self, learners: Ints) -> None:
        """Start these learners without any state."""
        for driver in self.drivers:
            driver.learners.restart(learners, driver.queue.now_s)
        self._joined(learners)
        for driver in self.drivers:
            driver.report_joined(learners)

    def interrupt(self, learners: Ints) -> None:
        """Stop these learners from sending anything until they restart."""
        for driver in self.drivers:
            driver.interrupt(learners)

    def resume(self, learners: Ints) -> None:
        """Let learners that restarted in time go on with their work, if they can be heard."""
        if self.is_down():
            self.restart(learners)
            return
        known = [driver.start_again(learners) for driver in self.drivers]
        for driver, of_task in zip(self.drivers, known, strict=True):
            driver.report_resumed(learners, of_task)

    def silence(self, learners: Ints) -> None:
        """Stop these learners from sending anything more; this is noticed in time."""
        for driver in self.drivers:
            driver.silence(learners)

    def report_left(self, learners: Ints, reason: str) -> None:
        """Report that the orchestrator noticed these learners missing."""
        for driver in self.drivers:
            driver.report_left(learners, reason)

"""A simulated service of two tasks, checked after each step."""

from typing import Any

import melisma
from melisma.cycle.events import OrchestratorRestarted
from melisma.fleet.task import Task
from melisma.runs.service_progress import ServiceStep
from melisma.runs.trace import Step
from melisma.service import commands
from melisma.simulation import SimulationOptions
from melisma.simulation.invariants.invariants import Invariants
from melisma.simulation.invariants.service_invariants import ServiceInvariants
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from tests.simulation.scenarios import make_task

GROUP = {"name": "pi", "count": 6, "samples_per_s": 600.0, "bandwidth_bps": 20e6}
PRICES = {"mean": 1.0, "sd": 0.5, "low": 0.2, "high": 2.0}


def two_tasks(budget: float | None = None, **settings: Any) -> list[Task]:
    """Return two tasks, the second of which has a budget."""
    shared = {"scheme": "med", "passes": 1, "extension": False} | settings
    sizes = {"samples": 2000}
    return [
        make_task(**(shared | {"name": "first", "sizes": sizes})),
        make_task(**(shared | {"name": "second", "sizes": sizes, "budget": budget})),
    ]


class CheckedService:
    """A run whose cycles and payments are checked by their laws; `log` has all steps in order."""

    def __init__(
        self,
        tasks: list[Task],
        faults: str = "",
        seed: int = 1,
        submits_s: tuple[float, ...] = (),
        **fleet: Any,
    ) -> None:
        options = SimulationOptions(work="timing", seed=seed, faults=faults)
        built = melisma.Fleet.from_tables(group=[GROUP | {"price": PRICES}], seed=seed, **fleet)
        self.invariants, self.log = ServiceInvariants(), list[tuple[int | None, Any]]()
        self.cycles = [Invariants() for _ in tasks]
        self.restarts = 0
        self.report = run_tasks(
            prepare_tasks(tasks, built, options, submits_s),
            watch=lambda number, _, step: self._check_task(number, step),
            watch_service=self._check,
        )
        self.invariants.check_end()

    def _check_task(self, number: int, step: Step) -> None:
        self.log.append((number, step))
        self.restarts += isinstance(step.event, OrchestratorRestarted)
        self.cycles[number].check(step)
        self.invariants.check_task(number, step)

    def _check(self, step: ServiceStep) -> None:
        self.log.append((None, step))
        self.invariants.check(step)

    @property
    def payments(self) -> list[commands.Pay]:
        """The payments, in order."""
        return [
            each
            for number, step in self.log
            if number is None
            for each in step.commands
            if isinstance(each, commands.Pay)
        ]

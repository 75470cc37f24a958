"""Fault search for services: random faults, laws of cycles and payments, and shrunk failures."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from melisma.errors import MelismaError
from melisma.runs.interruption import interruptible
from melisma.runs.trace import Step
from melisma.simulation.driver import HANGS
from melisma.simulation.fault_search import MAX_STEPS, Failure, Law, LivenessError, shrink
from melisma.simulation.faults import Fault
from melisma.simulation.invariants.invariants import Invariants
from melisma.simulation.invariants.service_invariants import ServiceInvariants
from melisma.simulation.scenario import with_mixed_faults
from melisma.simulation.service.service_simulation import PreparedService, run_tasks


def search_service_faults(
    prepare: Callable[[int], PreparedService], seeds: range
) -> Iterator[Failure | None]:
    """Run a random fault schedule for each seed; yield its shrunk failure, or None.

    The schedules have crashes of the orchestrator, and no faults of its disk.
    """
    with interruptible() as check:
        for seed in seeds:
            check()
            prepared = prepare(seed)
            first = prepared.tasks[0].scenario
            prepared = with_faults(prepared, with_mixed_faults(first, seed, disk=False).faults)
            _, violation = find_service_violation(prepared)
            yield _shrink_failure(prepared, seed) if violation else None


def with_faults(prepared: PreparedService, faults: tuple[Fault, ...]) -> PreparedService:
    """Return the service with these faults."""
    tasks = tuple(
        replace(each, scenario=replace(each.scenario, faults=faults)) for each in prepared.tasks
    )
    return replace(prepared, tasks=tasks)


def find_service_violation(prepared: PreparedService) -> tuple[Law, str]:
    """Return the law that a run violates first, and how; an empty text if it violates none."""
    payments, steps = ServiceInvariants(), 0
    cycles = [Invariants() for _ in prepared.tasks]

    def check_task(number: int, step: Step) -> None:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise LivenessError(f"the service does not end: it has {MAX_STEPS} steps")
        cycles[number].check(step)
        payments.check_task(number, step)

    try:
        run_tasks(prepared, None, lambda number, _, step: check_task(number, step), payments.check)
        for each in cycles:
            each.check_end()
        payments.check_end()
    except LivenessError as error:
        return "liveness", str(error)
    except MelismaError as error:
        return ("liveness" if str(error) == HANGS else "safety"), str(error)
    except Exception as error:  # noqa: BLE001 - any exception of a machine is a violation
        return "safety", f"{type(error).__name__}: {error}"
    return "safety", ""


def _shrink_failure(prepared: PreparedService, seed: int) -> Failure:
    def fails(faults: tuple[Fault, ...]) -> bool:
        return bool(find_service_violation(with_faults(prepared, faults))[1])

    faults = shrink(prepared.tasks[0].scenario.faults, fails)
    law, violation = find_service_violation(with_faults(prepared, faults))
    return Failure(seed, faults, violation, law)

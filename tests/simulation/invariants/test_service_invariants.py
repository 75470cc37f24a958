"""The laws of payments hold in simulated services, and a step that breaks one is noticed."""

from typing import Any

import msgspec
import pytest

from melisma.errors import MelismaError
from melisma.runs.service_progress import ServiceStep
from melisma.service import commands
from melisma.simulation.invariants.service_invariants import ServiceInvariants
from melisma.simulation.invariants.violations import InvariantError
from tests.simulation.service.checked_service import CheckedService, two_tasks

FAULTS = [
    "",
    "crash 1 at 12 for 1; slow 2 at 0 for 60 by 4",
    "vanish 3 at 9 for 8; lose report 1 from 0; delay report 3 from 4 by 9",
    "partition 0,1,2 at 11 for 12; slow 5 at 0 for 60 by 9",
]


@pytest.mark.parametrize("late", ["carry", "drop"])
@pytest.mark.parametrize("faults", FAULTS)
def test_the_laws_hold_under_faults_of_learners(faults: str, late: str) -> None:
    run = CheckedService(two_tasks(45.0, late=late, quorum=0.5), faults, budget=60.0)
    assert run.invariants.payments
    assert sum(run.report.paid) == pytest.approx(sum(run.invariants.payments.values()))
    paid = sum(amount for (task, *_), amount in run.invariants.payments.items() if task == 1)
    assert paid <= 45.0 * (1 + 1e-9)


def test_a_task_whose_budget_is_used_up_finishes_with_the_reason() -> None:
    run = CheckedService(two_tasks(20.0))
    first, second = run.report.tasks
    assert len(first.ended_cycles) == 3
    assert (second.outcome, 0 < len(second.ended_cycles) < 3) == ("finished", True)
    assert "budget" in second.reason


def test_a_task_that_cannot_pay_its_first_cycle_fails_with_the_reason() -> None:
    with pytest.raises(MelismaError, match="of task second is used up"):
        CheckedService(two_tasks(1.0)).report.require_success()


def test_a_late_update_is_paid_in_the_cycle_in_which_it_counts() -> None:
    run = CheckedService(two_tasks(quorum=0.5, late="carry"), "delay report 3 from 2 by 9")
    late = [each for each in run.payments if (each.cycles < each.cycle).any()]
    assert late
    dropped = CheckedService(two_tasks(quorum=0.5, late="drop"), "delay report 3 from 2 by 9")
    assert not [each for each in dropped.payments if (each.cycles < each.cycle).any()]


def broken(run: CheckedService, **changes: Any) -> list[tuple[int | None, Any]]:
    """Return the log with other values in its first payment."""
    log = list(run.log)
    for index, (number, step) in enumerate(log):
        if number is None and any(isinstance(each, commands.Pay) for each in step.commands):
            issued = [
                msgspec.structs.replace(each, **{k: v(each) for k, v in changes.items()})
                if isinstance(each, commands.Pay)
                else each
                for each in step.commands
            ]
            log[index] = None, ServiceStep(step.event, issued)
            return log
    raise AssertionError("nothing was paid")


def check(log: list[tuple[int | None, Any]]) -> None:
    invariants = ServiceInvariants()
    for number, step in log:
        if number is None:
            invariants.check(step)
        else:
            invariants.check_task(number, step)
    invariants.check_end()


def test_steps_that_break_a_law_are_noticed() -> None:
    run = CheckedService(two_tasks())
    check(run.log)
    with pytest.raises(InvariantError, match="at another price"):
        check(broken(run, prices=lambda pay: pay.prices + 1.0))
    with pytest.raises(InvariantError, match="is paid"):
        check(broken(run, amounts=lambda pay: pay.amounts + 1.0))
    with pytest.raises(InvariantError, match="its visits cover"):
        check(broken(run, shards=lambda pay: pay.shards - 1, amounts=less))
    with pytest.raises(InvariantError, match="was not granted"):
        check(broken(run, cycles=lambda pay: pay.cycles + 7))
    paid = [entry for entry in run.log if entry[0] is None and is_payment(entry[1])]
    with pytest.raises(InvariantError, match="is paid twice"):
        check([*run.log, paid[0]])
    with pytest.raises(InvariantError, match="are settled"):
        check([entry for entry in run.log if entry is not paid[0]])


def less(pay: commands.Pay) -> Any:
    return (pay.shards - 1) * pay.prices


def is_payment(step: ServiceStep) -> bool:
    return any(isinstance(each, commands.Pay) for each in step.commands)

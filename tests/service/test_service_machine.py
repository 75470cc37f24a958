from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.allocation.schemes import SCHEMES
from melisma.cycle.snapshot import encode_array
from melisma.errors import SettingError
from melisma.service import commands, events
from melisma.service.commands import AnyCommand
from melisma.service.round_planning import plan_round
from melisma.service.service_machine import ServiceMachine
from melisma.service.service_state import TaskStatus
from tests.service.scripted_service import LEARNERS, ScriptedService, grants, task

SHARED = [row.name for row in SCHEMES.values() if row.problem == "shared"]


def started(scheme: str = "med", budget: float | None = None, **second: Any) -> ScriptedService:
    """Return a service whose two tasks have been granted their first round."""
    service = ScriptedService(scheme, budget)
    service.queue(0.0, 0, task("first"))
    service.queue(0.0, 1, task("second", 8, **second))
    service.request(1.0, 0)
    service.request(2.0, 1)
    return service


def only(issued: list[AnyCommand], kind: type[Any]) -> Any:
    (command,) = (each for each in issued if isinstance(each, kind))
    return command


@pytest.mark.parametrize("scheme", SHARED)
def test_a_round_gives_each_shard_once_and_each_learner_one_task(scheme: str) -> None:
    service = ScriptedService(scheme)
    service.queue(0.0, 0, task("first"))
    service.queue(0.0, 1, task("second", 8))
    service.request(1.0, 0)
    issued = service.request(2.0, 1)
    found = grants(issued)
    assert {number: int(grant.shards.sum()) for number, grant in found.items()} == {0: 12, 1: 8}
    learners = np.concatenate([grant.learners for grant in found.values()])
    assert sorted(learners.tolist()) == list(range(LEARNERS))
    assert all(scheme in grant.reason for grant in found.values())
    assert all(grant.planned_s <= 10.0 for grant in found.values())


def test_a_task_that_is_ready_first_waits_for_the_others_up_to_its_deadline() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("first"))
    service.queue(0.0, 1, task("second", deadline_s=8.0))
    wake = only(service.request(1.0, 0), commands.Wake)
    assert wake.at_s == 11.0
    assert "second" in wake.reason
    assert service.send(events.TimeReached(at_s=10.9)) == []
    assert list(grants(service.send(events.TimeReached(at_s=11.0)))) == [0]


def test_the_next_round_begins_when_all_cycles_of_this_one_have_ended() -> None:
    service = started()
    assert service.end_cycle(5.0, 0) == []
    assert service.request(5.0, 0, cycle=2) == []
    assert [type(each) for each in service.end_cycle(9.0, 1)] == [commands.Wake]
    issued = service.request(9.5, 1, cycle=2)
    assert sorted(grants(issued)) == [0, 1]
    assert grants(issued)[0].round == 2


def test_a_task_submitted_in_the_middle_of_cycles_begins_at_the_next_boundary() -> None:
    service = started()
    assert service.queue(3.0, 2, task("third")) == []
    assert service.request(6.0, 2) == []
    for number in (0, 1):
        service.end_cycle(9.0, number)
        issued = service.request(9.0, number, cycle=2)
    assert sorted(grants(issued)) == [0, 1, 2]
    assert service.machine.state.tasks[2].status is TaskStatus.RUNNING


def test_learners_of_a_finished_task_move_on_at_the_next_boundary() -> None:
    service = started()
    service.end_cycle(5.0, 1)
    service.end(5.0, 1)
    service.end_cycle(9.0, 0)
    found = grants(service.request(9.0, 0, cycle=2))
    assert sorted(found[0].learners.tolist()) == list(range(LEARNERS))


def test_without_a_plan_for_all_the_task_submitted_last_waits_and_is_told_why() -> None:
    service = ScriptedService(budget=15.0)
    for number, name in enumerate(("first", "second", "third")):
        service.queue(0.0, number, task(name, 8))
    for number in range(3):
        issued = service.request(1.0, number)
    assert sorted(grants(issued)) == [0, 1]
    held = [each for each in issued if isinstance(each, commands.HoldTask)]
    assert 2 in [each.number for each in held]
    assert all("budget is 15" in each.reason and "use budget >=" in each.reason for each in held)
    first = grants(issued)[0]
    assert first.cost <= 15.0 * (1 + 1e-12)


def test_a_task_that_has_no_plan_of_its_own_does_not_stop_later_ones() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("huge", 1000))
    service.queue(0.0, 1, task("small", 8))
    service.request(1.0, 0)
    issued = service.request(1.0, 1)
    assert sorted(grants(issued)) == [1]
    assert only(issued, commands.HoldTask).number == 0
    assert "deadline_s cannot be met" in only(issued, commands.HoldTask).reason


def test_requests_without_any_plan_are_refused_once_nothing_else_can_change() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("huge", 1000))
    refused = only(service.request(1.0, 0), commands.RefuseShares)
    assert refused.number == 0
    assert "deadlines" in refused.reason
    # The task fails or measures again; a later request is planned anew.
    assert grants(service.request(2.0, 0, cycle=2, speed=1e4))[0].shards.sum() == 1000


def test_a_task_without_a_plan_waits_while_another_measures_its_learners() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("huge", 1000))
    service.queue(0.0, 1, task("small", 8))
    service.request(1.0, 0)
    held = only(service.send(events.TimeReached(at_s=11.0)), commands.HoldTask)
    assert held.number == 0
    assert sorted(grants(service.request(12.0, 1))) == [1]


def test_a_plan_of_a_task_that_was_cancelled_meanwhile_does_not_count() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("first"))
    service.queue(0.0, 1, task("second", 8))
    service.request(1.0, 0)
    requested = msgspec.structs.replace
    machine = service.machine
    event = events.SharesRequested(
        at_s=2.0, number=1, cycle=1, learners=np.arange(6), costs=np.ones((3, 6)) * 0.1
    )
    (plan,) = machine.handle(requested(event))
    assert isinstance(plan, commands.PlanRound)
    (again,) = machine.handle(events.TaskEnded(at_s=2.1, number=1, outcome="cancelled"))
    assert isinstance(again, commands.PlanRound)
    assert (again.numbers, again.round) == ((0,), 2)
    stale = events.RoundInfeasible(at_s=2.2, round=1, numbers=(0, 1), reason="none")
    assert machine.handle(stale) == []


@pytest.mark.parametrize("scheme", ["mmtt-ideal", "med"])
def test_only_mmtt_ideal_keeps_the_task_of_each_learner(scheme: str) -> None:
    service = started(scheme)
    first = grants(service.trace[-1][1])
    for number in (0, 1):
        service.end_cycle(9.0, number)
        # The slowest learners are now the fastest.
        costs = np.stack([0.4 - 0.06 * np.arange(6), np.full(6, 0.05), np.full(6, 0.4)])
        issued = service.send(
            events.SharesRequested(
                at_s=9.0, number=number, cycle=2, learners=np.arange(6), costs=costs
            )
        )
    kept = [
        sorted(grants(issued)[number].learners.tolist()) == sorted(first[number].learners.tolist())
        for number in (0, 1)
    ]
    assert all(kept) or scheme == "med"
    assert service.machine.state.association.numbers == ((0, 1) if scheme == "mmtt-ideal" else ())
    amounts = [grants(issued)[number].shards.tolist() for number in (0, 1)]
    assert amounts != [first[number].shards.tolist() for number in (0, 1)]


def test_learners_that_are_not_ready_for_a_task_do_not_work_for_it() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("first"))
    service.queue(0.0, 1, task("second", 8))
    service.request(1.0, 0, learners=3)
    found = grants(service.request(1.0, 1))
    assert set(found[0].learners.tolist()) <= {0, 1, 2}


def test_with_more_learners_than_shards_some_stay_idle() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("tiny", 4))
    found = grants(service.request(1.0, 0))
    assert found[0].shards.sum() == 4


@pytest.mark.parametrize("scheme", SHARED)
def test_a_learner_that_is_too_expensive_stays_idle(scheme: str) -> None:
    service = ScriptedService(scheme, budget=30.0)
    service.send(
        events.LearnersPriced(
            at_s=0.0, learners=np.array([5]), names=("device-5",), price=np.array([1000.0])
        )
    )
    service.queue(0.0, 0, task("first"))
    found = grants(service.request(1.0, 0))
    assert 5 not in found[0].learners
    assert found[0].cost <= 30.0


def test_a_task_that_ends_while_others_are_planned_is_no_longer_held() -> None:
    service = ScriptedService()
    for number, name in enumerate(("huge", "vast", "first", "second")):
        service.queue(0.0, number, task(name, 1000 if number < 2 else 8))
    for number in range(3):
        service.request(1.0, number)
    machine = service.machine
    costs = np.full((3, LEARNERS), 0.1)
    (plan,) = machine.handle(
        events.SharesRequested(
            at_s=2.0, number=3, cycle=1, learners=np.arange(LEARNERS), costs=costs
        )
    )
    before = reject_plans_until(machine, plan, numbers=(2, 3))
    assert machine.handle(events.TaskEnded(at_s=2.1, number=1, outcome="cancelled")) == []
    (plan,) = machine.handle(events.TaskEnded(at_s=2.2, number=3, outcome="cancelled"))
    assert isinstance(plan, commands.PlanRound)
    assert before.round < plan.round
    issued: list[AnyCommand] = [plan]
    while isinstance(last := issued[-1], commands.PlanRound):
        issued = machine.handle(plan_round(last, 2.3, repeatable=True))
    assert sorted(grants(issued)) == [2]
    assert only(issued, commands.HoldTask).number == 0


def reject_plans_until(
    machine: ServiceMachine, plan: AnyCommand, numbers: tuple[int, ...]
) -> commands.PlanRound:
    """Report plans to be infeasible until these tasks are planned."""
    while isinstance(plan, commands.PlanRound) and plan.numbers != numbers:
        (plan,) = machine.handle(
            events.RoundInfeasible(at_s=2.0, round=plan.round, numbers=plan.numbers, reason="none")
        )
    assert isinstance(plan, commands.PlanRound)
    return plan


def test_a_second_task_with_the_same_name_is_refused() -> None:
    service = started()
    with pytest.raises(SettingError, match="first already"):
        service.queue(3.0, 2, task("first"))


def test_a_scheme_for_one_task_is_refused() -> None:
    with pytest.raises(SettingError, match="plans one task at a time"):
        ScriptedService("dab")


def test_remaining_cycles_are_counted() -> None:
    service = started()
    record = service.machine.state.tasks[0]
    assert (record.cycles, record.remaining_cycles) == (1, 2)


@pytest.mark.parametrize("scheme", SHARED)
def test_replaying_the_events_gives_the_same_commands(scheme: str) -> None:
    service = started(scheme, budget=40.0)
    service.queue(3.0, 2, task("third", 1000))
    service.request(6.0, 2)
    for number in (0, 1):
        service.end_cycle(9.0, number)
        service.request(9.0, number, cycle=2, speed=2.0)
    service.end(19.0, 0)
    service.end(19.0, 1)
    encoder = msgspec.json.Encoder(enc_hook=lambda array: encode_array(array)[1].tolist())
    machine = ServiceMachine()
    for event, issued in service.trace:
        assert encoder.encode(machine.handle(event)) == encoder.encode(issued)
    kinds = {type(command) for _, issued in service.trace for command in issued}
    assert {commands.PlanRound, commands.GrantShares, commands.HoldTask} <= kinds
    assert commands.RefuseShares in kinds

"""Payments and budgets of the service, by events written by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.cycle.commands import CoveredWork
from melisma.errors import SettingError
from melisma.fleet.array_types import NO_INTS, Floats
from melisma.prices import MAX_PRICE
from melisma.service import commands, events
from melisma.service.accounts import ENDED, LEFT_OUT, NOT_BEGUN
from melisma.service.commands import AnyCommand
from tests.service.scripted_service import LEARNERS, PRICE, ScriptedService, grants, task


def of_kind(issued: list[AnyCommand], kind: type[Any]) -> list[Any]:
    return [each for each in issued if isinstance(each, kind)]


def only(issued: list[AnyCommand], kind: type[Any]) -> Any:
    """Return the only command, which is of this kind."""
    (command,) = issued
    assert isinstance(command, kind)
    return command


def begun(budget: float | None = None, **settings: Any) -> ScriptedService:
    """Return a service with one task in its first cycle."""
    service = ScriptedService(budget=budget)
    service.queue(0.0, 0, task("first", extension=False, **settings))
    service.request(1.0, 0)
    return service


def set_price(service: ScriptedService, *price: float) -> list[AnyCommand]:
    learners = np.arange(len(price))
    names = tuple(f"device-{number}" for number in learners)
    return service.send(
        events.LearnersPriced(at_s=2.0, learners=learners, names=names, price=np.array(price))
    )


def test_a_round_is_paid_at_the_price_of_its_grant() -> None:
    service = begun()
    grant = grants(service.trace[-1][1])[0]
    set_price(service, *np.full(LEARNERS, 9.0))
    assert service.end_cycle(5.0, 0) == []
    payment = only(service.average(5.0, 0), commands.Pay)
    assert payment.prices.tolist() == PRICE[grant.learners].tolist()
    assert payment.amounts.sum() == pytest.approx(
        float((PRICE[grant.learners] * grant.shards).sum())
    )
    assert payment.names == tuple(f"device-{number}" for number in grant.learners)
    later = grants(service.request(6.0, 0, cycle=2))[0]
    assert (later.price == 9.0).all()


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), 2 * MAX_PRICE])
def test_absurd_prices_are_refused_and_change_nothing(price: float) -> None:
    service = begun()
    with pytest.raises(SettingError, match=r"price of device-1 is .*; expected a number from 0"):
        set_price(service, 2.0, price)
    assert service.machine.state.price[0] == PRICE[0]


def cost_of_a_cycle() -> float:
    return float(grants(begun().trace[-1][1])[0].cost)


def test_a_task_never_gets_more_than_what_is_left_of_its_budget() -> None:
    service, budget, spent = ScriptedService(), 1.7 * cost_of_a_cycle(), 0.0
    service.queue(0.0, 0, task("first", extension=False, budget=budget))
    for cycle in (1, 2):
        grant = grants(service.request(float(cycle), 0, cycle=cycle))[0]
        assert float((grant.price * grant.shards).sum()) <= (budget - spent) * (1 + 1e-9)
        service.end_cycle(cycle + 0.5, 0)
        payment = only(service.average(cycle + 0.5, 0), commands.Pay)
        spent += float(payment.amounts.sum())
    assert service.machine.state.tasks[0].account.paid == pytest.approx(spent)
    assert spent <= budget * (1 + 1e-9)


def test_a_task_whose_budget_is_used_up_ends_with_a_reason() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("first", extension=False, budget=cost_of_a_cycle() + 1.0))
    service.request(1.0, 0)
    service.end_cycle(2.0, 0)
    service.average(2.0, 0)
    refused = only(service.request(3.0, 0, cycle=2), commands.RefuseShares)
    assert refused.final
    assert "of task first is used up" in refused.reason
    assert "use a larger budget" in refused.reason


def test_a_budget_that_pays_no_plan_by_the_deadline_ends_the_task_once_nothing_can_change() -> None:
    service = ScriptedService(price=np.array([9.0, 9.0, 9.0, 9.0, 9.0, 0.1]))
    costly = task("costly", 40, extension=False, budget=30.0, deadline_s=6.0)
    service.queue(0.0, 0, costly)
    service.queue(0.0, 1, task("other", 6, extension=False))
    service.request(1.0, 0)
    issued = service.request(1.0, 1)
    assert list(grants(issued)) == [1]
    (held,) = of_kind(issued, commands.HoldTask)
    assert held.number == 0
    assert "left of its budget of 30" in held.reason
    service.end_cycle(4.0, 1)
    service.average(4.0, 1)
    issued = service.send(events.TaskEnded(at_s=4.0, number=1, outcome="finished"))
    (refused,) = of_kind(issued, commands.RefuseShares)
    assert (refused.number, refused.final) == (0, True)


def two_tasks(budget: float | None, price: Floats = PRICE) -> dict[int, commands.GrantShares]:
    """Return the grants of two equal tasks, the first of which has a budget."""
    service = ScriptedService(price=price)
    extra: dict[str, Any] = {"extension": False, "deadline_s": 30.0}
    service.queue(0.0, 0, task("first", **extra, budget=budget))
    service.queue(0.0, 1, task("second", **extra))
    service.request(1.0, 0)
    return grants(service.request(1.0, 1))


def cost_of(grant: commands.GrantShares) -> float:
    return float((grant.price * grant.shards).sum())


def test_a_task_over_its_own_budget_is_planned_again_on_its_learners() -> None:
    price = np.array([1.5, 1.0, 1.0, 1.0, 1.0, 1.2])
    unlimited = two_tasks(None, price)
    budget = 0.98 * cost_of(unlimited[0])
    found = two_tasks(budget, price)
    assert set(found[0].learners) <= set(unlimited[0].learners)
    assert cost_of(found[0]) <= budget * (1 + 1e-9)
    assert found[0].shards.sum() == 12
    assert found[1].shards.tolist() == unlimited[1].shards.tolist()


def test_a_task_whose_learners_are_too_expensive_gets_the_cheapest_ones() -> None:
    unlimited = two_tasks(None)
    budget = 0.55 * cost_of(unlimited[0])
    found = two_tasks(budget)
    assert cost_of(found[0]) <= budget * (1 + 1e-9)
    assert [each.shards.sum() for each in found.values()] == [12, 12]
    assert not set(found[0].learners) & set(found[1].learners)


@given(
    st.floats(0.4, 1.5), st.floats(0.4, 1.5), st.lists(st.floats(0.1, 3.0), min_size=6, max_size=6)
)
@settings(max_examples=15, deadline=None)
def test_every_round_keeps_to_the_budgets_of_its_tasks(
    first: float, second: float, price: list[float]
) -> None:
    service = ScriptedService(price=np.array(price))
    least = 12 * min(price)
    budgets = {0: least * (1 + first), 1: least * (1 + second)}
    for number, budget in budgets.items():
        service.queue(0.0, number, task(f"task {number}", extension=False, budget=budget))
        issued = service.request(1.0, number)
    for number, grant in grants(issued).items():
        assert cost_of(grant) <= budgets[number] * (1 + 1e-9)
        assert grant.shards.sum() == 12


def test_a_cancelled_task_pays_nothing_more_and_a_late_update_of_it_is_ignored() -> None:
    service = begun()
    service.end_cycle(5.0, 0, awaited=(0,))
    issued = service.send(events.TaskEnded(at_s=5.1, number=0, outcome="cancelled"))
    assert {each.reason for each in of_kind(issued, commands.ReleaseShares)} == {ENDED}
    assert service.average(5.2, 0) == []
    assert service.end_cycle(6.0, 0) == []
    assert service.machine.state.tasks[0].account.paid == 0


def test_a_cancelled_task_has_paid_what_counted_before() -> None:
    service = begun()
    service.end_cycle(5.0, 0, awaited=(0,))
    payment = only(service.average(5.1, 0), commands.Pay)
    issued = service.send(events.TaskEnded(at_s=5.2, number=0, outcome="cancelled"))
    (released,) = of_kind(issued, commands.ReleaseShares)
    assert released.learners.tolist() == [0]
    assert 0 not in payment.learners


def test_a_late_update_is_paid_once_in_the_cycle_in_which_it_counts() -> None:
    service = begun()
    service.end_cycle(5.0, 0, awaited=(0,))
    service.average(5.0, 0)
    service.request(6.0, 0, cycle=2)
    open_work = service.machine.state.tasks[0].account.grants
    assert (1, 0) in open_work
    cycles, learners = np.array(list(open_work)).T
    shards = np.array([each.shards for each in open_work.values()])
    covered = CoveredWork(learners, cycles, shards, NO_INTS, NO_INTS)
    service.send(events.CycleEnded(at_s=9.0, number=0, covered=covered))
    payment = only(service.average(9.0, 0), commands.Pay)
    rows = list(zip(payment.cycles.tolist(), payment.learners.tolist(), strict=True))
    assert rows.count((1, 0)) == 1
    assert payment.cycle == 2
    assert service.average(9.1, 0) == []


def test_shares_of_a_cycle_that_did_not_begin_are_released() -> None:
    service = begun()
    issued = service.send(events.CycleEnded(at_s=1.0, number=0))
    released = only(issued, commands.ReleaseShares)
    assert released.reason == NOT_BEGUN
    assert released.shards.sum() == 12


def test_an_update_that_was_left_out_is_released_with_the_reason() -> None:
    service = begun()
    service.end_cycle(5.0, 0)
    learner = int(grants(service.trace[-2][1])[0].learners[0])
    issued = service.average(5.0, 0, {learner: 0.0})
    (released,) = of_kind(issued, commands.ReleaseShares)
    assert (released.reason, released.learners.tolist()) == (LEFT_OUT, [learner])
    assert learner not in of_kind(issued, commands.Pay)[0].learners

"""Candidates: forecasts, larger budgets, later deadlines, and the nearest feasible ones."""

from typing import Any

import numpy as np
import pytest

import melisma
from melisma.allocation.schemes import get_scheme
from melisma.errors import InfeasibleError
from melisma.service.plan_candidates import (
    AS_SUBMITTED,
    PlanCandidate,
    Submission,
    check_submission_feasible,
    find_candidates,
    forecast,
)
from tests.service.scripted_service import ScriptedService, task

LEARNERS = [
    {"name": f"d{n}", "samples_per_s": 20.0 * (n + 1), "bandwidth_bps": 1e8, "price": 0.5 + n / 2}
    for n in range(4)
]


def submission(*settings: dict[str, Any], scheme: str = "med", **fleet: Any) -> Submission:
    defaults: dict[str, Any] = {"extension": False, "cycles": 2}
    tasks = [task(f"task {n}", **(defaults | each)) for n, each in enumerate(settings)]
    built = melisma.Fleet.from_tables(learner=LEARNERS, **fleet)
    return Submission.to_fleet(tasks, built, get_scheme(scheme))


def named(candidates: list[PlanCandidate], change: str) -> PlanCandidate:
    (found,) = (each for each in candidates if each.change == change)
    return found


def test_a_task_ends_after_its_cycles_and_costs_their_sum() -> None:
    (first, *_) = find_candidates(submission({"cycles": 3}))
    (only,) = first.tasks
    assert first.change == AS_SUBMITTED
    assert only.ends_s == pytest.approx(3 * only.round_s)
    assert only.cost == pytest.approx(3 * only.round_cost)


def test_learners_of_a_task_that_ends_move_on_to_the_others() -> None:
    found = forecast(AS_SUBMITTED, submission({"cycles": 1}, {"cycles": 4}))
    short, long = found.tasks
    assert short.ends_s == pytest.approx(short.round_s)
    first_round_s = max(short.round_s, long.round_s)
    assert long.ends_s < first_round_s + 3 * long.round_s


def test_tasks_that_do_not_fit_wait_for_the_others() -> None:
    rows = [{"shards": 4, "deadline_s": 30.0}] * 5
    found = forecast(AS_SUBMITTED, submission(*rows))
    assert [each.begins_s > 0 for each in found.tasks] == [False] * 4 + [True]


def test_a_larger_budget_is_shown_up_to_the_one_that_reaches_the_least_time() -> None:
    free = forecast("", submission({"deadline_s": 60.0}))
    low = submission({"deadline_s": 60.0, "budget": 0.55 * free.cost})
    found = find_candidates(low)
    best, half = named(found, "budget for the least time"), named(found, "budget half way")
    assert best.ends_s == pytest.approx(free.ends_s)
    assert found[0].ends_s >= half.ends_s >= best.ends_s
    assert found[0].cost <= 0.55 * free.cost * (1 + 1e-9)


def test_later_deadlines_cost_less() -> None:
    found = find_candidates(submission({"deadline_s": 4.0}))
    least = named(found, "least cost")
    later = [each for each in found if each.change.startswith("least cost, deadlines")]
    assert later
    assert least.cost <= found[0].cost
    assert all(each.cost < least.cost for each in later)


def test_an_infeasible_budget_names_the_nearest_one_which_is_enough() -> None:
    low = submission({"budget": 5.0})
    with pytest.raises(InfeasibleError, match="use budget of task 0 >= ") as caught:
        check_submission_feasible(low)
    budget = caught.value.nearest["budget of task 0"]
    check_submission_feasible(submission({"budget": budget}))
    with pytest.raises(InfeasibleError):
        check_submission_feasible(submission({"budget": 0.98 * budget}))


def test_an_infeasible_deadline_names_the_nearest_one_which_is_enough() -> None:
    with pytest.raises(InfeasibleError, match="deadline_s of task 0 >= ") as caught:
        check_submission_feasible(submission({"deadline_s": 0.3}))
    deadline_s = caught.value.nearest["deadline_s of task 0"]
    check_submission_feasible(submission({"deadline_s": deadline_s}))
    with pytest.raises(InfeasibleError):
        check_submission_feasible(submission({"deadline_s": 0.98 * deadline_s}))


def test_a_budget_of_the_rounds_that_is_too_small_is_named() -> None:
    found = find_candidates(submission({}, budget=3.0))
    assert not found[0].feasible
    assert found[0].as_dict()["reason"]
    (nearest,) = (each for each in found if "budget of each round" in each.values)
    assert nearest.feasible
    assert nearest.values["budget of each round"] > 3.0


def test_live_tasks_keep_their_settings() -> None:
    both = submission({}, {})
    later = Submission(both.command, both.cycles, submitted=(1,)).with_deadlines(2.0)
    deadlines = [each.deadline_s for each in later.command.tasks]
    assert deadlines == [both.command.tasks[0].deadline_s, 2 * both.command.tasks[1].deadline_s]


@pytest.mark.parametrize("scheme", ["fifo", "venn"])
def test_queues_have_candidates_too(scheme: str) -> None:
    found = find_candidates(submission({}, {}, scheme=scheme))
    assert found[0].feasible
    assert np.isfinite(found[0].cost)


def test_a_task_is_submitted_beside_live_ones_with_their_latest_costs() -> None:
    service = ScriptedService()
    service.queue(0.0, 0, task("live", extension=False))
    service.request(1.0, 0)
    record = service.machine.state.tasks[0]
    assert record.request is None
    assert record.latest_request is not None
    new = task("new", 8, extension=False, cycles=4, budget=30.0)
    beside = Submission.beside_live(service.machine.state, new, record.latest_request)
    check_submission_feasible(beside)
    first = find_candidates(beside)[0]
    assert [each.name for each in first.tasks] == ["live", "new"]
    assert [each.cycles for each in first.tasks] == [record.remaining_cycles, 4]
    assert first.tasks[1].cost <= 30.0 * (1 + 1e-9)

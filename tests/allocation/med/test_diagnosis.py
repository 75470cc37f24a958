import numpy as np
import pytest

from benchmarks.allocation.med_instances import instance, with_budget
from melisma.allocation.med import cheapest, diagnosis, med, solver
from melisma.allocation.shared_problem import SharedProblem
from melisma.errors import InfeasibleError
from tests.allocation.med.problems import change


def test_a_deadline_that_all_learners_miss_names_the_task() -> None:
    problem = change(instance(6, 2, 0), deadline_s=[1e-3, 100.0])
    with pytest.raises(
        InfeasibleError, match="all learners together cannot finish task 0"
    ) as caught:
        med(problem)
    assert (caught.value.constraint, caught.value.tasks) == ("deadline_s", (0,))
    assert caught.value.nearest["stretch"] > 1


def test_a_learner_too_slow_for_every_task_is_named() -> None:
    fixed_s = np.ones((2, 4))
    fixed_s[:, 2] = 50.0
    problem = SharedProblem(
        fixed_s=fixed_s, shard_s=1.0, shards=4, deadline_s=10.0, price=1.0, budget=np.inf
    )
    with pytest.raises(
        InfeasibleError, match="learner 2 cannot train min_shards of any task"
    ) as caught:
        med(problem)
    assert caught.value.learners == (2,)


def test_fewer_learners_than_tasks_are_an_error() -> None:
    problem = SharedProblem(
        fixed_s=np.ones((4, 3)), shard_s=1.0, shards=2, deadline_s=9.0, price=1.0, budget=np.inf
    )
    with pytest.raises(InfeasibleError, match=r"4 tasks need .* and there are 3; add") as caught:
        med(problem)
    assert (caught.value.constraint, caught.value.miss) == ("learners", 1)


def test_a_budget_too_small_names_the_least_budget() -> None:
    problem = instance(8, 2, 0)
    least, proven = cheapest(problem)
    assert proven
    with pytest.raises(
        InfeasibleError, match="every plan that meets the deadlines costs more; use"
    ) as caught:
        med(with_budget(problem, least * 0.9))
    assert caught.value.constraint == "budget"
    assert caught.value.miss == pytest.approx(least * 0.1)
    assert caught.value.nearest["budget"] == pytest.approx(least)


def test_a_task_without_a_learner_is_an_error() -> None:
    with pytest.raises(InfeasibleError, match="no learner is assigned to task 1"):
        med(instance(6, 2, 0), assigned=0)


@pytest.mark.slow
def test_a_search_without_a_plan_ends_after_its_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = instance(100, 5, 0)
    least = 212.0
    monkeypatch.setattr(solver, "FEASIBILITY_WORK", 1e6)
    monkeypatch.setattr(diagnosis, "DIAGNOSIS_WORK", 1e6)
    with pytest.raises(InfeasibleError, match="it is not proven that none exists") as caught:
        med(with_budget(problem, least * 0.998), time_limit_s=0.1)
    assert caught.value.nearest["budget"] < least * 1.02
    with pytest.raises(InfeasibleError, match="every plan that meets the deadlines costs more"):
        med(with_budget(problem, least * 0.98), time_limit_s=0.1)


@pytest.mark.slow
def test_the_diagnosis_of_deadlines_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "DIAGNOSIS_WORK", 2e6)
    problem = instance(20, 5, 1)
    short = change(problem, deadline_s=problem.deadline_s * 0.05, budget=np.inf)
    with pytest.raises(InfeasibleError, match="times as long") as caught:
        med(short, time_limit_s=0.5)
    factor = caught.value.nearest["stretch"]
    med(change(short, deadline_s=short.deadline_s * factor), time_limit_s=0.5)

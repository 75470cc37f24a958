import numpy as np
import pytest

from benchmarks.allocation.med_instances import instance, with_budget
from melisma.allocation.med import amounts, med
from melisma.errors import InfeasibleError
from tests.allocation.med.brute_force import least_sum
from tests.allocation.med.problems import (
    BATCHES,
    assert_feasible,
    assert_nearest_is_least,
    change,
    problem_batch,
)


@pytest.mark.parametrize("number", BATCHES[:8])
def test_amounts_are_optimal_for_a_given_assignment(number: int) -> None:
    rng = np.random.default_rng(number)
    for problem in problem_batch(number):
        assigned = rng.integers(0, problem.tasks, problem.learners)
        best_s = least_sum(problem, tuple(assigned.tolist()))
        try:
            plan = med(problem, assigned=assigned)
        except InfeasibleError as error:
            assert best_s is None
            if error.constraint != "assigned":
                assert_nearest_is_least(problem, error, tuple(assigned.tolist()))
        else:
            assert plan.total_s == pytest.approx(best_s, rel=1e-9)
            assert plan.gap == 0.0
            assert_feasible(plan, problem)
            works = plan.task_of >= 0
            assert plan.task_of[works].tolist() == assigned[works].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_curve_segments_give_the_same_levels_as_enumeration(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = instance(12, 3, seed)
    rng = np.random.default_rng(seed)
    assigned = np.append([0, 1, 2], rng.integers(0, 3, 9))
    cap = change(problem, deadline_s=1e3, budget=np.inf)
    largest = med(cap, assigned).cost
    with pytest.raises(InfeasibleError) as caught:
        med(with_budget(cap, 1e-3), assigned)
    tight = with_budget(cap, (largest + caught.value.nearest["budget"]) / 2)
    plan = med(tight, assigned)
    monkeypatch.setattr(amounts, "MAX_LEVELS", 0)
    monkeypatch.setattr(amounts, "FIRST_SEGMENTS", 4)
    again = med(tight, assigned)
    assert again.total_s == pytest.approx(plan.total_s, rel=1e-12)
    assert again.gap == plan.gap == 0.0

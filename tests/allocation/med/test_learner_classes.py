import numpy as np
import pytest

from benchmarks.allocation.med_instances import instance
from melisma.allocation.med import med
from melisma.allocation.shared_problem import SharedProblem
from tests.allocation.med.problems import assert_feasible, change


@pytest.mark.parametrize("seed", range(4))
def test_plans_do_not_depend_on_the_order_of_learners(seed: int) -> None:
    problem = instance(10, 3, seed)
    plan = med(problem)
    order = np.random.default_rng(seed).permutation(problem.learners)
    other = med(
        change(
            problem,
            fixed_s=problem.fixed_s[:, order],
            shard_s=problem.shard_s[:, order],
            price=problem.price[order],
            min_shards=problem.min_shards[order],
        )
    )
    assert other.shards.tolist() == plan.shards[:, order].tolist()
    assert other.bound_s == plan.bound_s


def test_identical_learners_are_solved_as_one_class() -> None:
    problem = SharedProblem(
        fixed_s=np.ones((3, 31)),
        shard_s=0.5,
        shards=[40, 50, 37],
        deadline_s=20.0,
        price=1.0,
        budget=np.inf,
    )
    plan = med(problem)
    # Levels 1 + 0.5 d: ten, eleven and ten learners with at most 4, 5 and 4 shards each.
    assert plan.total_s == pytest.approx(3.0 + 3.5 + 3.0)
    assert plan.gap == 0.0
    assert_feasible(plan, problem)


def test_a_million_learners_of_few_classes_are_solved() -> None:
    learners = 1_000_000
    problem = SharedProblem(
        fixed_s=1.0,
        shard_s=np.tile([[1.0, 2.0], [2.0, 1.0]], learners // 2),
        shards=learners,
        deadline_s=1e3,
        price=1.0,
        budget=np.inf,
    )
    plan = med(problem)
    assert plan.task_s.tolist() == [3.0, 3.0]
    assert plan.gap == 0.0

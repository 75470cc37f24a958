import numpy as np
import pytest
from scipy import optimize, sparse

from benchmarks.allocation.med_instances import instance, with_budget
from melisma.allocation.med.learner_classes import group_learners
from melisma.allocation.med.smoothed_dual import solve_fixed_levels
from melisma.allocation.shared_problem import SharedProblem


def max_coverage(problem: SharedProblem) -> float:
    """Return the largest fractional coverage by the deadlines within the budget."""
    classes = group_learners(problem)
    tasks, size = classes.shape
    cap = classes.capacity(np.arange(tasks), classes.deadline_s).ravel().astype(float)
    one, none = sparse.identity(tasks * size), sparse.csr_matrix((tasks * size, 1))
    least = np.tile(classes.min_shards, tasks).astype(float)
    shards = -sparse.kron(sparse.identity(tasks), np.ones((1, size)))
    limits = sparse.vstack(
        [
            sparse.hstack([sparse.diags(-cap), one, none]),
            sparse.hstack([sparse.diags(least), -one, none]),
            sparse.hstack(
                [sparse.csr_matrix((tasks, tasks * size)), shards, classes.demand[:, None]]
            ),
            np.concatenate([np.zeros(tasks * size), np.tile(classes.price, tasks), [0.0]])[None],
        ]
    )
    found = optimize.linprog(
        np.append(np.zeros(2 * tasks * size), -1.0),
        A_ub=limits,
        b_ub=np.append(np.zeros(2 * tasks * size + tasks), classes.budget),
        A_eq=sparse.hstack(
            [*[sparse.identity(size)] * tasks, sparse.csr_matrix((size, tasks * size + 1))]
        ),
        b_eq=classes.members,
    )
    return -float(found.fun)


@pytest.mark.parametrize("part", [0.7, 1.0])
def test_the_coverage_equals_that_of_a_general_lp_solver(part: float) -> None:
    problem = instance(120, 4, 0)
    problem = with_budget(problem, part * problem.budget)
    classes = group_learners(problem)
    dual = solve_fixed_levels(classes, classes.deadline_s)
    assert dual is not None
    coverage = max_coverage(problem)
    assert coverage * (1 - 1e-9) <= dual.coverage <= coverage * 1.002

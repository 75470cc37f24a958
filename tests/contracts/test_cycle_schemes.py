"""Laws that every scheme for one task in one cycle keeps."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from melisma.allocation.one_task import CyclePlan, CycleProblem
from melisma.allocation.schemes import SCHEMES, Scheme, cycle_plan
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.problems import cycle_problems, who_got_what

ROWS = [row for row in SCHEMES.values() if row.problem == "cycle"]
every_scheme = pytest.mark.parametrize("scheme", ROWS, ids=lambda row: row.name)
# The NLP solver takes its time.
laws = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def planned(scheme: Scheme, problem: CycleProblem, passes: int) -> CyclePlan | None:
    try:
        return cycle_plan(scheme.name, problem, None if scheme.passes == "chosen" else passes)
    except InfeasibleError:
        return None


@every_scheme
@given(problem=cycle_problems(), passes=st.integers(1, 6))
@laws
def test_a_plan_is_whole_and_within_bounds(
    scheme: Scheme, problem: CycleProblem, passes: int
) -> None:
    if plan := planned(scheme, problem, passes):
        assert plan.shards.dtype == plan.updates.dtype == np.int64
        assert np.all(plan.shards <= problem.max_shards)
        assert np.all(plan.shards >= (problem.min_shards if scheme.hands_out_all else 0))
        assert np.all(plan.updates[plan.shards == 0] == 0)


@every_scheme
@given(problem=cycle_problems(), passes=st.integers(1, 6))
@laws
def test_every_shard_is_handed_out_once(scheme: Scheme, problem: CycleProblem, passes: int) -> None:
    plan = planned(scheme, problem, passes)
    if plan and scheme.hands_out_all:
        assert plan.shards.sum() == problem.shards


@every_scheme
@given(problem=cycle_problems(), passes=st.integers(1, 6))
@laws
def test_no_learner_is_planned_past_the_deadline(
    scheme: Scheme, problem: CycleProblem, passes: int
) -> None:
    plan = planned(scheme, problem, passes)
    if plan and scheme.keeps_deadline:
        assert np.all(plan.seconds(problem) <= problem.deadline_s)


@every_scheme
@given(problem=cycle_problems(), passes=st.integers(1, 6), data=st.data())
@laws
def test_the_order_of_learners_does_not_matter(
    scheme: Scheme, problem: CycleProblem, passes: int, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(problem.learners))))
    reordered = problem.of(order)
    plan, other = planned(scheme, problem, passes), planned(scheme, reordered, passes)
    assert (plan is None) == (other is None)
    if plan and other:
        assert who_got_what(problem, plan.shards) == who_got_what(reordered, other.shards)


@every_scheme
def test_passes_are_chosen_by_the_task_or_by_the_scheme(scheme: Scheme) -> None:
    problem = CycleProblem(train_s=[1, 2], ship_s=0, fixed_s=0, deadline_s=20, shards=6)
    if scheme.passes == "chosen":
        with pytest.raises(SettingError, match="chooses passes by itself"):
            cycle_plan(scheme.name, problem, 2)
    else:
        plan = cycle_plan(scheme.name, problem, 2)
        assert set(plan.updates[plan.shards > 0].tolist()) == {2}
    if scheme.passes == "fixed":
        with pytest.raises(SettingError, match="needs passes"):
            cycle_plan(scheme.name, problem)

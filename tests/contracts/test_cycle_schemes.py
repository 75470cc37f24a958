"""Laws that every scheme for one task in one cycle keeps."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.dab import dab_shards
from melisma.allocation.schemes import SCHEMES, PlanInputs, Scheme
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.problems import cycle_problems, sorted_shares
from tests.lanes import cases

ROWS = [row for row in SCHEMES.values() if row.problem == "cycle"]
every_scheme = pytest.mark.parametrize("scheme", ROWS, ids=lambda row: row.name)
# The NLP solver is slow.
laws = settings(max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow])
# The least number of plans for which a law must have been checked.
MIN_PLANS = cases(15)


def plan_or_none(scheme: Scheme, problem: CycleProblem, inputs: PlanInputs) -> CyclePlan | None:
    try:
        plan = scheme.plan(problem, inputs)
    except InfeasibleError:
        return None
    assert isinstance(plan, CyclePlan)
    return plan


def check_law(scheme: Scheme, law: Callable[[CycleProblem, CyclePlan, int], None]) -> None:
    """Check the law for the plan of each problem that has one, and that enough have one."""
    plans = 0

    @given(problem=cycle_problems(), passes=st.integers(1, 6))
    @laws
    def check(problem: CycleProblem, passes: int) -> None:
        nonlocal plans
        if plan := plan_or_none(scheme, problem, PlanInputs(passes=passes)):
            plans += 1
            law(problem, plan, passes)

    check()
    assert plans >= MIN_PLANS


@every_scheme
def test_a_plan_is_whole_and_within_bounds(scheme: Scheme) -> None:
    def law(problem: CycleProblem, plan: CyclePlan, _: int) -> None:
        assert plan.shards.dtype == plan.updates.dtype == np.int64
        assert np.all(plan.shards <= problem.max_shards)
        assert np.all(plan.shards >= (problem.min_shards if scheme.hands_out_all else 0))
        assert np.all(plan.updates[plan.shards == 0] == 0)
        assert plan.shards.any()

    check_law(scheme, law)


@pytest.mark.parametrize("scheme", [r for r in ROWS if r.hands_out_all], ids=lambda row: row.name)
def test_every_shard_is_allocated_once(scheme: Scheme) -> None:
    def law(problem: CycleProblem, plan: CyclePlan, _: int) -> None:
        assert plan.shards.sum() == problem.shards

    check_law(scheme, law)


@pytest.mark.parametrize("scheme", [r for r in ROWS if r.keeps_deadline], ids=lambda row: row.name)
def test_no_learner_is_planned_past_the_deadline(scheme: Scheme) -> None:
    def law(problem: CycleProblem, plan: CyclePlan, _: int) -> None:
        assert np.all(plan.seconds(problem) <= problem.deadline_s)

    check_law(scheme, law)


@every_scheme
@given(data=st.data())
@laws
def test_costs_down_to_a_picosecond_give_valid_plans(scheme: Scheme, data: st.DataObject) -> None:
    learners = data.draw(st.integers(1, 4))
    exponents = st.floats(-12, -3)

    def costs() -> list[float]:
        drawn = data.draw(st.lists(exponents, min_size=learners, max_size=learners))
        return [10.0**exponent for exponent in drawn]

    problem = CycleProblem(
        train_s=costs(),
        ship_s=costs(),
        fixed_s=costs(),
        deadline_s=data.draw(st.floats(1, 1000)),
        shards=data.draw(st.integers(learners, 60)),
        min_shards=data.draw(st.integers(0, 1)),
    )
    plan = scheme.plan(problem, PlanInputs(passes=data.draw(st.integers(1, 6))))
    assert np.all(plan.shards >= problem.min_shards)
    assert np.all(plan.shards <= problem.shards)
    assert np.all(plan.updates[plan.shards > 0] > 0)
    assert plan.shards.sum() == problem.shards or not scheme.hands_out_all
    assert np.all(plan.seconds(problem) <= problem.deadline_s)


@every_scheme
def test_the_order_of_learners_does_not_matter(scheme: Scheme) -> None:
    """Learners that are identical in all that the scheme uses may be exchanged."""

    def law(problem: CycleProblem, plan: CyclePlan, passes: int) -> None:
        order = np.random.default_rng(problem.shards).permutation(problem.learners)
        other = plan_or_none(scheme, problem.reorder(order), PlanInputs(passes=passes))
        assert other is not None
        known = problem.without_costs() if scheme.needs == "nothing" else problem
        assert sorted_shares(known, plan.shards) == sorted_shares(
            known.reorder(order), other.shards
        )

    check_law(scheme, law)


@every_scheme
def test_a_scheme_uses_no_more_than_its_row_states(scheme: Scheme) -> None:
    def law(problem: CycleProblem, plan: CyclePlan, passes: int) -> None:
        bounds = [
            dab_shards(problem.deadline_s, train_s, ship_s, fixed_s, passes, held)
            for train_s, ship_s, fixed_s, held in zip(
                problem.train_s, problem.ship_s, problem.fixed_s, problem.held, strict=True
            )
        ]
        inputs = {
            "nothing": PlanInputs(passes=passes),
            "bounds": PlanInputs(passes=passes, bounds=bounds),
        }
        if scheme.needs in inputs:
            other = plan_or_none(scheme, problem.without_costs(), inputs[scheme.needs])
            assert other is not None
            assert other.shards.tolist() == plan.shards.tolist()
        else:
            with pytest.raises(SettingError, match="costs of the learners are unknown"):
                scheme.plan(problem.without_costs(), PlanInputs(passes, bounds))

    check_law(scheme, law)


@every_scheme
def test_passes_are_chosen_by_the_task_or_by_the_scheme(scheme: Scheme) -> None:
    problem = CycleProblem(train_s=[1, 2], ship_s=0, fixed_s=0, deadline_s=20, shards=6)
    if scheme.passes == "chosen":
        with pytest.raises(SettingError, match="chooses passes itself"):
            scheme.check_passes(2)
    else:
        plan = scheme.plan(problem, PlanInputs(passes=2))
        assert set(plan.updates[plan.shards > 0].tolist()) == {2}
    if scheme.passes == "fixed":
        with pytest.raises(SettingError, match="needs passes"):
            scheme.plan(problem)

"""Laws that every scheme for a radio cell keeps."""

import math

import numpy as np
import pytest

from melisma.allocation.radio_problem import RadioPlan
from melisma.allocation.schemes import SCHEMES, PlanInputs, Scheme
from tests.allocation.radio_problems import DEVICE_TYPES, random_radio, reorder_radio

ROWS = [row for row in SCHEMES.values() if row.problem == "radio"]
every_scheme = pytest.mark.parametrize("scheme", ROWS, ids=lambda row: row.name)
every_kind = pytest.mark.parametrize("kind", DEVICE_TYPES)


@every_scheme
@every_kind
def test_a_plan_is_whole_within_bounds_and_within_the_frame(scheme: Scheme, kind: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        problem = random_radio(rng, int(rng.integers(1, 15)), kind)
        plan = scheme.plan(problem, PlanInputs(rng=rng))
        assert isinstance(plan, RadioPlan)
        assert plan.batch.dtype == np.int64
        assert np.all((problem.min_batch <= plan.batch) & (plan.batch <= problem.max_batch))
        for slots_s in (plan.uplink_slot_s, plan.downlink_slot_s):
            assert np.all(slots_s > 0)
            assert math.fsum(slots_s) <= problem.frame_s
        round_s = problem.round_s(plan.batch, plan.uplink_slot_s, plan.downlink_slot_s)
        assert plan.round_s == round_s
        assert plan.efficiency == pytest.approx(math.sqrt(plan.batch.sum()) / round_s)


# Random batches are drawn in the order of learners.
@pytest.mark.parametrize("scheme", [row for row in ROWS if not row.needs_rng], ids=lambda r: r.name)
@every_kind
def test_the_order_of_learners_does_not_matter(scheme: Scheme, kind: str) -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        problem = random_radio(rng, int(rng.integers(1, 15)), kind)
        order = rng.permutation(problem.learners)
        plan, other = scheme.plan(problem), scheme.plan(reorder_radio(problem, order))
        assert isinstance(plan, RadioPlan)
        assert isinstance(other, RadioPlan)
        assert plan.batch[order].tolist() == other.batch.tolist()
        assert plan.round_s == other.round_s


@every_kind
def test_feel_is_no_worse_than_any_other(kind: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        problem = random_radio(rng, int(rng.integers(1, 15)), kind)
        found = {row.name: row.plan(problem, PlanInputs(rng=rng)) for row in ROWS}
        efficiency = {
            name: plan.efficiency for name, plan in found.items() if isinstance(plan, RadioPlan)
        }
        assert efficiency["feel"] >= max(efficiency.values()) * (1 - 1e-9)

from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.synchronous import synchronous
from melisma.errors import InfeasibleError
from tests.allocation.problems import cycle_problems, later, three_learners


def test_synchronous_does_the_most_updates_that_admit_all_data() -> None:
    plan = synchronous(three_learners())
    assert len(set(plan.updates.tolist())) == 1
    updates = int(plan.updates[0])
    assert three_learners().most_shards(updates).sum() >= 14
    assert three_learners().most_shards(updates + 1).sum() < 14


@given(cycle_problems(), st.floats(1, 5))
def test_synchronous_updates_never_fall_with_a_later_deadline(
    problem: CycleProblem, factor: float
) -> None:
    try:
        now = synchronous(problem).updates.max()
    except InfeasibleError:
        return
    assert synchronous(later(problem, factor)).updates.max() >= now


def test_synchronous_leaves_out_slow_learners_with_min_shards_zero() -> None:
    plan = synchronous(three_learners(train_s=[0.1, 0.2, 30], min_shards=0))
    assert plan.shards[2] == plan.updates[2] == 0

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.shares import fill, split_by_weight
from tests.allocation.problems import cycle_problems


def problem(learners: int, shards: int, **bounds: object) -> CycleProblem:
    costs = {"train_s": np.arange(1.0, learners + 1), "ship_s": 0.0, "fixed_s": 0.0}
    return CycleProblem(deadline_s=100.0, shards=shards, **costs, **bounds)  # type: ignore[arg-type]


def test_fill_is_proportional_to_the_room() -> None:
    low, high = np.array([1, 1, 0]), np.array([5, 9, 12])
    assert fill(problem(3, 14), low, high).tolist() == [3, 5, 6]


def test_the_rest_goes_to_the_largest_remainder_then_to_the_faster() -> None:
    low, high = np.zeros(3, dtype=np.int64), np.array([3, 3, 2])
    assert fill(problem(3, 3), low, high).tolist() == [1, 1, 1]
    assert split_by_weight(problem(3, 5), np.ones(3)).tolist() == [2, 2, 1]


def test_products_beyond_64_bits_stay_exact() -> None:
    huge = 2**50
    shares = fill(problem(2, huge + 1), np.zeros(2, dtype=np.int64), np.array([huge, huge]))
    assert shares.tolist() == [huge // 2 + 1, huge // 2]


def test_weights_are_cut_to_the_bounds_and_the_rest_is_shared() -> None:
    shares = split_by_weight(problem(3, 20, max_shards=[3, 20, 20]), np.array([10.0, 2.0, 1.0]))
    assert shares.tolist() == [3, 11, 6]


@given(cycle_problems(), st.data())
def test_shares_sum_to_all_data_within_bounds(whole: CycleProblem, data: st.DataObject) -> None:
    count = whole.learners
    weights = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=count, max_size=count))
    shares = split_by_weight(whole, np.array(weights))
    assert shares.sum() == whole.shards
    assert np.all((whole.min_shards <= shares) & (shares <= whole.max_shards))

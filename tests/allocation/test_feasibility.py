from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from melisma.allocation import feasibility
from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.equal import equal
from melisma.allocation.feasibility import earliest_deadline_s, require_one_update, require_room
from melisma.allocation.proportional import proportional
from melisma.allocation.staleness import staleness
from melisma.allocation.synchronous import synchronous
from melisma.errors import InfeasibleError, SettingError


def problem(**changes: Any) -> CycleProblem:
    fields: dict[str, Any] = {"train_s": [0.1, 0.8], "ship_s": 0.1, "fixed_s": 0.3}
    return CycleProblem(**(fields | {"deadline_s": 9.5, "shards": 14} | changes))


@pytest.mark.parametrize(
    ("changes", "constraint", "miss", "nearest"),
    [
        ({"min_shards": [9, 7]}, "min_shards", 2, {"shards": 16, "min_shards": 7}),
        ({"max_shards": [5, 6]}, "max_shards", 3, {"shards": 11, "max_shards": 7}),
    ],
)
def test_bounds_that_leave_no_plan_are_infeasible(
    changes: dict[str, Any], constraint: str, miss: float, nearest: dict[str, float]
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        require_room(problem(**changes))
    assert caught.value.constraint == constraint
    assert caught.value.miss == miss
    assert caught.value.nearest == nearest


def test_min_shards_above_all_data_names_the_sum() -> None:
    with pytest.raises(InfeasibleError, match="min_shards of all learners sum to 6, 3 more"):
        require_room(problem(shards=3, min_shards=[1, 5]))


def test_very_large_max_shards_are_feasible() -> None:
    whole = problem(train_s=np.full(5000, 0.1), shards=9000, max_shards=2**53)
    require_room(whole)
    assert require_one_update(whole).max_shards.max() <= 9000
    with pytest.raises(InfeasibleError, match=r"use deadline_s >= 0\.[0-9]+ or"):
        require_one_update(
            problem(train_s=np.full(5000, 0.1), shards=5001, max_shards=2**53, deadline_s=0.55)
        )


def test_bounds_become_the_shards_that_can_be_trained_once() -> None:
    bounded = require_one_update(problem(min_shards=0), least=1)
    assert bounded.min_shards.tolist() == [1, 1]
    assert bounded.max_shards.tolist() == problem().most_shards(1).tolist()


def test_the_deadline_that_is_enough_includes_training_of_min_shards() -> None:
    """A deadline for one shard of one learner is not enough for the min_shards of all."""
    with pytest.raises(InfeasibleError) as caught:
        require_one_update(problem(deadline_s=0.25, min_shards=3))
    enough_s = caught.value.nearest["deadline_s"]
    assert enough_s == pytest.approx(0.3 + 3 * 0.9)
    assert require_one_update(problem(deadline_s=enough_s, min_shards=3)).shards == 14


def test_infeasibility_of_many_learners_is_found_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bisection of the deadline to its last bit would need fifty evaluations."""
    calls = 0

    def count_calls(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return most_shards(self, *arguments)

    most_shards = CycleCosts.most_shards
    monkeypatch.setattr(CycleCosts, "most_shards", count_calls)
    rng = np.random.default_rng(1)
    # Few enough for one call to be one block.
    big = problem(train_s=rng.uniform(0.1, 2, 30_000), deadline_s=20, shards=10**6)
    with pytest.raises(InfeasibleError, match="use deadline_s >= "):
        require_one_update(big)
    assert calls < 20


@pytest.mark.parametrize("scheme", [proportional, synchronous, staleness])
def test_schemes_that_need_costs_say_so(scheme: Callable[[Any], object]) -> None:
    known = CycleProblem(train_s=[1, 2], ship_s=0, fixed_s=0, deadline_s=20, shards=6)
    with pytest.raises(SettingError, match="costs of the learners are unknown"):
        scheme(known.without_costs())


def test_sums_of_bounds_beyond_64_bits_are_exact() -> None:
    many = CycleProblem(
        train_s=np.ones(2048),
        ship_s=0,
        fixed_s=0,
        deadline_s=9,
        shards=5,
        min_shards=2**53,
        max_shards=2**53,
    )
    with pytest.raises(InfeasibleError, match=f"sum to {2**64}, "):
        equal(many, 1)
    with pytest.raises(SettingError, match="shards is 10000000000000; expected at most"):
        CycleProblem(train_s=np.ones(10**6), ship_s=0, fixed_s=0, deadline_s=9, shards=10**13)


@pytest.mark.parametrize("few", [0, 3, 2**16])
def test_no_deadline_before_the_earliest_is_enough(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(feasibility, "SORTED_SHARDS", few)
    rng = np.random.default_rng(2)
    for _ in range(300):
        size = int(rng.integers(1, 9))
        train_s, ship_s, fixed_s = np.round(rng.uniform(0.1, 3, (3, size)), 1)
        costs = CycleCosts(train_s, ship_s, fixed_s, rng.integers(0, 5, size))
        high = rng.integers(1, 60, size)
        low, shards = (
            np.minimum(rng.integers(0, 4, size), high),
            int(rng.integers(1, high.sum() + 1)),
        )

        earliest_s = earliest_deadline_s(costs, low, high, shards)
        for deadline_s, enough in ((earliest_s, True), (float(np.nextafter(earliest_s, 0)), False)):
            most = np.minimum(costs.most_shards(1, deadline_s, 100), high)
            assert bool(np.all(most >= low) and most.sum() >= shards) is enough


def test_the_earliest_deadline_of_costs_below_rounding_is_found() -> None:
    costs = CycleCosts(np.full(2, 1e-25), np.zeros(2), np.full(2, 10.0), held=np.zeros(2, np.int64))
    high = np.array([2**50, 2**50])
    assert earliest_deadline_s(costs, np.array([1, 1]), high, 2**50) == pytest.approx(10.0)

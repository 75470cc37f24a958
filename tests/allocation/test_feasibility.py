from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.equal import equal
from melisma.allocation.feasibility import require_one_update, require_room
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


def test_a_least_share_above_all_data_is_about_the_data() -> None:
    with pytest.raises(InfeasibleError, match="min_shards of all learners come to 6, 3 more"):
        require_room(problem(shards=3, min_shards=[1, 5]))


def test_bounds_as_good_as_none_leave_room() -> None:
    whole = problem(train_s=np.full(5000, 0.1), shards=9000, max_shards=2**53)
    require_room(whole)
    assert require_one_update(whole).max_shards.max() <= 9000
    with pytest.raises(InfeasibleError, match=r"a deadline_s of 0\.[0-9]+ or"):
        require_one_update(
            problem(train_s=np.full(5000, 0.1), shards=5001, max_shards=2**53, deadline_s=0.55)
        )


def test_bounds_become_what_can_be_trained_once() -> None:
    bounded = require_one_update(problem(min_shards=0), least=1)
    assert bounded.min_shards.tolist() == [1, 1]
    assert bounded.max_shards.tolist() == problem().most_shards(1).tolist()


def test_a_deadline_before_any_model_has_arrived_counts_what_follows_it() -> None:
    """A deadline for one shard of one learner would not be enough for the least of all."""
    with pytest.raises(InfeasibleError) as caught:
        require_one_update(problem(deadline_s=0.25, min_shards=3))
    enough_s = caught.value.nearest["deadline_s"]
    assert enough_s == pytest.approx(0.3 + 3 * 0.9)
    assert require_one_update(problem(deadline_s=enough_s, min_shards=3)).shards == 14


def test_who_refuses_many_learners_does_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bisection of the deadline to its last bit would look at all of them fifty times."""
    asked = 0

    def counted(self: Any, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return most_shards(self, *arguments)

    most_shards = CycleCosts.most_shards
    monkeypatch.setattr(CycleCosts, "most_shards", counted)
    rng = np.random.default_rng(1)
    # Few enough for one call to be one block.
    big = problem(train_s=rng.uniform(0.1, 2, 30_000), deadline_s=20, shards=10**6)
    with pytest.raises(InfeasibleError, match="a deadline_s of"):
        require_one_update(big)
    assert asked < 20


@pytest.mark.parametrize("scheme", [proportional, synchronous, staleness])
def test_what_needs_costs_says_that_they_are_not_known(scheme: Callable[[Any], object]) -> None:
    known = CycleProblem(train_s=[1, 2], ship_s=0, fixed_s=0, deadline_s=20, shards=6)
    with pytest.raises(SettingError, match="needs the costs of learners"):
        scheme(known.without_costs())


def test_sums_of_bounds_beyond_64_bits_are_said_as_they_are() -> None:
    many = CycleProblem(
        train_s=np.ones(2048),
        ship_s=0,
        fixed_s=0,
        deadline_s=9,
        shards=5,
        min_shards=2**53,
        max_shards=2**53,
    )
    with pytest.raises(InfeasibleError, match=f"come to {2**64}, "):
        equal(many, 1)
    with pytest.raises(SettingError, match="shards is 10000000000000; expected at most"):
        CycleProblem(train_s=np.ones(10**6), ship_s=0, fixed_s=0, deadline_s=9, shards=10**13)

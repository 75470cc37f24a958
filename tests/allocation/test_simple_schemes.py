"""Equal, proportional, synchronous and DAB: what sets each apart."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.dab import dab, dab_shards
from melisma.allocation.equal import equal
from melisma.allocation.proportional import proportional
from melisma.allocation.synchronous import synchronous
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.problems import cycle_problems, later

SECONDS = st.floats(0.01, 5)


def problem(**changes: Any) -> CycleProblem:
    fields: dict[str, Any] = {
        "train_s": [0.1, 0.2, 0.8],
        "ship_s": 0.1,
        "fixed_s": 0.3,
        "deadline_s": 10,
        "shards": 14,
    }
    return CycleProblem(**(fields | changes))


def test_equal_shares_differ_by_one_and_the_first_take_it() -> None:
    assert equal(problem()).shards.tolist() == [5, 5, 4]
    assert equal(problem(train_s=[0.8, 0.2, 0.1])).shards.tolist() == [5, 5, 4]


def test_equal_shares_go_out_even_if_nobody_is_in_time() -> None:
    plan = equal(problem(deadline_s=0.1))
    assert plan.shards.tolist() == [5, 5, 4]
    assert not plan.updates.any()


def test_equal_without_passes_does_the_updates_that_fit_even_none() -> None:
    plan = equal(problem(deadline_s=4))
    assert plan.updates.tolist() == [6, 3, 1]
    assert equal(problem(deadline_s=3)).updates.tolist() == [4, 2, 0]


def test_equal_with_passes_shows_who_is_late() -> None:
    late = equal(problem(), passes=3).seconds(problem()) > 10
    assert late.tolist() == [False, False, True]


def test_proportional_shares_follow_speed() -> None:
    # Seconds a shard are 0.2, 0.3 and 0.9, so speeds are as 9 to 6 to 2.
    assert proportional(problem(shards=17)).shards.tolist() == [9, 6, 2]
    # With four passes 0.5, 0.9 and 3.3.
    assert proportional(problem(shards=20), passes=4).shards.tolist() == [12, 6, 2]


def test_synchronous_does_the_most_updates_for_which_there_is_room() -> None:
    plan = synchronous(problem())
    assert len(set(plan.updates.tolist())) == 1
    updates = int(plan.updates[0])
    assert problem().most_shards(updates).sum() >= 14
    assert problem().most_shards(updates + 1).sum() < 14


@given(cycle_problems(), st.floats(1, 5))
def test_synchronous_updates_never_fall_with_a_later_deadline(
    whole: CycleProblem, factor: float
) -> None:
    try:
        now = synchronous(whole).updates.max()
    except InfeasibleError:
        return
    assert synchronous(later(whole, factor)).updates.max() >= now


def test_synchronous_leaves_out_who_need_not_take_part() -> None:
    plan = synchronous(problem(train_s=[0.1, 0.2, 30], min_shards=0))
    assert plan.shards[2] == plan.updates[2] == 0


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 9), st.integers(0, 30), st.floats(0.05, 300))
def test_dab_never_predicts_past_the_deadline_and_one_more_shard_would(
    train_s: float, ship_s: float, fixed_s: float, passes: int, held: int, deadline_s: float
) -> None:
    asked = dab_shards(deadline_s, train_s, ship_s, fixed_s, passes, held)
    train, ship, fixed = (np.array([value]) for value in (train_s, ship_s, fixed_s))
    costs = CycleCosts(train, ship, fixed, np.array([held]))
    assert asked == 0 or costs.seconds(asked, passes) < deadline_s
    assert costs.seconds(asked + 1, passes) >= deadline_s


@given(SECONDS, SECONDS, SECONDS, st.floats(0.05, 300), st.floats(1, 3))
def test_dab_grows_with_the_deadline_and_falls_with_each_cost(
    train_s: float, ship_s: float, fixed_s: float, deadline_s: float, factor: float
) -> None:
    asked = dab_shards(deadline_s, train_s, ship_s, fixed_s, 2)
    assert dab_shards(deadline_s * factor, train_s, ship_s, fixed_s, 2) >= asked
    assert dab_shards(deadline_s, train_s * factor, ship_s, fixed_s, 2) <= asked
    assert dab_shards(deadline_s, train_s, ship_s * factor, fixed_s, 2) <= asked
    assert dab_shards(deadline_s, train_s, ship_s, fixed_s * factor, 2) <= asked
    assert dab_shards(deadline_s, train_s, ship_s, fixed_s, 3) <= asked
    assert dab_shards(deadline_s, train_s, ship_s, fixed_s, 2, held=5) >= asked


def test_dab_ends_strictly_before_the_deadline() -> None:
    assert dab_shards(10, train_s=1, ship_s=0, fixed_s=0, passes=1) == 9


def test_dab_takes_no_part_when_the_model_alone_is_too_much() -> None:
    assert dab_shards(2, train_s=1, ship_s=0, fixed_s=3, passes=1) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_s": float("nan")}, "train_s is nan; expected a finite number"),
        ({"passes": 0}, "passes is 0; expected at least 1"),
        ({"deadline_s": -1}, "deadline_s is -1; expected more than 0"),
    ],
)
def test_dab_names_what_cannot_work(changes: dict[str, float], message: str) -> None:
    arguments = {"deadline_s": 10, "train_s": 1, "ship_s": 0, "fixed_s": 0, "passes": 1}
    with pytest.raises(SettingError, match=message):
        dab_shards(**(arguments | changes))  # type: ignore[arg-type]


@given(cycle_problems(), st.integers(1, 5))
def test_dab_of_all_is_what_each_asks_for_itself(whole: CycleProblem, passes: int) -> None:
    asked = [
        dab_shards(
            whole.deadline_s,
            float(whole.train_s[k]),
            float(whole.ship_s[k]),
            float(whole.fixed_s[k]),
            passes,
            int(whole.held[k]),
        )
        for k in range(whole.learners)
    ]
    given = np.minimum(asked, np.minimum(whole.max_shards, whole.shards))
    if not any(given):
        with pytest.raises(InfeasibleError):
            dab(whole, passes)
        with pytest.raises(InfeasibleError, match="nobody who may take a shard asks for one"):
            dab(whole.without_costs(), passes, bounds=asked)
        return
    assert dab(whole, passes).shards.tolist() == given.tolist()
    # The orchestrator needs no more than what was asked for.
    assert dab(whole.without_costs(), passes, bounds=asked).shards.tolist() == given.tolist()


def test_dab_that_nobody_can_take_part_in_says_which_deadline_would_do() -> None:
    with pytest.raises(InfeasibleError) as caught:
        dab(problem(deadline_s=0.5), passes=9)
    assert caught.value.nearest["deadline_s"] == pytest.approx(0.3 + 0.1 + 0.9)
    assert dab(problem(**caught.value.nearest), passes=9).shards.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("deadline_s", "said", "nearest"),
    [
        (10, "max_shards is 0 for all learners; max_shards of 1 would do", {"max_shards": 1}),
        (0.3, "and nobody can train a shard 1 times in less than 0.3 s; no change of one", {}),
    ],
)
def test_dab_without_anybody_who_may_take_a_shard_is_no_plan(
    deadline_s: float, said: str, nearest: dict[str, float]
) -> None:
    nobody = problem(max_shards=0, min_shards=0, deadline_s=deadline_s)
    with pytest.raises(InfeasibleError, match=said) as caught:
        dab(nobody, passes=1)
    assert caught.value.constraint == "max_shards"
    assert caught.value.nearest == nearest


def test_dab_knows_neither_costs_nor_bounds_of_a_blind_problem() -> None:
    with pytest.raises(SettingError, match="needs the bounds that learners report"):
        dab(problem().without_costs(), passes=1)
    with pytest.raises(SettingError, match=r"bounds has shape \(2,\); expected \(3,\)"):
        dab(problem().without_costs(), passes=1, bounds=[1, 2])


def test_dab_may_leave_data_for_a_later_cycle() -> None:
    assert dab(problem(max_shards=2), passes=1).shards.sum() == 6


def test_dab_asks_for_no_least_share() -> None:
    assert dab(problem(shards=2), passes=1).shards.tolist() == [2, 2, 2]


@pytest.mark.parametrize("scheme", [equal, proportional])
@pytest.mark.parametrize("passes", [0, -1, 2.5])
def test_passes_that_are_none_are_refused(scheme: Any, passes: Any) -> None:
    with pytest.raises(SettingError, match="passes is"):
        scheme(problem(), passes)

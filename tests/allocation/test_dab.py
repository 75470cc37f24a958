import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.dab import dab, dab_shards
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.problems import cycle_problems, three_learners

SECONDS = st.floats(0.01, 5)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 9), st.integers(0, 30), st.floats(0.05, 300))
def test_dab_never_predicts_past_the_deadline_and_one_more_shard_would(
    train_s: float, ship_s: float, fixed_s: float, passes: int, held: int, deadline_s: float
) -> None:
    requested = dab_shards(deadline_s, train_s, ship_s, fixed_s, passes, held)
    train, ship, fixed = (np.array([value]) for value in (train_s, ship_s, fixed_s))
    costs = CycleCosts(train, ship, fixed, np.array([held]))
    assert requested == 0 or costs.seconds(requested, passes) < deadline_s
    assert costs.seconds(requested + 1, passes) >= deadline_s


@given(SECONDS, SECONDS, SECONDS, st.floats(0.05, 300), st.floats(1, 3))
def test_dab_grows_with_the_deadline_and_falls_with_each_cost(
    train_s: float, ship_s: float, fixed_s: float, deadline_s: float, factor: float
) -> None:
    requested = dab_shards(deadline_s, train_s, ship_s, fixed_s, 2)
    assert dab_shards(deadline_s * factor, train_s, ship_s, fixed_s, 2) >= requested
    assert dab_shards(deadline_s, train_s * factor, ship_s, fixed_s, 2) <= requested
    assert dab_shards(deadline_s, train_s, ship_s * factor, fixed_s, 2) <= requested
    assert dab_shards(deadline_s, train_s, ship_s, fixed_s * factor, 2) <= requested
    assert dab_shards(deadline_s, train_s, ship_s, fixed_s, 3) <= requested
    assert dab_shards(deadline_s, train_s, ship_s, fixed_s, 2, held=5) >= requested


def test_dab_ends_strictly_before_the_deadline() -> None:
    assert dab_shards(10, train_s=1, ship_s=0, fixed_s=0, passes=1) == 9


def test_dab_requests_nothing_if_the_model_alone_takes_too_long() -> None:
    assert dab_shards(2, train_s=1, ship_s=0, fixed_s=3, passes=1) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_s": float("nan")}, "train_s is nan; expected a finite number"),
        ({"passes": 0}, "passes is 0; expected at least 1"),
        ({"deadline_s": -1}, "deadline_s is -1; expected more than 0"),
    ],
)
def test_dab_names_the_invalid_argument(changes: dict[str, float], message: str) -> None:
    arguments = {"deadline_s": 10, "train_s": 1, "ship_s": 0, "fixed_s": 0, "passes": 1}
    with pytest.raises(SettingError, match=message):
        dab_shards(**(arguments | changes))  # type: ignore[arg-type]


@given(cycle_problems(), st.integers(1, 5))
def test_dab_for_all_learners_equals_each_request(problem: CycleProblem, passes: int) -> None:
    requested = [
        dab_shards(
            problem.deadline_s,
            float(problem.train_s[k]),
            float(problem.ship_s[k]),
            float(problem.fixed_s[k]),
            passes,
            int(problem.held[k]),
        )
        for k in range(problem.learners)
    ]
    given = np.minimum(requested, np.minimum(problem.max_shards, problem.shards))
    if not any(given):
        with pytest.raises(InfeasibleError):
            dab(problem, passes)
        with pytest.raises(InfeasibleError, match="no learner that may take a shard requests one"):
            dab(problem.without_costs(), passes, bounds=requested)
        return
    assert dab(problem, passes).shards.tolist() == given.tolist()
    # The orchestrator needs no more than the requests.
    assert dab(problem.without_costs(), passes, bounds=requested).shards.tolist() == given.tolist()


def test_dab_without_participants_names_the_deadline_that_is_enough() -> None:
    with pytest.raises(InfeasibleError) as caught:
        dab(three_learners(deadline_s=0.5), passes=9)
    assert caught.value.nearest["deadline_s"] == pytest.approx(0.3 + 0.1 + 0.9)
    assert dab(three_learners(**caught.value.nearest), passes=9).shards.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("deadline_s", "message", "nearest"),
    [
        (10, "max_shards is 0 for all learners; use max_shards = 1", {"max_shards": 1}),
        (
            0.3,
            "and no learner can train a shard 1 times in less than 0.3 s; no change of a single",
            {},
        ),
    ],
)
def test_dab_is_infeasible_if_no_learner_may_take_a_shard(
    deadline_s: float, message: str, nearest: dict[str, float]
) -> None:
    barred = three_learners(max_shards=0, min_shards=0, deadline_s=deadline_s)
    with pytest.raises(InfeasibleError, match=message) as caught:
        dab(barred, passes=1)
    assert caught.value.constraint == "max_shards"
    assert caught.value.nearest == nearest


def test_dab_without_costs_needs_bounds() -> None:
    with pytest.raises(SettingError, match="dab has neither bounds nor costs"):
        dab(three_learners().without_costs(), passes=1)
    with pytest.raises(SettingError, match=r"bounds has shape \(2,\); expected \(3,\)"):
        dab(three_learners().without_costs(), passes=1, bounds=[1, 2])


def test_dab_may_leave_data_for_a_later_cycle() -> None:
    assert dab(three_learners(max_shards=2), passes=1).shards.sum() == 6


def test_dab_ignores_min_shards() -> None:
    assert dab(three_learners(shards=2), passes=1).shards.tolist() == [2, 2, 2]

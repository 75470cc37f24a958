import dataclasses
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.allocation import staleness, synchronous
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.problems import cycle_problems
from tests.lanes import cases

Method = Literal["exact", "sai", "numerical"]


def problem(**changes: Any) -> CycleProblem:
    fields: dict[str, Any] = {
        "train_s": [0.1, 0.8],
        "ship_s": 0.1,
        "fixed_s": 0.3,
        "deadline_s": 9.5,
        "shards": 14,
    }
    return CycleProblem(**(fields | changes))


def test_scalars_are_broadcast_to_all_learners() -> None:
    found = problem(min_shards=2, held=[0, 3])
    assert found.learners == 2
    assert found.ship_s.tolist() == [0.1, 0.1]
    assert found.min_shards.tolist() == [2, 2]
    assert found.max_shards.tolist() == [14, 14]
    assert found.held.tolist() == [0, 3]


def test_a_problem_copies_its_arrays() -> None:
    train_s = np.array([0.1, 0.8])
    found = problem(train_s=train_s)
    train_s[0] = 99.0
    assert found.train_s[0] == 0.1
    with pytest.raises(ValueError, match="read-only"):
        found.train_s[0] = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_s": [0.1, float("nan")]}, r"train_s\[1\] is nan; expected a finite number"),
        ({"train_s": [0.1, 0.0]}, r"train_s\[1\] is 0.0; expected at least 1e-30"),
        ({"ship_s": -1}, "ship_s is -1; expected at least 0"),
        ({"ship_s": [-1, -2]}, r"ship_s\[0\] is -1 \(and 1 more like it\); expected at least 0"),
        ({"ship_s": [1, 2, 3]}, r"shapes differ: train_s \(2,\), ship_s \(3,\)"),
        ({"train_s": [[0.1], [0.2]]}, "have 2 axes; expected at most 1"),
        ({"train_s": []}, "are empty; expected at least one learner"),
        ({"train_s": "fast"}, "train_s is 'fast'; expected a number or an array of numbers"),
        ({"train_s": True}, "train_s is True; expected a number"),
        ({"train_s": [[1], [1, 2]]}, "train_s has rows of unequal length"),
        ({"shards": 0}, "shards is 0; expected at least 1"),
        ({"shards": 2.5}, "shards is 2.5; expected a whole number"),
        ({"shards": [7, 7]}, r"shards has shape \(2,\); expected one number for all learners"),
        ({"shards": 2**60}, "shards is 1152921504606846976; expected at most"),
        ({"deadline_s": 0}, "deadline_s is 0; expected more than 0"),
        ({"deadline_s": float("inf")}, "deadline_s is inf; expected a finite number"),
        ({"min_shards": -1}, "min_shards is -1; expected at least 0"),
        ({"held": 0.5}, "held is 0.5; expected a whole number"),
        (
            {"min_shards": [4, 3], "max_shards": [3, 2]},
            r"min_shards\[0\] is 4 \(and 1 more like it\); expected at most the max_shards",
        ),
    ],
)
def test_invalid_fields_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        problem(**changes)


def test_without_a_largest_share_a_learner_may_take_its_least() -> None:
    assert problem(shards=3, min_shards=[1, 5]).max_shards.tolist() == [3, 5]


def test_a_problem_without_costs_keeps_its_bounds() -> None:
    known = problem(min_shards=2, held=[0, 3])
    blind = known.without_costs()
    assert known.has_costs
    assert not blind.has_costs
    assert not blind.reorder(np.array([1, 0])).has_costs
    assert blind.reorder(np.array([1, 0])).held.tolist() == [3, 0]
    assert np.isnan(blind.seconds(1, 1)).all()
    assert known.seconds(1, 1).tolist() == pytest.approx([0.5, 1.1])


def test_updates_that_fit_need_costs() -> None:
    with pytest.raises(
        SettingError,
        match="costs of the learners are unknown, so the passes that fit are too; set passes",
    ):
        CyclePlan.from_shards(problem().without_costs(), np.array([7, 7]), None)
    assert CyclePlan.from_shards(
        problem().without_costs(), np.array([7, 7]), 2
    ).updates.tolist() == [2, 2]


def test_a_plan_predicts_by_the_cost_model() -> None:
    plan = CyclePlan([10, 4], [5, 2])
    assert plan.seconds(problem()).tolist() == pytest.approx([0.3 + 1 + 5, 0.3 + 0.4 + 6.4])


@pytest.mark.parametrize("wrong", [[-1, 2], [0.5, 1]])
def test_a_plan_holds_whole_numbers(wrong: list[float]) -> None:
    with pytest.raises(SettingError, match="shards"):
        CyclePlan(wrong, [1, 1])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=9))
def test_staleness_is_taken_over_all_pairs_with_shards(given_out: list[tuple[int, int]]) -> None:
    plan = CyclePlan(*zip(*given_out, strict=True))
    done = [updates for shards, updates in given_out if shards]
    pairs = [abs(one - other) for one, other in combinations(done, 2)] or [0]
    assert plan.max_staleness == max(pairs)
    assert plan.average_staleness == pytest.approx(sum(pairs) / len(pairs))


def test_average_staleness_of_many_fast_learners_does_not_overflow() -> None:
    # 100,000 learners without an update beside as many with 2**31.
    plan = CyclePlan(shards=1, updates=np.repeat([0, 2**31], 100_000))
    assert plan.average_staleness == pytest.approx(2**31 * 100_000 / 199_999)
    spread = CyclePlan(shards=1, updates=np.repeat([1, 2**31 + 1], 100_000))
    assert spread.average_staleness == pytest.approx(2**31 * 100_000 / 199_999)


def with_overlap(problem: CycleProblem) -> CycleProblem:
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return CycleProblem(**fields | {"overlap": True})


@pytest.mark.parametrize("method", ["exact", "sai", "numerical"])
@given(cycle_problems())
@settings(max_examples=cases(40), deadline=None)
def test_staleness_with_overlap_ends_in_time(method: Method, problem: CycleProblem) -> None:
    overlapped = with_overlap(problem)
    try:
        plan = staleness(overlapped, method=method)
    except InfeasibleError:
        return
    assert plan.shards.sum() == problem.shards
    assert np.all(plan.seconds(overlapped) <= problem.deadline_s)


@given(cycle_problems())
def test_overlap_allows_as_many_common_updates_or_more(problem: CycleProblem) -> None:
    try:
        before = synchronous(problem)
    except InfeasibleError:
        return
    after = synchronous(with_overlap(problem))
    assert after.updates.max() >= before.updates.max()
    assert np.all(after.seconds(with_overlap(problem)) <= problem.deadline_s)

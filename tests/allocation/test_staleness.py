from itertools import product
from typing import Any

import numpy as np
import pytest

from melisma.allocation.checks import MIN_COST_S
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.equal import equal
from melisma.allocation.staleness import staleness
from melisma.allocation.synchronous import synchronous
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.problems import random_problem
from tests.lanes import cases


def updates_that_fit(problem: CycleProblem, learner: int, shards: int) -> int:
    """Count the updates one by one by the cost model."""
    done = 0
    while True:
        shipped = max(0, shards - int(problem.held[learner]))
        seconds = float(problem.fixed_s[learner]) + float(problem.ship_s[learner]) * shipped
        seconds += float(problem.train_s[learner]) * (done + 1) * shards
        if seconds > problem.deadline_s:
            return done
        done += 1


def brute_force(problem: CycleProblem) -> tuple[int, int] | None:
    """Return the least spread, and then the largest least updates, of all allocations."""
    choices = []
    for learner in range(problem.learners):
        low, high = max(1, int(problem.min_shards[learner])), int(problem.max_shards[learner])
        fitting = ((d, updates_that_fit(problem, learner, d)) for d in range(low, high + 1))
        choices.append([(d, done) for d, done in fitting if done >= 1])
    best = None
    for allocation in product(*choices):
        if sum(d for d, _ in allocation) == problem.shards:
            done = [updates for _, updates in allocation]
            key = (max(done) - min(done), -min(done))
            best = key if best is None else min(best, key)
    return None if best is None else (best[0], -best[1])


@pytest.mark.parametrize("seed", range(8))
def test_exact_is_optimal_among_all_allocations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    compared = infeasible = 0
    for problem in filter(None, (random_problem(rng) for _ in range(cases(700)))):
        best = brute_force(problem)
        try:
            plan = staleness(problem)
        except InfeasibleError:
            assert best is None, problem
            infeasible += 1
            continue
        assert best == (plan.max_staleness, plan.updates.min()), problem
        assert plan.shards.sum() == problem.shards
        compared += 1
    assert compared > cases(700) // 3
    assert infeasible > cases(700) // 24


def test_two_separate_bisections_would_miss_the_optimum_here() -> None:
    problem = CycleProblem(
        train_s=[0.1, 0.8], ship_s=[0.1, 0.5], fixed_s=[0.3, 0.1], deadline_s=9.5, shards=14
    )
    assert staleness(problem).max_staleness == 1


def paper_problem(learners: int, deadline_s: float) -> CycleProblem:
    """Return the setting of Mohammad and Sorour: 2.4 GHz and 700 MHz, 8 bits per feature."""
    power_w, noise_w = 10 ** ((23 - 30) / 10), 5e6 * 10 ** ((-174 - 30) / 10)
    gain = 10 ** (-(7 + 2.1 * np.log10(50)) / 10)
    rate_bps = 5e6 * np.log2(1 + power_w * gain / noise_w)
    clock_hz = np.where(np.arange(learners) % 2 == 0, 2.4e9, 700e6)
    return CycleProblem(
        train_s=1_123_736 / clock_hz,
        ship_s=784 * 8 / rate_bps,
        fixed_s=2 * 8_974_080 / rate_bps,
        deadline_s=deadline_s,
        shards=60_000,
    )


def test_the_papers_twenty_nodes_reach_staleness_0_where_equal_shares_have_4() -> None:
    problem = paper_problem(20, 7.5)
    assert equal(problem).max_staleness == 4
    assert equal(problem).average_staleness == pytest.approx(2.11, abs=0.005)
    assert staleness(problem).max_staleness == 0


def test_without_bounds_least_staleness_is_the_synchronous_plan_at_the_papers_size() -> None:
    for learners in (10, 14, 15, 18, 20):
        problem = paper_problem(learners, 7.5)
        assert staleness(problem).updates.tolist() == synchronous(problem).updates.tolist()


@pytest.mark.parametrize("method", ["numerical", "sai"])
def test_no_other_method_beats_exact(method: Any) -> None:
    rng = np.random.default_rng(11)
    compared = equally = 0
    for problem in filter(None, (random_problem(rng) for _ in range(cases(150)))):
        try:
            best = staleness(problem)
        except InfeasibleError:
            continue
        found = staleness(problem, method=method)
        assert found.max_staleness >= best.max_staleness
        assert found.updates.min() >= 1
        if found.max_staleness == best.max_staleness:
            assert found.updates.min() <= best.updates.min()
            equally += 1
        compared += 1
    assert compared > cases(150) // 3
    assert equally > cases(150) // 8


@pytest.mark.parametrize("method", ["numerical", "sai"])
def test_the_papers_methods_reach_staleness_1_or_less_on_its_setting(method: Any) -> None:
    assert staleness(paper_problem(20, 7.5), method=method).max_staleness <= 1


def test_a_learner_that_cannot_do_one_update_is_named() -> None:
    problem = CycleProblem(train_s=[1, 30], ship_s=0, fixed_s=0, deadline_s=20, shards=10)
    with pytest.raises(InfeasibleError, match=r"1 of 2 learners \(learner 1\)") as caught:
        staleness(problem)
    assert caught.value.nearest["deadline_s"] == 30


def test_more_learners_than_shards_is_infeasible() -> None:
    problem = CycleProblem(
        train_s=[1, 1, 1], ship_s=0, fixed_s=0, deadline_s=20, shards=2, min_shards=0
    )
    # The caller set no min_shards of 1, so the message does not name it.
    with pytest.raises(
        InfeasibleError, match="one shard for each learner sums to 3, 1 more than the 2"
    ) as caught:
        staleness(problem)
    assert (caught.value.constraint, caught.value.nearest) == ("shards", {"shards": 3})


def test_a_learner_that_may_take_none_is_named() -> None:
    problem = CycleProblem(
        train_s=[1, 1, 1],
        ship_s=0,
        fixed_s=0,
        deadline_s=20,
        shards=9,
        min_shards=0,
        max_shards=[5, 0, 5],
    )
    message = r"learner 1\) may take none \(max_shards\); use max_shards = 1 or leave them out"
    with pytest.raises(InfeasibleError, match=message) as caught:
        staleness(problem)
    assert caught.value.learners == (1,)
    assert caught.value.nearest == {"max_shards": 1}


@pytest.mark.parametrize("method", ["exact", "numerical", "sai"])
def test_tiny_costs_give_every_learner_shards_that_sum_to_all(method: Any) -> None:
    """Costs below 4e-9 s: more updates fit into the deadline than are counted."""
    rng = np.random.default_rng(5)
    for smallest in [-11.0, np.log10(MIN_COST_S)] * cases(20):
        learners = int(rng.integers(2, 6))
        problem = CycleProblem(
            train_s=10 ** rng.uniform(smallest, np.log10(4e-9), learners),
            ship_s=rng.choice([0.0, 4e-9, 0.01]),
            fixed_s=rng.uniform(0.0, 0.2, learners),
            deadline_s=10.0,
            shards=int(rng.integers(learners, 40)),
            held=rng.integers(0, 5, learners),
        )
        plan = staleness(problem, method=method)
        assert plan.shards.sum() == problem.shards, problem
        assert (plan.shards >= 1).all(), problem
        assert (plan.updates >= 1).all(), problem
        assert (plan.seconds(problem) <= problem.deadline_s).all(), problem


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(SettingError, match="expected one of exact, numerical, sai"):
        staleness(paper_problem(4, 30), method="magic")  # type: ignore[arg-type]


def test_many_learners_get_the_staleness_of_a_reference() -> None:
    """With two classes of learners, the plan of many repeats that of two."""
    few = CycleProblem(
        train_s=[0.01, 0.03], ship_s=0.002, fixed_s=0.5, deadline_s=10, shards=60, max_shards=50
    )
    pairs = 30_000
    large = CycleProblem(
        train_s=np.tile([0.01, 0.03], pairs),
        ship_s=0.002,
        fixed_s=0.5,
        deadline_s=10,
        shards=60 * pairs,
        max_shards=50,
    )
    assert staleness(large).max_staleness == staleness(few).max_staleness


def test_identical_learners_with_two_shards_each_are_planned_quickly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are thousands of candidate windows here; trying each would be slow."""
    rng = np.random.default_rng(3)
    problem = CycleProblem(
        train_s=1e-4 * np.exp(0.1 * rng.normal(size=5_000)),
        ship_s=0.005,
        fixed_s=rng.uniform(0.1, 1.0, 5_000),
        deadline_s=10.0,
        shards=10_000,
    )
    calls = 0

    def count_calls(self: CycleProblem, passes: Any) -> Any:
        nonlocal calls
        calls += 1
        return most_shards(self, passes)

    most_shards = CycleProblem.most_shards
    monkeypatch.setattr(CycleProblem, "most_shards", count_calls)
    assert staleness(problem).max_staleness > 10_000
    assert calls < 150

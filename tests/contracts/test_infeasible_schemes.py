"""The changes that an InfeasibleError names are enough, and no smaller change is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.schemes import SCHEMES, PlanInputs, Scheme
from melisma.errors import InfeasibleError
from tests.lanes import cases

ROWS = [row for row in SCHEMES.values() if row.problem == "cycle"]
every_scheme = pytest.mark.parametrize("scheme", ROWS, ids=lambda row: row.name)


def tight_problem(rng: np.random.Generator) -> CycleProblem:
    """Return a problem that often has no plan, for one reason or several."""
    learners = int(rng.integers(1, 5))
    low = rng.integers(0, 5, learners) * int(rng.integers(0, 2))
    # Costs of one digit make ends exactly on the deadline common.
    train, ship, fixed = (np.round(rng.uniform(0.1, top, learners), 1) for top in (1.5, 1.0, 2.0))
    return CycleProblem(
        train_s=train,
        ship_s=ship * int(rng.integers(0, 2)),
        fixed_s=fixed,
        deadline_s=float(np.round(rng.uniform(0.2, 9), 1)),
        shards=int(rng.integers(1, 25)),
        min_shards=low,
        max_shards=low + rng.integers(0, rng.choice([2, 6, 25]), learners),
        held=rng.integers(0, 8, learners),
    )


def plan_error(scheme: Scheme, problem: CycleProblem) -> InfeasibleError | None:
    try:
        scheme.plan(problem, PlanInputs(passes=2))
    except InfeasibleError as error:
        return error
    return None


def changed(problem: CycleProblem, name: str, value: float) -> CycleProblem:
    """Return the problem with a setting changed; bounds are clipped to the value."""
    new: Any = value
    if name == "min_shards":
        new = np.minimum(problem.min_shards, int(value))
    elif name == "max_shards":
        new = np.maximum(problem.max_shards, int(value))
    return replace(problem, **{name: new})


def slightly_less(problem: CycleProblem, name: str, value: float) -> float:
    """Return the value one step closer to the problem's own."""
    if name == "deadline_s":
        return float(np.nextafter(value, 0))
    fewer = name == "min_shards" or (name == "shards" and value < problem.shards)
    return value + 1 if fewer else value - 1


# The most extreme values of each setting; there may be too few shards, or too many.
EXTREMES: dict[str, list[float]] = {
    "deadline_s": [1e9],
    "shards": list(range(1, 40)),
    "min_shards": [0],
    "max_shards": [1000],
}


# In federated learning data and bounds cannot be changed.
FEDERATED_FIXED = {"shards", "max_shards"}


@every_scheme
def test_named_changes_are_enough_and_no_smaller_ones_are(scheme: Scheme) -> None:
    rng, tried, several = np.random.default_rng(4), dict.fromkeys(EXTREMES, 0), 0
    for problem in (tight_problem(rng) for _ in range(cases(150))):
        error = plan_error(scheme, problem)
        if error is None:
            continue
        assert error.miss > 0
        several += ", and " in str(error)
        for name, value in error.nearest.items():
            tried[name] += 1
            assert plan_error(scheme, changed(problem, name, value)) is None, (problem, name)
            less = slightly_less(problem, name, value)
            assert plan_error(scheme, changed(problem, name, less)), (problem, name)
        federated = np.array_equal(problem.held, problem.max_shards)
        for name in (
            EXTREMES.keys() - error.nearest.keys() - (FEDERATED_FIXED if federated else set())
        ):
            for value in EXTREMES[name]:
                assert plan_error(scheme, changed(problem, name, value)), (problem, name, value)
        if error.nearest:
            assert "; use " in str(error)
        else:
            endings = ("; no change of a single setting is enough", "; leave them out")
            assert str(error).endswith(endings)
    if scheme.keeps_deadline:
        assert tried["deadline_s"] >= cases(10)
        assert several >= cases(5) or not scheme.hands_out_all
    if scheme.hands_out_all:
        assert min(tried["shards"], tried["max_shards"]) >= cases(5)


@every_scheme
def test_leaving_learners_out_is_advised_exactly_where_it_helps(scheme: Scheme) -> None:
    rng, advised, not_advised = np.random.default_rng(5), 0, 0
    for problem in (tight_problem(rng) for _ in range(cases(300))):
        error = plan_error(scheme, problem)
        if error is None or not error.learners:
            continue
        rest = np.delete(np.arange(problem.learners), error.learners)
        helps = bool(rest.size) and plan_error(scheme, problem.reorder(rest)) is None
        assert helps == ("leave them out" in str(error)), problem
        advised, not_advised = advised + helps, not_advised + (not helps)
    if scheme.hands_out_all and scheme.keeps_deadline:
        assert advised >= cases(5)
        assert not_advised >= cases(5)


@pytest.mark.parametrize("scheme", ["synchronous", "staleness"])
def test_all_violated_constraints_are_named(scheme: str) -> None:
    both = CycleProblem(
        train_s=[1, 9], ship_s=0, fixed_s=0, deadline_s=5, shards=3, min_shards=2, max_shards=2
    )
    error = plan_error(SCHEMES[scheme], both)
    assert error is not None
    assert str(error).startswith(
        "min_shards of all learners sum to 4, 1 more than the 3 shards, "
        "and 1 of 2 learners (learner 1) cannot train their min_shards once by 5 s"
    )
    assert "deadline_s" not in error.nearest
    assert "shards" not in error.nearest

"""Problems for the tests of schemes: random ones from a seed, and hypothesis strategies."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.feasibility import earliest_deadline_s
from melisma.errors import SettingError

COSTS = st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 2.5]) | st.floats(0.01, 5.0)


def three_learners(**changes: Any) -> CycleProblem:
    """Return a problem of three learners with 14 shards in 10 seconds."""
    fields: dict[str, Any] = {
        "train_s": [0.1, 0.2, 0.8],
        "ship_s": 0.1,
        "fixed_s": 0.3,
        "deadline_s": 10,
        "shards": 14,
    }
    return CycleProblem(**(fields | changes))


def random_problem(rng: np.random.Generator) -> CycleProblem | None:
    """Return a small problem with ties, tight bounds and held shards; None if bounds cross."""
    learners = int(rng.integers(1, 5))
    shards = int(rng.integers(learners, 16))
    # Costs of one digit make ties, and ends exactly on the deadline, common.
    train, ship, fixed = (np.round(rng.uniform(0.1, top, learners), 1) for top in (1.5, 1.0, 2.0))
    fields: dict[str, Any] = {"train_s": train, "ship_s": ship, "fixed_s": fixed}
    if rng.random() < 0.3:
        fields["ship_s"] = 0.0
    if rng.random() < 0.5:
        fields["min_shards"] = rng.integers(0, 4, learners)
    if rng.random() < 0.5:
        fields["max_shards"] = rng.integers(1, shards + 1, learners)
    if rng.random() < 0.4:
        fields["held"] = rng.integers(0, 8, learners)
    try:
        return CycleProblem(deadline_s=float(rng.uniform(2, 14)), shards=shards, **fields)
    except SettingError:
        return None


@st.composite
def cycle_problems(draw: st.DrawFn) -> CycleProblem:
    """Draw problems of up to eight learners whose bounds admit all data."""
    learners = draw(st.integers(1, 8))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=learners, max_size=learners))

    low = np.array(each(st.integers(0, 3)))
    high = low + np.array(each(st.integers(0, 60)))
    high[0] += max(0, 1 - int(high.sum()))
    shards = draw(st.integers(max(1, int(low.sum())), int(high.sum())))
    problem = CycleProblem(
        train_s=each(COSTS),
        ship_s=each(COSTS | st.just(0.0)),
        fixed_s=each(st.floats(0, 4)),
        deadline_s=1.0,
        shards=shards,
        min_shards=low,
        max_shards=high,
        held=each(st.integers(0, 10)),
    )
    # Some deadlines are too early for one update of all, most are later.
    needed_s = earliest_deadline_s(problem.costs, low, high, shards)
    return later(problem, needed_s * draw(st.floats(0.5, 6)))


def later(problem: CycleProblem, factor: float) -> CycleProblem:
    return replace(problem, deadline_s=problem.deadline_s * factor)


def sorted_shares(problem: CycleProblem, shards: Any) -> list[tuple[float, ...]]:
    """Return all fields of each learner with its share, sorted."""
    p = problem
    costs = (p.train_s, p.ship_s, p.fixed_s) if p.has_costs else ()
    columns = (*costs, p.held, p.min_shards, p.max_shards, shards)
    return sorted(zip(*(np.asarray(column).tolist() for column in columns), strict=True))

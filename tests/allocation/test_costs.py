import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from melisma.allocation.costs import BLOCK_LEARNERS, CycleCosts, cautious_costs
from melisma.allocation.dab import dab_bounds
from melisma.fleet.estimates import Estimate, Estimates

SECONDS = st.floats(0.001, 10)


def costs(*, overlap: bool = False, **fields: float) -> CycleCosts:
    whole = {"train_s": 0.5, "ship_s": 0.25, "fixed_s": 1.0, "held": 0} | fields
    held = np.array([whole.pop("held")], dtype=np.int64)
    train_s, ship_s, fixed_s = (
        np.array([whole[name]]) for name in ("train_s", "ship_s", "fixed_s")
    )
    return CycleCosts(train_s, ship_s, fixed_s, held, overlap)


def test_seconds_are_those_of_the_cost_model() -> None:
    assert costs().seconds(4, 3) == pytest.approx(1.0 + 0.25 * 4 + 0.5 * 3 * 4)


def test_held_shards_are_not_shipped() -> None:
    assert costs(held=3).seconds(4, 3) == pytest.approx(1.0 + 0.25 * 1 + 0.5 * 3 * 4)
    assert costs(held=9).seconds(4, 3) == pytest.approx(1.0 + 0.5 * 3 * 4)


def test_a_learner_without_shards_takes_no_time() -> None:
    assert costs().seconds(0, 3) == 0.0


def test_with_overlap_only_the_slower_of_fetching_and_training_counts() -> None:
    assert costs(overlap=True).seconds(4, 3) == pytest.approx(1.0 + 0.25 + 0.5 * 3 * 4)
    assert costs(overlap=True, ship_s=9).seconds(4, 3) == pytest.approx(1.0 + 9 * 4)
    assert costs(overlap=True, ship_s=9, held=1).seconds(4, 3) == pytest.approx(1.0 + 9 * 3)
    assert costs(overlap=True, held=4).seconds(4, 3) == pytest.approx(1.0 + 0.5 * 3 * 4)
    assert costs(overlap=True).seconds(0, 3) == 0.0


@given(
    SECONDS, st.floats(0, 10), SECONDS, st.integers(0, 20), st.integers(1, 9), st.integers(0, 40)
)
def test_seconds_grow_with_shards_and_passes_and_overlap_saves_time(
    train_s: float, ship_s: float, fixed_s: float, held: int, passes: int, shards: int
) -> None:
    for overlap in (False, True):
        learner = costs(train_s=train_s, ship_s=ship_s, fixed_s=fixed_s, held=held, overlap=overlap)
        assert learner.seconds(shards + 1, passes) >= learner.seconds(shards, passes)
        assert learner.seconds(shards, passes + 1) >= learner.seconds(shards, passes)
    one_by_one = costs(train_s=train_s, ship_s=ship_s, fixed_s=fixed_s, held=held)
    assert learner.seconds(shards, passes) <= one_by_one.seconds(shards, passes) * (1 + 1e-12)


OVERLAP = st.booleans()


@given(
    SECONDS, SECONDS, SECONDS, st.integers(0, 20), st.integers(1, 9), st.floats(0.1, 500), OVERLAP
)
def test_one_shard_more_than_the_most_does_not_fit(
    train_s: float,
    ship_s: float,
    fixed_s: float,
    held: int,
    passes: int,
    deadline_s: float,
    overlap: bool,
) -> None:
    learner = costs(train_s=train_s, ship_s=ship_s, fixed_s=fixed_s, held=held, overlap=overlap)
    most = learner.most_shards(passes, deadline_s, 10**7)
    assert learner.seconds(most, passes) <= deadline_s
    assert learner.seconds(most + 1, passes) > deadline_s


@given(
    SECONDS, SECONDS, SECONDS, st.integers(0, 20), st.integers(1, 40), st.floats(0.1, 500), OVERLAP
)
def test_one_update_more_than_the_most_does_not_fit(
    train_s: float,
    ship_s: float,
    fixed_s: float,
    held: int,
    shards: int,
    deadline_s: float,
    overlap: bool,
) -> None:
    learner = costs(train_s=train_s, ship_s=ship_s, fixed_s=fixed_s, held=held, overlap=overlap)
    most = learner.most_updates(shards, deadline_s)
    assert most == 0 or learner.seconds(shards, most) <= deadline_s
    assert learner.seconds(shards, most + 1) > deadline_s


def test_an_end_exactly_on_the_deadline_fits() -> None:
    # 0.1 + 3 * 0.1 is not 0.4 in binary; the same expression decides on both sides.
    learner = costs(train_s=0.1, ship_s=0.0, fixed_s=0.1)
    on_time_s = float(learner.seconds(3, 1)[0])
    assert learner.most_shards(1, on_time_s, 100) == 3
    assert learner.most_updates(3, on_time_s) == 1


def test_blocks_of_learners_give_the_same_result() -> None:
    rng = np.random.default_rng(1)
    size = BLOCK_LEARNERS + 77
    train_s, ship_s, fixed_s = rng.uniform(0.1, 1, (3, size))
    many = CycleCosts(train_s, ship_s, fixed_s, held=rng.integers(0, 5, size))
    shards = many.most_shards(3, 20.0, 1000)
    updates = many.most_updates(shards, 20.0)
    for at in (0, BLOCK_LEARNERS - 1, BLOCK_LEARNERS, size - 1):
        one = many.take(slice(at, at + 1))
        assert shards[at] == one.most_shards(3, 20.0, 1000)
        assert updates[at] == one.most_updates(shards[at : at + 1], 20.0)


@pytest.mark.parametrize("overlap", [False, True])
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 0.99), st.integers(1, 5), st.floats(0.5, 100))
def test_a_bound_by_cautious_costs_is_the_quantile_of_the_whole_cycle(
    overlap: bool, seed: int, caution: float, passes: int, deadline_s: float
) -> None:
    rng = np.random.default_rng(seed)
    train_s, ship_s, fixed_s = (
        Estimate(mean, mean * rng.uniform(0.02, 0.3, 5), rng.uniform(0.2, 4, 5))
        for mean in rng.uniform(0.01, 1, (3, 5))
    )
    held, measured = rng.integers(0, 4, 5), Estimates(train_s, ship_s, fixed_s)
    planned = cautious_costs(
        measured, caution, deadline_s=deadline_s, passes=passes, held=held, overlap=overlap
    )
    bounds = dab_bounds(deadline_s, **planned, passes=passes, held=held, overlap=overlap)
    mean = CycleCosts(train_s.mean, ship_s.mean, fixed_s.mean, held, overlap)

    def quantile_s(shards: NDArray[np.int64]) -> NDArray[np.float64]:
        paths = mean.paths(shards.astype(np.float64), passes)
        seconds = [
            path.seconds(measured.quantile(caution, trained=path.trained, fetched=path.fetched))
            for path in paths
        ]
        return np.asarray(np.max(seconds, axis=0))

    tolerance = 1e-3
    assert np.all((bounds == 0) | (quantile_s(bounds) < deadline_s * (1 + tolerance)))
    assert np.all(quantile_s(bounds + 1) >= deadline_s * (1 - tolerance))


def test_cautious_costs_of_many_learners_equal_those_of_each_alone() -> None:
    rng = np.random.default_rng(2)
    means = rng.uniform(0.01, 1, (3, 6))
    many = Estimates(*(Estimate.from_benchmark(mean) for mean in means))
    planned = cautious_costs(many, 0.9, deadline_s=10.0, passes=2, held=3)
    for learner in range(6):
        one = Estimates(*(Estimate.from_benchmark(mean[learner]) for mean in means))
        alone = cautious_costs(one, 0.9, deadline_s=10.0, passes=2, held=3)
        for name, cost_s in alone.items():
            assert float(cost_s) == pytest.approx(planned[name][learner], rel=1e-12)


def test_the_margin_of_a_sum_is_less_than_the_sum_of_margins() -> None:
    measured = Estimates(*(Estimate.from_benchmark(mean) for mean in (0.5, 0.25, 1.0)))
    planned = cautious_costs(measured, 0.9, deadline_s=10.0, overlap=False)
    for name, mean in measured.mean().items():
        assert mean < planned[name] < getattr(measured, name).quantile(0.9)


def test_steps_below_the_rounding_of_the_total_are_found_by_bisection() -> None:
    late_s = float(np.nextafter(np.nextafter(10.0, 0.0), 0.0))
    learner = costs(train_s=1e-25, ship_s=0.0, fixed_s=late_s)
    most = learner.most_shards(1, 10.0, 2**52)
    assert learner.seconds(most, 1) <= 10.0
    assert most == 2**52 or learner.seconds(most + 1, 1) > 10.0

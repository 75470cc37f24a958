import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.costs import BLOCK_LEARNERS, CycleCosts

SECONDS = st.floats(0.001, 10)


def costs(**fields: float) -> CycleCosts:
    whole = {"train_s": 0.5, "ship_s": 0.25, "fixed_s": 1.0, "held": 0} | fields
    held = np.array([whole.pop("held")], dtype=np.int64)
    return CycleCosts(**{name: np.array([value]) for name, value in whole.items()}, held=held)


def test_seconds_are_those_of_the_cost_model() -> None:
    assert costs().seconds(4, 3) == pytest.approx(1.0 + 0.25 * 4 + 0.5 * 3 * 4)


def test_held_shards_are_not_shipped() -> None:
    assert costs(held=3).seconds(4, 3) == pytest.approx(1.0 + 0.25 * 1 + 0.5 * 3 * 4)
    assert costs(held=9).seconds(4, 3) == pytest.approx(1.0 + 0.5 * 3 * 4)


def test_a_learner_without_shards_takes_no_time() -> None:
    assert costs().seconds(0, 3) == 0.0


@given(SECONDS, SECONDS, SECONDS, st.integers(0, 20), st.integers(1, 9), st.floats(0.1, 500))
def test_one_shard_more_than_the_most_does_not_fit(
    train_s: float, ship_s: float, fixed_s: float, held: int, passes: int, deadline_s: float
) -> None:
    learner = costs(train_s=train_s, ship_s=ship_s, fixed_s=fixed_s, held=held)
    most = learner.most_shards(passes, deadline_s, 10**7)
    assert learner.seconds(most, passes) <= deadline_s
    assert learner.seconds(most + 1, passes) > deadline_s


@given(SECONDS, SECONDS, SECONDS, st.integers(0, 20), st.integers(1, 40), st.floats(0.1, 500))
def test_one_update_more_than_the_most_does_not_fit(
    train_s: float, ship_s: float, fixed_s: float, held: int, shards: int, deadline_s: float
) -> None:
    learner = costs(train_s=train_s, ship_s=ship_s, fixed_s=fixed_s, held=held)
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


def test_steps_below_the_rounding_of_the_total_are_found_by_bisection() -> None:
    late_s = float(np.nextafter(np.nextafter(10.0, 0.0), 0.0))
    learner = costs(train_s=1e-25, ship_s=0.0, fixed_s=late_s)
    most = learner.most_shards(1, 10.0, 2**52)
    assert learner.seconds(most, 1) <= 10.0
    assert most == 2**52 or learner.seconds(most + 1, 1) > 10.0

"""The guard of the mean: one update cannot move the model much further than others do."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.learning.update_guard import (
    FEW_UPDATES,
    LEFT_OUT_FACTOR,
    LIMIT_FACTOR,
    UpdateChanges,
    UpdateGuard,
    distance,
    distances,
    norm_of,
)


def changes(distances: list[float], visits: list[int] | None = None) -> UpdateChanges:
    return UpdateChanges(np.array(distances), np.array(visits or [100] * len(distances)))


def scales(guard: UpdateGuard, changed: UpdateChanges, norm: float = 1.0) -> list[float]:
    found: list[float] = guard.scales(changed, norm).tolist()
    return found


def test_similar_changes_count_in_full() -> None:
    assert scales(UpdateGuard("clip"), changes([1.0, 2.0, 0.5, 1.5, 3.9])) == [1.0] * 5


def test_a_change_beyond_the_limit_is_scaled_down_to_it() -> None:
    found = scales(UpdateGuard("clip"), changes([1.0, 1.0, 1.0, 1.0, 10.0]))
    assert found == [1.0, 1.0, 1.0, 1.0, LIMIT_FACTOR / 10.0]


def test_with_drop_a_change_beyond_the_limit_is_left_out() -> None:
    assert scales(UpdateGuard("drop"), changes([1.0, 1.0, 1.0, 1.0, 10.0])) == [1.0] * 4 + [0.0]


@pytest.mark.parametrize("rule", ["clip", "drop"])
@pytest.mark.parametrize("huge", [101.0, 1e30, np.inf])
def test_a_change_far_beyond_the_limit_is_left_out(rule: str, huge: float) -> None:
    assert scales(UpdateGuard(rule), changes([1.0, 1.0, 1.0, 1.0, huge])) == [1.0] * 4 + [0.0]


def test_without_a_guard_every_change_counts() -> None:
    assert scales(UpdateGuard("off"), changes([1.0, 1.0, 1.0, 1.0, 1e30])) == [1.0] * 5


def test_a_change_may_grow_in_proportion_to_visits() -> None:
    changed = changes([1.0, 1.0, 1.0, 1.0, 60.0], [100, 100, 100, 100, 2000])
    assert scales(UpdateGuard("clip"), changed) == [1.0] * 5


def test_fewer_visits_than_others_do_not_lower_the_limit() -> None:
    changed = changes([3.0, 3.0, 3.0, 3.0, 11.0], [2000, 2000, 2000, 2000, 10])
    assert scales(UpdateGuard("clip"), changed) == [1.0] * 5


@pytest.mark.parametrize("honest", [1, 2, 3])
def test_with_few_learners_one_huge_update_is_left_out(honest: int) -> None:
    found = scales(UpdateGuard("clip"), changes([1.0] * honest + [1e30]))
    assert found == [1.0] * honest + [0.0]


def test_with_few_learners_a_change_up_to_the_norm_of_the_parameters_counts() -> None:
    """A tiny update, honest or not, does not make that of the only other learner too large."""
    assert scales(UpdateGuard("clip"), changes([1e-9, 0.9]), norm=1.0) == [1.0, 1.0]


def test_a_single_learner_is_compared_with_its_last_cycles() -> None:
    guard = UpdateGuard("clip")
    first = changes([2.0])
    assert scales(guard, first) == [1.0]
    guard.record(first, np.ones(1))
    assert scales(guard, changes([15.0])) == [1.0]
    assert scales(guard, changes([1e9])) == [0.0]


def test_a_cycle_whose_model_was_not_kept_is_forgotten() -> None:
    guard = UpdateGuard("clip")
    guard.record(changes([2.0]), np.ones(1))
    guard.record(changes([1e9]), np.ones(1))
    guard.forget_last()
    assert scales(guard, changes([1e9])) == [0.0]


def test_updates_without_a_change_do_not_make_others_too_large() -> None:
    assert scales(UpdateGuard("clip"), changes([0.0, 0.0, 0.0, 0.0, 5.0])) == [1.0] * 5


def test_a_cycle_without_updates_needs_no_limit() -> None:
    assert scales(UpdateGuard("clip"), changes([])) == []


@given(
    st.lists(st.floats(0.5, 1.5), min_size=FEW_UPDATES, max_size=40),
    st.lists(st.floats(0, np.inf), max_size=2),
)
def test_a_minority_neither_harms_others_nor_moves_further_than_the_limit(
    honest: list[float], hostile: list[float]
) -> None:
    changed = changes([*honest, *hostile])
    found = np.array(scales(UpdateGuard("clip"), changed))
    assert (found[: len(honest)] == 1.0).all()
    with np.errstate(invalid="ignore"):
        moved = np.nan_to_num(found * changed.distances)
    assert (moved <= LIMIT_FACTOR * 1.5 * (1 + 1e-9)).all()


def test_many_updates_are_compared_with_some_of_them() -> None:
    rng = np.random.default_rng(1)
    many = UpdateChanges(rng.uniform(1.0, 2.0, 5000), rng.integers(50, 5000, 5000))
    many.distances[77] = 1e6
    found = UpdateGuard("clip").scales(many, 1.0)
    assert np.flatnonzero(found < 1.0).tolist() == [77]
    assert found[77] == 0.0


def test_the_distance_is_over_all_floating_point_arrays() -> None:
    start: dict[str, Any] = {
        "weight": np.ones((300, 400), np.float32),
        "scalar": np.array(1.0),
        "batches": np.array([3]),
    }
    update = start | {
        "weight": start["weight"] + np.float32(0.5),
        "scalar": np.array(3.0),
        "batches": np.array([10**15]),
    }
    assert distance(update, start) == pytest.approx(np.sqrt(300 * 400 * 0.25 + 4.0))
    assert norm_of(start) == pytest.approx(np.sqrt(300 * 400 + 1.0))


def test_the_distances_of_stacked_updates_are_those_of_each() -> None:
    rng = np.random.default_rng(2)
    start: dict[str, Any] = {"a": rng.random((50, 70)).astype(np.float32), "b": rng.random(3)}
    stacked: dict[str, Any] = {name: rng.random((9, *array.shape)) for name, array in start.items()}
    alone = [distance({n: a[row] for n, a in stacked.items()}, start) for row in range(9)]
    assert distances(stacked, start).tolist() == pytest.approx(alone, rel=1e-12)


def test_a_distance_beyond_double_precision_is_infinite() -> None:
    assert distance({"a": np.array([1e300])}, {"a": np.array([-1e300])}) == np.inf


def test_the_limit_for_leaving_out_is_a_hundred_medians() -> None:
    assert LIMIT_FACTOR * LEFT_OUT_FACTOR == 100.0

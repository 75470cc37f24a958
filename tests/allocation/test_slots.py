import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from melisma.allocation.radio_problem import RadioProblem
from melisma.allocation.slots import full_batch, online_batch, random_batch, slots
from melisma.errors import SettingError
from tests.allocation.radio_problems import DEVICE_TYPES, change_radio, random_radio, reorder_radio
from tests.lanes import cases

seeds = st.integers(0, 2**32 - 1)


def least_end_s(air_s: NDArray[np.float64], busy_s: NDArray[np.float64]) -> float:
    """Return the smallest X with busy + air / share <= X, by a general solver."""
    k, unit_s = air_s.size, float((busy_s + air_s * air_s.size).max())

    def constraints(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.append(v[-1] - (busy_s + air_s / v[:k]) / unit_s, 1.0 - v[:k].sum())

    def slope(v: NDArray[np.float64]) -> NDArray[np.float64]:
        jacobian = np.zeros((k + 1, k + 1))
        jacobian[range(k), range(k)] = air_s / v[:k] ** 2 / unit_s
        jacobian[:k, -1] = 1.0
        jacobian[-1, :k] = -1.0
        return jacobian

    result = minimize(
        lambda v: v[-1],
        np.append(np.full(k, 1.0 / k), 1.0),
        jac=lambda v: np.eye(k + 1)[-1],
        method="SLSQP",
        bounds=Bounds(np.full(k + 1, 1e-7), np.full(k + 1, np.inf)),
        constraints={"type": "ineq", "fun": constraints, "jac": slope},
        options={"maxiter": 500, "ftol": 1e-15},
    )
    shares = result.x[:k] / max(1.0, result.x[:k].sum())
    return float((busy_s + air_s / shares).max())


@pytest.mark.parametrize("kind", DEVICE_TYPES)
def test_a_general_solver_finds_no_shorter_round(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    gaps = []
    for _ in range(15):
        p = random_radio(rng, int(rng.integers(1, 9)), kind)
        batch = random_batch(p, rng)
        solver_s = least_end_s(p.uplink_s, p.gradient_s(batch))
        solver_s += least_end_s(p.downlink_s, p.apply_s)
        gaps.append(slots(p, batch).round_s / solver_s - 1)
    assert max(gaps) < 1e-10
    assert np.median(gaps) > -1e-6


@given(seeds, st.integers(1, 60), st.sampled_from(DEVICE_TYPES))
def test_all_end_together_in_a_full_frame(seed: int, learners: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    p = random_radio(rng, learners, kind)
    plan = slots(p, random_batch(p, rng))
    up_s = p.gradient_s(plan.batch) + p.uplink_s * p.frame_s / plan.uplink_slot_s
    down_s = p.downlink_s * p.frame_s / plan.downlink_slot_s + p.apply_s
    assert np.ptp(up_s) < 1e-11 * up_s.max()
    assert np.ptp(down_s) < 1e-11 * down_s.max()
    assert plan.round_s == up_s.max() + down_s.max()
    for slot_s in (plan.uplink_slot_s, plan.downlink_slot_s):
        assert math.fsum(slot_s) == pytest.approx(p.frame_s, rel=1e-12)


@given(seeds, st.sampled_from([1, 2, 3, 10, 1000, 30_000]), st.floats(1e-5, 10.0))
@settings(max_examples=cases(30))
def test_slots_fit_the_frame_in_any_order_of_summation(
    seed: int, learners: int, frame_s: float
) -> None:
    rng = np.random.default_rng(seed)
    p = change_radio(random_radio(rng, learners, "cpu"), frame_s=frame_s)
    plan = slots(p, random_batch(p, rng))
    for slot_s in (plan.uplink_slot_s, plan.downlink_slot_s):
        assert max(slot_s.sum(), sum(slot_s), sum(slot_s[::-1]), math.fsum(slot_s)) <= frame_s


def test_the_efficiency_is_the_root_of_all_batches_over_the_round() -> None:
    p = random_radio(np.random.default_rng(1), 4, "mixed")
    plan = slots(p, [1, 20, 30, 13])
    assert plan.efficiency == 8 / plan.round_s
    assert plan.batch.dtype == np.int64
    assert slots(p, [1.5, 20, 30, 13]).batch.tolist() == [1.5, 20, 30, 13]


def test_one_learner_has_the_frame_to_itself() -> None:
    p = RadioProblem(
        slope_s=0.01, uplink_bps=1e6, downlink_bps=2e6, gradient_bits=1e6, frame_s=0.01, apply_s=0
    )
    plan = slots(p, 50)
    assert plan.uplink_slot_s[0] == pytest.approx(0.01)
    assert plan.round_s == pytest.approx(0.5 + 1.0 + 0.5)


def test_equal_learners_get_equal_slots() -> None:
    p = RadioProblem(
        slope_s=[0.01] * 8,
        uplink_bps=1e6,
        downlink_bps=1e6,
        gradient_bits=1e6,
        frame_s=1,
        apply_s=0,
    )
    plan = slots(p, 10)
    assert plan.uplink_slot_s.tolist() == [plan.uplink_slot_s[0]] * 8
    assert plan.uplink_slot_s[0] == pytest.approx(1 / 8)


def test_a_broadcast_takes_the_whole_frame_at_the_slowest_rate() -> None:
    p = RadioProblem(
        slope_s=[0.01, 0.01],
        uplink_bps=1e6,
        downlink_bps=[1e6, 4e6],
        gradient_bits=1e6,
        frame_s=0.01,
        apply_s=[0.1, 0.3],
    )
    alone, broadcast = slots(p, 10), slots(p, 10, broadcast=True)
    assert broadcast.downlink_slot_s.tolist() == [0.01, 0.01]
    assert np.array_equal(broadcast.uplink_slot_s, alone.uplink_slot_s)
    assert broadcast.round_s == pytest.approx(0.1 + 2.0 + 1.0 + 0.3)
    assert broadcast.round_s == p.round_s(
        broadcast.batch, broadcast.uplink_slot_s, broadcast.downlink_slot_s, broadcast=True
    )


@given(seeds, st.integers(2, 50))
@settings(max_examples=cases(40))
def test_another_order_of_learners_gives_the_same_slots(seed: int, learners: int) -> None:
    rng = np.random.default_rng(seed)
    p = random_radio(rng, learners, "mixed")
    batch, order = random_batch(p, rng), rng.permutation(learners)
    plan, shuffled = slots(p, batch), slots(reorder_radio(p, order), batch[order])
    assert np.array_equal(plan.uplink_slot_s[order], shuffled.uplink_slot_s)
    assert np.array_equal(plan.downlink_slot_s[order], shuffled.downlink_slot_s)
    assert plan.round_s == shuffled.round_s


def test_baselines_are_smallest_largest_and_random_batches() -> None:
    p = change_radio(random_radio(np.random.default_rng(2), 500, "cpu"), min_batch=3, max_batch=7)
    assert set(online_batch(p)) == {3}
    assert set(full_batch(p)) == {7}
    drawn = random_batch(p, np.random.default_rng(9))
    assert set(drawn) == {3, 4, 5, 6, 7}
    assert np.array_equal(drawn, random_batch(p, np.random.default_rng(9)))


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        ([5, 129], r"batch\[1\] is 129; expected 1 to 128"),
        ([0.5, 5], r"batch\[0\] is 0.5; expected 1 to 128"),
        ([5, 5, 5], "batch has shape"),
        (float("nan"), "batch is nan"),
        ([-1, 2], r"batch\[0\] is -1; expected at least 0"),
    ],
)
def test_an_invalid_batch_is_an_error(batch: Any, complaint: str) -> None:
    p = random_radio(np.random.default_rng(3), 2, "cpu")
    with pytest.raises(SettingError, match=complaint):
        slots(p, batch)


def test_air_time_far_below_computing_time_still_fills_the_frame() -> None:
    p = RadioProblem(
        slope_s=[1e3, 1e3, 2e3],
        uplink_bps=[1e12, 1e13, 1e12],
        downlink_bps=1e12,
        gradient_bits=1.0,
        frame_s=0.01,
        apply_s=[0.0, 1e3, 1e-9],
    )
    plan = slots(p, 100)
    assert plan.round_s == pytest.approx(2e5 + 1e3)
    assert math.fsum(plan.uplink_slot_s) == pytest.approx(0.01, rel=1e-12)

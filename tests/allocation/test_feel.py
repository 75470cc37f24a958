import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.allocation.feel import feel
from melisma.allocation.feel.uplink import Uplink
from melisma.allocation.radio_problem import RadioPlan, RadioProblem
from melisma.allocation.slots import (
    common_end_s,
    downlink_end_s,
    full_batch,
    online_batch,
    random_batch,
    slots,
)
from melisma.fleet.array_types import Floats
from tests.allocation.radio_problems import (
    DEVICE_TYPES,
    change_radio,
    general_optimum,
    paper_radio,
    random_radio,
    reorder_radio,
)
from tests.lanes import cases

seeds = st.integers(0, 2**32 - 1)
# Relative differences between similar learners.
SPREADS = (0.0, 1e-9, 1e-3, 0.03, 0.2)


def similar_learners(
    rng: np.random.Generator, learners: int, max_batch: int, spread: float
) -> RadioProblem:
    """Return a problem of similar learners in which either computing or radio may dominate."""

    def vary(figure: float) -> Floats:
        return figure * np.exp(rng.normal(0.0, spread, learners))

    return RadioProblem(
        slope_s=vary(10 ** rng.uniform(-3, -1)),
        uplink_bps=vary(1e7),
        downlink_bps=vary(1e7),
        gradient_bits=10 ** rng.uniform(3, 8) / learners,
        frame_s=0.01,
        apply_s=rng.uniform(0, 0.05),
        max_batch=max_batch,
    )


def optimality_gap(p: RadioProblem, plan: RadioPlan) -> float:
    """Return the relative violation of the Karush-Kuhn-Tucker conditions.

    With y = X - gradient_s: all end at X and the frame is full; some m makes every y equal to
    clip(m * sqrt(air_s * slope_s)); and B' * (X + Y) = 2 * B with B' = m^2 * sum(air_s / y^2).
    At a bound m is known only to lie in a range, and the last condition must hold in it.
    """
    batch, busy_s = plan.batch, p.gradient_s(plan.batch)
    y = p.uplink_s * p.frame_s / plan.uplink_slot_s
    down_s = p.downlink_s * p.frame_s / plan.downlink_slot_s + p.apply_s
    ends = max(np.ptp(busy_s + y) / (busy_s + y).max(), np.ptp(down_s) / down_s.max())
    frames = max(
        abs(math.fsum(slots_s) / p.frame_s - 1)
        for slots_s in (plan.uplink_slot_s, plan.downlink_slot_s)
    )
    m = y / np.sqrt(p.uplink_s * p.slope_s)
    may_grow, may_shrink = batch < p.max_batch, batch > p.least_batch
    # A larger m means a smaller batch, so bounds on batches are bounds on m.
    lowest = float(m[may_grow].max(initial=0.0))
    highest = float(m[may_shrink].min(initial=math.inf))
    clip = max(0.0, lowest / highest - 1)
    wanted = math.sqrt(2 * float(batch.sum()) / (plan.round_s * float((p.uplink_s / y**2).sum())))
    peak = max(0.0, lowest / wanted - 1, wanted / highest - 1)
    return float(max(ends, frames, clip, peak))


@pytest.mark.parametrize("kind", DEVICE_TYPES)
@pytest.mark.parametrize("learners", [1, 2, 3, 12, 200])
def test_the_exact_plan_satisfies_the_optimality_conditions(kind: str, learners: int) -> None:
    rng = np.random.default_rng([learners, len(kind)])
    for _ in range(40):
        p = random_radio(rng, learners, kind)
        assert optimality_gap(p, feel(p, integral=False)) < 1e-9


def test_the_conditions_are_violated_beside_the_optimum() -> None:
    p = paper_radio(np.random.default_rng(1), cycles=1e8, bits=1e7)
    best = feel(p, integral=False)
    assert 1 < best.batch.min() < best.batch.max() < 128
    nudged = best.batch.copy()
    nudged[3] += 1e-4
    assert optimality_gap(p, slots(p, nudged)) > 1e-7


@pytest.mark.parametrize("kind", DEVICE_TYPES)
def test_a_general_solver_finds_no_better_exact_plan(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    gaps = []
    for _ in range(25):
        p = random_radio(rng, int(rng.integers(1, 9)), kind)
        gaps.append(general_optimum(p) / feel(p, integral=False).efficiency - 1)
    assert max(gaps) < 1e-10
    assert np.median(gaps) > -1e-6


@given(seeds, st.integers(1, 20), st.sampled_from(DEVICE_TYPES))
@settings(max_examples=cases(60))
def test_better_links_and_wider_bounds_never_lower_the_exact_optimum(
    seed: int, learners: int, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    p = random_radio(rng, learners, kind)
    some = rng.uniform(1.0, 3.0, learners)
    before = feel(p, integral=False).efficiency
    for better in (
        change_radio(p, uplink_bps=p.uplink_bps * some),
        change_radio(p, downlink_bps=p.downlink_bps * some),
        change_radio(p, slope_s=p.slope_s / some, base_s=p.base_s / some),
        change_radio(p, apply_s=p.apply_s / some),
        change_radio(p, max_batch=p.max_batch + rng.integers(0, 50, learners)),
        change_radio(p, gradient_bits=p.gradient_bits / 2),
    ):
        assert feel(better, integral=False).efficiency >= before * (1 - 1e-12)


@given(seeds, st.integers(1, 20), st.sampled_from(DEVICE_TYPES), st.booleans())
@settings(max_examples=cases(60))
def test_whole_batches_keep_bounds_and_frame_and_beat_no_exact_plan(
    seed: int, learners: int, kind: str, broadcast: bool
) -> None:
    p = random_radio(np.random.default_rng(seed), learners, kind)
    plan = feel(p, broadcast=broadcast)
    assert plan.batch.dtype == np.int64
    assert np.all((p.least_batch <= plan.batch) & (plan.batch <= p.max_batch))
    assert sum(plan.uplink_slot_s) <= p.frame_s
    assert plan.round_s == p.round_s(
        plan.batch, plan.uplink_slot_s, plan.downlink_slot_s, broadcast
    )
    exact = feel(p, integral=False, broadcast=broadcast)
    assert plan.efficiency <= exact.efficiency * (1 + 1e-12)


def test_in_the_papers_cell_whole_batches_lose_less_than_one_percent() -> None:
    rng = np.random.default_rng(7)
    lost = []
    for cycles in (1e7, 3e7, 1e8, 1e9):
        for bits in (3e5, 3e6, 1e7, 3e7, 32 * 8_062_504):
            p = paper_radio(rng, cycles, bits)
            lost.append(1 - feel(p).efficiency / feel(p, integral=False).efficiency)
    assert max(lost) < 0.01


def best_whole(p: RadioProblem) -> float:
    ranges = (range(low, high + 1) for low, high in zip(p.min_batch, p.max_batch, strict=True))
    return max(slots(p, np.array(batch)).efficiency for batch in itertools.product(*ranges))


@pytest.mark.parametrize("kind", DEVICE_TYPES)
def test_small_fleets_get_optimal_whole_batches(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(30):
        p = random_radio(rng, int(rng.integers(1, 4)), kind, max_batch=int(rng.integers(2, 7)))
        assert feel(p).efficiency >= best_whole(p) * (1 - 1e-6)


@given(seeds, st.integers(2, 200), st.integers(2, 12), st.sampled_from(SPREADS))
@settings(max_examples=cases(60))
def test_identical_learners_do_no_worse_than_the_same_batch_for_all(
    seed: int, learners: int, max_batch: int, spread: float
) -> None:
    p = similar_learners(np.random.default_rng(seed), learners, max_batch, spread)
    plan, exact = feel(p), feel(p, integral=False).batch
    for batch in (np.floor(exact), np.ceil(exact), p.least_batch, p.max_batch):
        assert plan.efficiency >= slots(p, batch).efficiency * (1 - 1e-12)


@pytest.mark.parametrize("spread", SPREADS)
def test_few_identical_learners_get_optimal_whole_batches(spread: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        p = similar_learners(rng, int(rng.integers(2, 5)), int(rng.integers(2, 6)), spread)
        assert feel(p).efficiency >= best_whole(p) * (1 - 1e-6)


@pytest.mark.parametrize("spread", SPREADS)
def test_many_identical_learners_get_the_best_of_all_sums(spread: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(8):
        p = similar_learners(rng, int(rng.integers(24, 60)), int(rng.integers(2, 5)), spread)
        assert feel(p).efficiency >= best_of_sums(p) * (1 - 1e-6)


def best_of_sums(p: RadioProblem) -> float:
    """Return the largest efficiency over all sums, each with the earliest whole batches."""
    up, _ = Uplink.from_problem(p)
    rest_s = downlink_end_s(p, broadcast=False)
    batch, best = up.least.copy(), 0.0
    while True:
        batch, ready_s = first_ready(up, batch)
        best = max(best, math.sqrt(batch.sum()) / (ready_s + rest_s))
        if not (batch < up.most).any():
            return best
        free = np.flatnonzero(batch < up.most)
        batch[free[up.seconds(batch + 1)[free].argmin()]] += 1


def first_ready(up: Uplink, batch: Floats) -> tuple[Floats, float]:
    """Move single units while the end becomes earlier."""
    ready_s = common_end_s(up.air_s, up.seconds(batch))
    while True:
        share = up.air_s / (ready_s - up.seconds(batch))
        send_s = ready_s - up.seconds(batch) - up.slope_s
        fits = (batch < up.most) & (send_s > 0)
        more = np.where(fits, up.air_s / np.where(fits, send_s, 1.0) - share, np.inf)
        less = share - up.air_s / (ready_s - up.seconds(batch - 1))
        less = np.where(batch > up.least, less, -np.inf)
        if more.min() >= less.max():
            return batch, ready_s
        moved = batch.copy()
        moved[more.argmin()] += 1
        moved[less.argmax()] -= 1
        moved_s = common_end_s(up.air_s, up.seconds(moved))
        if moved_s >= ready_s:
            return batch, ready_s
        batch, ready_s = moved, moved_s


@given(seeds, st.integers(2, 40), st.sampled_from(DEVICE_TYPES))
@settings(max_examples=cases(40))
def test_the_same_learners_in_another_order_get_the_same_plan(
    seed: int, learners: int, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    p = random_radio(rng, learners, kind)
    order = rng.permutation(learners)
    for integral in (True, False):
        plan, shuffled = feel(p, integral), feel(reorder_radio(p, order), integral)
        assert np.array_equal(plan.batch[order], shuffled.batch)
        assert np.array_equal(plan.uplink_slot_s[order], shuffled.uplink_slot_s)
        assert np.array_equal(plan.downlink_slot_s[order], shuffled.downlink_slot_s)
        assert (plan.round_s, plan.efficiency) == (shuffled.round_s, shuffled.efficiency)


@pytest.mark.parametrize("kind", DEVICE_TYPES)
def test_no_baseline_is_better(kind: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(20):
        p = random_radio(rng, 12, kind)
        best = feel(p, integral=False).efficiency
        for batch in (online_batch(p), full_batch(p), random_batch(p, rng)):
            assert slots(p, batch).efficiency <= best * (1 + 1e-12)


@pytest.mark.parametrize("bits", [1.0, 1e7, 32 * 8_062_504])
def test_exact_batches_are_real_numbers_even_where_they_are_whole(bits: float) -> None:
    p = paper_radio(np.random.default_rng(2), cycles=1e7, bits=bits)
    for broadcast in (False, True):
        assert feel(p, integral=False, broadcast=broadcast).batch.dtype == np.float64


def test_where_radio_dominates_the_optimum_is_the_full_batch() -> None:
    p = paper_radio(np.random.default_rng(2), cycles=1e7, bits=32 * 8_062_504)
    for integral in (True, False):
        assert np.array_equal(feel(p, integral).batch, full_batch(p))


def test_where_computing_dominates_the_smallest_batch_is_optimal() -> None:
    p = RadioProblem(
        slope_s=[1.0, 2.0],
        uplink_bps=1e9,
        downlink_bps=1e9,
        gradient_bits=1e-3,
        frame_s=0.01,
        apply_s=0,
        min_batch=4,
    )
    plan = feel(p)
    assert plan.batch.tolist() == [8, 4]
    alike = change_radio(p, slope_s=1.0)
    assert feel(alike).batch.tolist() == [4, 4]


def test_identical_learners_get_equal_batches() -> None:
    p = RadioProblem(
        slope_s=[0.01] * 6,
        uplink_bps=1e7,
        downlink_bps=1e7,
        gradient_bits=1e6,
        frame_s=0.01,
        apply_s=0,
    )
    exact = feel(p, integral=False)
    assert np.ptp(exact.batch) < 1e-9
    assert np.ptp(feel(p).batch) <= 1


def test_batches_that_are_fixed_leave_only_slots_to_choose() -> None:
    p = RadioProblem(
        slope_s=[0.01, 0.02],
        uplink_bps=[1e7, 2e7],
        downlink_bps=1e7,
        gradient_bits=1e6,
        frame_s=0.01,
        apply_s=0.1,
        min_batch=[5, 9],
        max_batch=[5, 9],
    )
    plan, given_batches = feel(p), slots(p, [5, 9])
    assert plan.batch.tolist() == [5, 9]
    assert plan.round_s == given_batches.round_s


def test_a_gpu_that_the_largest_batch_does_not_fill_takes_the_largest() -> None:
    p = change_radio(
        random_radio(np.random.default_rng(3), 3, "gpu"),
        threshold=[200, 10, 10],
        max_batch=[64, 64, 64],
    )
    assert feel(p).batch[0] == 64


def test_gpu_batches_never_fall_below_the_threshold() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        p = random_radio(rng, 6, "mixed")
        assert np.all(feel(p).batch >= p.threshold)
        assert np.all(feel(p, integral=False).batch >= p.threshold)


@pytest.mark.parametrize("spread", [1e3, 1e6, 1e9])
def test_rates_and_speeds_may_differ_by_orders_of_magnitude(spread: float) -> None:
    rng = np.random.default_rng(int(spread))
    for learners in (2, 5, 50):
        p = RadioProblem(
            slope_s=1e-3 * spread ** rng.uniform(-0.5, 0.5, learners),
            uplink_bps=1e7 * spread ** rng.uniform(-0.5, 0.5, learners),
            downlink_bps=1e7 * spread ** rng.uniform(-0.5, 0.5, learners),
            gradient_bits=1e6,
            frame_s=0.01,
            apply_s=0,
        )
        exact = feel(p, integral=False)
        assert optimality_gap(p, exact) < 1e-6
        assert feel(p).efficiency <= exact.efficiency * (1 + 1e-12)


def test_a_broadcast_downlink_changes_the_optimum_with_the_round() -> None:
    p = paper_radio(np.random.default_rng(4), cycles=1e8, bits=1e7)
    alone, broadcast = feel(p, integral=False), feel(p, integral=False, broadcast=True)
    assert broadcast.efficiency > alone.efficiency
    # A shorter downlink makes short rounds worth more.
    assert broadcast.batch.sum() < alone.batch.sum()
    assert broadcast.efficiency >= slots(p, alone.batch, broadcast=True).efficiency

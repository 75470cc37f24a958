"""Lengths of cycles in runs with a total time."""

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.schedule import (
    LAST_TAIL_FRACTION,
    MAX_AVERAGES,
    MAX_FIXED_SHARE,
    MIN_AVERAGES,
    Schedule,
)
from melisma.fleet.task import MIN_CYCLE_S


@given(
    total_s=st.floats(100, 1e6),
    fixed_s=st.floats(0, 10),
    gap_s=st.floats(0, 5),
    done=st.integers(0, 300),
)
def test_fixed_costs_take_at_most_a_tenth_unless_averages_would_be_too_few(
    total_s: float, fixed_s: float, gap_s: float, done: int
) -> None:
    schedule = Schedule(total_s, fixed_s=fixed_s, gap_s=gap_s)
    length_s = schedule.length_s(0.0, done)
    assert length_s is not None
    share = (fixed_s + gap_s) / (length_s + gap_s)
    cycles = (total_s + gap_s) / (length_s + gap_s)
    few = cycles <= max(MIN_AVERAGES - done, 1) + 0.5
    assert share <= MAX_FIXED_SHARE * 1.001 or few
    assert length_s >= min(MIN_CYCLE_S, total_s) * 0.999


@given(total_s=st.floats(20, 1e5), fixed_s=st.floats(0.01, 2), gap_s=st.floats(0, 1))
def test_equal_cycles_fill_the_time_that_is_left(
    total_s: float, fixed_s: float, gap_s: float
) -> None:
    schedule = Schedule.between(0.0, total_s)
    schedule.fixed_s, schedule.gap_s = fixed_s, gap_s
    at_s, cycles = 0.0, 0
    while (length_s := schedule.length_s(at_s, cycles)) is not None:
        at_s, cycles = at_s + length_s + gap_s, cycles + 1
        assert at_s - gap_s <= total_s + 1e-6
    # What the last cycle left for late updates may be enough for short ones.
    assert cycles <= MAX_AVERAGES + 5
    assert at_s >= (1 - LAST_TAIL_FRACTION) * total_s - 2 * fixed_s - 2 * MIN_CYCLE_S - gap_s


def test_a_run_averages_ten_times_even_if_fixed_costs_are_high() -> None:
    schedule = Schedule(100.0, fixed_s=3.0)
    length_s = schedule.length_s(0.0, 0)
    assert length_s is not None
    assert isclose(length_s, 10.0)


def test_a_cycle_of_which_more_than_half_is_fixed_is_not_begun() -> None:
    assert Schedule(5.9, fixed_s=3.0).length_s(0.0, 4) is None
    assert Schedule(6.1, fixed_s=3.0).length_s(0.0, 4) is not None


def test_the_time_to_evaluate_is_reserved() -> None:
    schedule = Schedule(100.0)
    schedule.record_close(10.0)
    schedule.record_evaluation(17.0)
    assert schedule.stop_s == 93.0


@given(total_s=st.floats(10, 1e5), at=st.floats(0, 1), length_s=st.floats(MIN_CYCLE_S, 1e5))
def test_a_cycle_is_lengthened_a_few_times_until_no_time_is_left(
    total_s: float, at: float, length_s: float
) -> None:
    schedule, lengths = Schedule.between(0.0, total_s), [length_s]
    while (longer_s := schedule.lengthen(lengths[-1], at * total_s)) is not None:
        assert lengths[-1] < longer_s <= (1 - at) * total_s
        assert longer_s == schedule.least_s
        lengths.append(longer_s)
        assert len(lengths) < 40

"""Limits: generous by default, and never in each other's way."""

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.limits import Limits


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_larger_body_gets_more_time_and_the_smallest_that_of_a_head(one: int, two: int) -> None:
    limits = Limits()
    assert limits.body_s(0) == limits.head_s
    assert (limits.body_s(one) < limits.body_s(two)) == (one < two)


@given(st.integers(0, 1 << 40), st.floats(1.0, 1e9))
def test_a_body_that_comes_at_the_slowest_rate_is_in_time(size: int, bytes_per_s: float) -> None:
    limits = Limits(min_bytes_per_s=bytes_per_s)
    assert size / bytes_per_s <= limits.body_s(size)


def test_every_limit_leaves_room() -> None:
    assert all(value > 0 for value in asdict(Limits()).values())

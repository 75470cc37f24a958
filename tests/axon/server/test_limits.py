"""Limits and their defaults."""

from dataclasses import asdict

from melisma.axon.server.limits import Limits


def test_the_minimum_rate_covers_one_interval() -> None:
    assert Limits(head_s=2.0, min_bytes_per_s=500.0).min_rate == (2.0, 1000.0)


def test_default_limits_are_positive() -> None:
    assert all(value > 0 for value in asdict(Limits()).values())

"""Rates of calls."""

import pytest

from melisma.errors import BusyError
from melisma.live.orchestrator import call_rates
from melisma.live.orchestrator.call_rates import BURST_CALLS, CALLS_PER_S, MAX_DELAY_S, CallRates


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_calls_wait_only_after_the_burst_and_by_caller() -> None:
    rates = CallRates(Clock())
    assert not any(rates.count("a") for _ in range(BURST_CALLS))
    assert rates.count("a") == pytest.approx(1 / CALLS_PER_S)
    assert rates.count("a") == pytest.approx(2 / CALLS_PER_S)
    assert rates.count("b") == 0.0


def test_a_caller_at_the_highest_rate_never_waits() -> None:
    clock = Clock()
    rates = CallRates(clock)
    for _ in range(5 * BURST_CALLS):
        assert rates.count("a") == 0.0
        clock.now_s += 1 / CALLS_PER_S


def test_a_caller_that_does_not_wait_for_its_calls_is_refused_and_owes_no_more() -> None:
    clock = Clock()
    rates = CallRates(clock)
    for _ in range(BURST_CALLS + int(MAX_DELAY_S * CALLS_PER_S)):
        rates.count("a")
    for _ in range(10_000):
        with pytest.raises(BusyError, match="a calls more than 50 times per second"):
            rates.count("a")
    clock.now_s += 1.0
    assert rates.count("a") < MAX_DELAY_S


def test_callers_that_have_called_seldom_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_rates, "MAX_CALLERS", 3)
    clock = Clock()
    rates = CallRates(clock)
    for number in range(100):
        rates.count(str(number))
        clock.now_s += 1.0
    assert len(rates._paid_until) <= 3

"""Factors of noise and traces have the promised distribution, and work is conserved."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.fleet.array_types import Floats
from melisma.fleet.variation import (
    LINKS,
    MAX_PIECES,
    BandwidthTrace,
    Noise,
    Resource,
    Variation,
)

RESOURCES: tuple[Resource, ...] = ("compute", "downlink", "uplink")
SAW = BandwidthTrace([(0.0, 1e6, 4e6), (2.0, 3e6, 0.0), (3.0, 2e6, 2e6)])
FLAT = BandwidthTrace([(0.0, 5e6, 5e6), (7.5, 1e6, 9e6)])


def make(
    learners: int, compute: float = 0.0, bandwidth: float = 0.0, slot_s: float = 30.0, **more: Any
) -> Variation:
    columns = (np.full(learners, value) for value in (compute, bandwidth, slot_s, 1.0, 0.0))
    settings: dict[str, Any] = {"trace_ids": np.full(learners, -1), "traces": ()} | more
    return Variation(1, np.arange(learners), Noise(*columns), **settings)


def factors(variation: Variation, resource: Resource, at_s: float) -> Floats:
    rows = np.arange(variation.learners.size)
    return variation.of(rows).rate(resource, rows, np.full(rows.size, at_s))[0]


@pytest.mark.parametrize("deviation", [0.1, 0.5])
@pytest.mark.parametrize("resource", RESOURCES)
def test_noise_has_mean_1_and_the_given_deviation(resource: Resource, deviation: float) -> None:
    values = factors(make(200_000, deviation, deviation), resource, 12.0)
    assert values.min() > 0
    assert values.mean() == pytest.approx(1.0, abs=0.01)
    assert values.std() == pytest.approx(deviation, rel=0.03)


def test_noise_is_constant_within_a_slot_and_independent_between_slots() -> None:
    variation = make(20_000, compute=0.3, bandwidth=0.3, slot_s=10.0)
    first, same, other = (factors(variation, "compute", at_s) for at_s in (20.0, 29.999, 30.0))
    assert first.tolist() == same.tolist()
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.03
    assert abs(np.corrcoef(first, factors(variation, "downlink", 20.0))[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


def test_both_directions_of_a_link_have_the_same_noise() -> None:
    variation = make(100, bandwidth=0.3)
    down, up = (factors(variation, resource, 5.0) for resource in LINKS)
    assert down.tolist() == up.tolist()


@pytest.mark.parametrize("resource", RESOURCES)
def test_one_learner_alone_has_the_factors_that_it_has_among_many(resource: Resource) -> None:
    many = make(50, 0.4, 0.2, 7.0, trace_ids=np.arange(50) % 3 - 1, traces=(SAW, FLAT))
    for number in (0, 7, 49):
        noise = Noise(*(np.array([value]) for value in (0.4, 0.2, 7.0, 1.0, 0.0)))
        traces = ((), (SAW,), (FLAT,))[number % 3]
        ids = np.array([len(traces) - 1])
        one = Variation(1, np.array([number]), noise, ids, traces)
        for at_s in (0.0, 6.9, 7.0, 1234.5):
            expected = factors(many, resource, at_s)[number]
            assert factors(one, resource, at_s)[0] == pytest.approx(expected, rel=1e-12)


@given(
    st.lists(
        st.tuples(st.sampled_from(RESOURCES), st.lists(st.floats(0, 60), min_size=3, max_size=3)),
        max_size=12,
    )
)
def test_factors_do_not_depend_on_what_was_asked_before(
    requests: list[tuple[Resource, list[float]]],
) -> None:
    noise = Noise(
        np.array([0.4, 0.0, 0.2]),
        np.array([0.3, 0.1, 0.0]),
        np.array([7.0, 3.0, 5.0]),
        np.ones(3),
        np.zeros(3),
    )
    variation = Variation(1, np.arange(3), noise, np.array([-1, 0, -1]), (SAW,))
    rows, varying = np.arange(3), variation.of(np.arange(3))
    for resource, times in requests:
        at_s = np.array(times)
        results = varying.rate(resource, rows, at_s)
        expected = variation.of(rows).rate(resource, rows, at_s)
        assert [x.tolist() for x in results] == [x.tolist() for x in expected]


@given(
    st.lists(st.floats(0, 1e4), min_size=4, max_size=4),
    st.lists(st.floats(1e-3, 300), min_size=4, max_size=4),
    st.sampled_from(RESOURCES),
)
def test_work_takes_the_seconds_in_which_it_is_done(
    begin: list[float], spans: list[float], resource: Resource
) -> None:
    variation = make(4, 0.5, 0.3, 1.7, trace_ids=np.array([-1, 0, 1, 0]), traces=(SAW, FLAT))
    varying, begin_s, span_s = variation.of(np.arange(4)), np.array(begin), np.array(spans)
    work_s = varying.work_s(resource, begin_s, span_s)
    took_s = varying.seconds(resource, begin_s, work_s)
    again_s = varying.work_s(resource, begin_s, took_s)
    np.testing.assert_allclose(again_s, work_s, rtol=1e-6, atol=1e-9)
    # In an outage, as the uplink has one, any number of seconds does the same work.
    if resource != "uplink":
        np.testing.assert_allclose(took_s, span_s, rtol=1e-6)


@given(st.floats(0, 100), st.floats(0.01, 50), st.floats(0.01, 50))
def test_work_in_two_spans_is_the_sum_of_both(begin: float, first: float, second: float) -> None:
    varying, begin_s = make(1, 0.5, slot_s=3.0).of(np.array([0])), np.array([begin])

    def work(start_s: Floats, span_s: float) -> float:
        return float(varying.work_s("compute", start_s, np.array([span_s]))[0])

    parts = work(begin_s, first) + work(begin_s + first, second)
    assert work(begin_s, first + second) == pytest.approx(parts, rel=1e-9)


def test_a_trace_is_followed_and_repeats() -> None:
    variation = make(1, trace_ids=np.array([0]), traces=(SAW,))
    assert SAW.period_s == 4.0
    means = [SAW.mean_bps(resource) for resource in LINKS]
    assert means == [pytest.approx(7e6 / 4), pytest.approx(10e6 / 4)]
    for repeat_s in (0.0, 4.0, 400.0):
        rates = [
            [float(factors(variation, resource, repeat_s + at_s)[0]) * mean / 1e6]
            for resource, mean in zip(LINKS, means, strict=True)
            for at_s in (0.0, 1.9, 2.0, 3.0, 3.9)
        ]
        np.testing.assert_allclose(np.ravel(rates), [1, 1, 3, 2, 2, 4, 4, 0, 2, 2])
    assert factors(variation, "compute", 0.0).tolist() == [1.0]


def test_a_transfer_waits_for_the_end_of_an_outage() -> None:
    variation = make(1, trace_ids=np.array([0]), traces=(SAW,))
    # The uplink has 4, 0 and 2 Mbit/s for 2, 1 and 1 s: 9 Mbit need the second before 3 s too.
    work_s = np.array([9e6 / SAW.mean_bps("uplink")])
    took_s = variation.of(np.array([0])).seconds("uplink", np.array([0.0]), work_s)
    assert took_s.tolist() == [pytest.approx(3.5)]


def test_after_many_pieces_work_goes_on_at_the_mean_rate() -> None:
    varying = make(1, 0.5, slot_s=0.01).of(np.array([0]))
    long_s = np.array([MAX_PIECES * 1.0])
    took_s = varying.seconds("compute", np.zeros(1), long_s)
    assert took_s[0] == pytest.approx(long_s[0], rel=0.01)
    assert varying.work_s("compute", np.zeros(1), long_s)[0] == pytest.approx(long_s[0], rel=0.01)


def test_a_learner_that_begins_at_infinity_takes_the_mean_time() -> None:
    varying = make(1, 0.5).of(np.array([0]))
    took_s = varying.seconds("compute", np.array([np.inf]), np.array([2.0]))
    assert took_s.tolist() == [2.0]


def test_without_noise_and_traces_nothing_varies() -> None:
    assert make(3).is_constant
    assert not make(3, compute=0.1).is_constant
    assert not make(3, bandwidth=0.1).is_constant
    assert not make(1, trace_ids=np.array([0]), traces=(SAW,)).is_constant

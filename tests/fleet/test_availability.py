import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet import availability
from melisma.fleet.availability import (
    CHANGE_NAMES,
    JOIN,
    LEAVE,
    SLEEP,
    WAKE,
    Availability,
    BatteryLimits,
    Changes,
)
from melisma.fleet.day_hours import DayHours
from melisma.fleet.files.trace_file import ALLOWED_NEXT

NEVER = np.inf


def build(
    learners: int, traced: list[tuple[float, int, int]] | None = None, **columns: Any
) -> Availability:
    """Build learners that are always present, except for `columns`, scalars or one per learner."""
    values = {"joins_s": 0.0, "leaves_s": NEVER, "awake_s": NEVER, "asleep_s": 0.0} | columns
    arrays = {k: np.broadcast_to(v, learners).astype(np.float64) for k, v in values.items()}
    all_day, mains = np.full(learners, np.nan), np.full(learners, np.inf)
    return Availability(
        **arrays,
        traced=changes(*(traced or [])),
        hours=DayHours(all_day, all_day, 0.0),
        battery=BatteryLimits(mains, np.zeros(learners)),
    )


def changes(*rows: tuple[float, int, int]) -> Changes:
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Changes.merge(
        [Changes(table[:, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))]
    )


def rows(events: Changes) -> list[tuple[float, int, str]]:
    columns = (events.at_s.tolist(), events.learners.tolist(), events.kinds.tolist())
    return [
        (at_s, learner, CHANGE_NAMES[kind]) for at_s, learner, kind in zip(*columns, strict=True)
    ]


def test_the_settings_in_use_are_named() -> None:
    assert build(2).settings_in_use == []
    assert build(2, joins_s=[0, 3]).settings_in_use == ["joins_s"]
    assert build(2, leaves_s=[NEVER, 3]).settings_in_use == ["leaves_s"]
    sleeping = build(2, traced=[(3.0, 1, LEAVE)], awake_s=[NEVER, 9], asleep_s=1.0)
    assert sleeping.settings_in_use == ["awake_s and asleep_s", "trace"]


def test_learners_join_and_leave_at_their_times() -> None:
    fleet = build(4, joins_s=[0, 30, 30, 90], leaves_s=[NEVER, 50, NEVER, 91])
    assert fleet.present_at_start.tolist() == [True, False, False, False]
    assert rows(fleet.changes(90, seed=1)) == [
        (30.0, 1, "join"),
        (30.0, 2, "join"),
        (50.0, 1, "leave"),
        (90.0, 3, "join"),
    ]
    assert rows(fleet.changes(29.9, seed=1)) == []
    assert rows(fleet.changes(np.inf, seed=1))[-1] == (91.0, 3, "leave")


def test_spans_awake_and_asleep_are_exponential_with_their_means() -> None:
    events = build(2000, awake_s=60.0, asleep_s=20.0).changes(4000, seed=3)
    order = np.lexsort((events.at_s, events.learners))
    at_s, kind = events.at_s[order], events.kinds[order]
    span_s, same = np.diff(at_s), np.diff(events.learners[order]) == 0
    awake_s, asleep_s = span_s[same & (kind[1:] == SLEEP)], span_s[same & (kind[1:] == WAKE)]
    # Spans that end after the run are missing, so the means are slightly low.
    assert awake_s.mean() == pytest.approx(60, rel=0.03)
    assert asleep_s.mean() == pytest.approx(20, rel=0.03)
    # An exponential distribution: its deviation is its mean, and a share of 1/e is longer.
    assert awake_s.std() == pytest.approx(60, rel=0.04)
    assert np.mean(asleep_s > 20) == pytest.approx(np.exp(-1), abs=0.01)


def test_the_long_run_share_asleep_follows_from_the_mean_spans() -> None:
    fleet = build(20_000, awake_s=60.0, asleep_s=20.0)
    for until_s in (500.0, 700.0):
        kind = fleet.changes(until_s, seed=1).kinds
        asleep = np.count_nonzero(kind == SLEEP) - np.count_nonzero(kind == WAKE)
        assert asleep / 20_000 == pytest.approx(0.25, abs=0.015)


SPANS = st.floats(0.5, 50)


@given(
    awake_s=SPANS,
    asleep_s=SPANS,
    joins_s=st.floats(0, 60),
    stays_s=st.floats(0.1, 200),
    until_s=st.floats(0, 200),
    seed=st.integers(0, 2**40),
)
def test_every_change_of_a_learner_may_follow_its_previous_one(
    awake_s: float, asleep_s: float, joins_s: float, stays_s: float, until_s: float, seed: int
) -> None:
    leaves_s = joins_s + stays_s
    availability = build(5, joins_s=joins_s, leaves_s=leaves_s, awake_s=awake_s, asleep_s=asleep_s)
    events = availability.changes(until_s, seed)
    assert np.all((events.at_s > 0) & (events.at_s <= until_s))
    assert np.all((np.diff(events.at_s) > 0) | (np.diff(events.learners) >= 0))
    for learner, present in enumerate(availability.present_at_start.tolist()):
        before = JOIN if present else None
        for kind in events.kinds[events.learners == learner].tolist():
            assert kind in ALLOWED_NEXT[before]
            before = kind
        assert (before == LEAVE) == (leaves_s <= until_s)


@given(shorter_s=st.floats(0, 300), seed=st.integers(0, 99))
def test_a_longer_run_begins_like_a_shorter_one(shorter_s: float, seed: int) -> None:
    fleet = build(40, joins_s=np.arange(40) % 7, awake_s=20.0, asleep_s=5.0)
    short, long = fleet.changes(shorter_s, seed), fleet.changes(400.0, seed)
    assert rows(short) == rows(long)[: len(short)]
    assert np.all(long.at_s[len(short) :] > shorter_s)


def test_sleep_of_a_learner_does_not_depend_on_other_learners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = build(300, awake_s=20.0, asleep_s=5.0).changes(500, seed=1)
    few = build(7, awake_s=20.0, asleep_s=5.0).changes(500, seed=1)
    assert rows(many.select(many.learners < 7)) == rows(few)
    # The number of spans drawn at once does not matter either.
    monkeypatch.setattr(availability, "BLOCK_SPANS", 16)
    assert rows(build(300, awake_s=20.0, asleep_s=5.0).changes(500, seed=1)) == rows(many)


def test_another_seed_gives_other_spans() -> None:
    fleet = build(9, awake_s=20.0, asleep_s=5.0)
    assert rows(fleet.changes(100, seed=1)) == rows(fleet.changes(100, seed=1))
    assert rows(fleet.changes(100, seed=1)) != rows(fleet.changes(100, seed=2))


def test_a_trace_sets_the_learners_present_at_the_start() -> None:
    fleet = build(
        7,
        [
            (5.0, 0, JOIN),
            (0.0, 1, JOIN),
            (5.0, 2, LEAVE),
            (0.0, 3, LEAVE),
            (0.0, 4, SLEEP),
            (5.0, 4, WAKE),
            (0.0, 5, SLEEP),
            (0.0, 5, WAKE),
        ],
    )
    assert fleet.present_at_start.tolist() == [False, True, True, False, False, True, True]
    assert rows(fleet.changes(5, seed=1)) == [(5.0, 0, "join"), (5.0, 2, "leave"), (5.0, 4, "wake")]


def test_traced_and_drawn_changes_are_sorted_together() -> None:
    fleet = build(
        3, [(10.0, 2, SLEEP)], joins_s=[10.0, 0, 0], awake_s=[NEVER, 5.0, NEVER], asleep_s=5.0
    )
    at_s = fleet.changes(60, seed=1).at_s
    assert at_s.tolist() == sorted(at_s)
    assert [row for row in rows(fleet.changes(60, seed=1)) if row[1] != 1] == [
        (10.0, 0, "join"),
        (10.0, 2, "sleep"),
    ]


@pytest.mark.parametrize("until_s", [-1.0, np.nan])
def test_an_invalid_end_time_is_an_error(until_s: float) -> None:
    with pytest.raises(SettingError, match="expected at least 0"):
        build(1).changes(until_s, seed=1)


@pytest.mark.parametrize("until_s", [1e12, np.inf])
def test_more_changes_than_fit_into_memory_are_an_error(until_s: float) -> None:
    with pytest.raises(SettingError, match=r"fall asleep and wake about .* times .*awake_s or a"):
        build(9, awake_s=60.0, asleep_s=20.0).changes(until_s, seed=1)


def test_half_a_million_changes_of_one_learner_take_seconds() -> None:
    began_s = time.process_time()
    assert len(build(1, awake_s=1e-3, asleep_s=1e-3).changes(500, seed=1)) == pytest.approx(
        5e5, rel=0.01
    )
    assert time.process_time() - began_s < 5


def test_a_million_sleepers_take_seconds() -> None:
    began_s = time.process_time()
    events = build(1_000_000, awake_s=600.0, asleep_s=60.0).changes(150, seed=1)
    assert time.process_time() - began_s < 5
    # An alternating process that begins awake: 150 / 660 + (1 - e^-2.75) / 11^2.
    expected = 1e6 * (150 / 660 + (1 - np.exp(-2.75)) / 121)
    assert np.count_nonzero(events.kinds == SLEEP) == pytest.approx(expected, rel=0.01)

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet import availability
from melisma.fleet.availability import CHANGE_NAMES, JOIN, LEAVE, SLEEP, WAKE, Availability, Changes
from melisma.fleet.files.trace_file import ALLOWED_NEXT

NEVER = np.inf


def fleet(
    learners: int, traced: list[tuple[float, int, int]] | None = None, **said: Any
) -> Availability:
    """Learners that are always there, but for what is said: for all, or one by one."""
    usual = {"joins_s": 0.0, "leaves_s": NEVER, "awake_s": NEVER, "asleep_s": 0.0} | said
    columns = {k: np.broadcast_to(v, learners).astype(np.float64) for k, v in usual.items()}
    return Availability(**columns, traced=changes(*(traced or [])))


def changes(*rows: tuple[float, int, int]) -> Changes:
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Changes.merge(
        [Changes(table[:, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))]
    )


def rows(found: Changes) -> list[tuple[float, int, str]]:
    columns = (found.at_s.tolist(), found.learners.tolist(), found.kinds.tolist())
    return [
        (at_s, learner, CHANGE_NAMES[what]) for at_s, learner, what in zip(*columns, strict=True)
    ]


def test_learners_join_and_leave_when_they_say() -> None:
    found = fleet(4, joins_s=[0, 30, 30, 90], leaves_s=[NEVER, 50, NEVER, 91])
    assert found.present_at_start.tolist() == [True, False, False, False]
    assert rows(found.changes(90, seed=1)) == [
        (30.0, 1, "join"),
        (30.0, 2, "join"),
        (50.0, 1, "leave"),
        (90.0, 3, "join"),
    ]
    assert rows(found.changes(29.9, seed=1)) == []
    assert rows(found.changes(np.inf, seed=1))[-1] == (91.0, 3, "leave")


def test_spans_awake_and_asleep_are_exponential_with_their_means() -> None:
    found = fleet(2000, awake_s=60.0, asleep_s=20.0).changes(4000, seed=3)
    order = np.lexsort((found.at_s, found.learners))
    at_s, what = found.at_s[order], found.kinds[order]
    span_s, same = np.diff(at_s), np.diff(found.learners[order]) == 0
    awake_s, asleep_s = span_s[same & (what[1:] == SLEEP)], span_s[same & (what[1:] == WAKE)]
    # Ends within the run make them a little short: spans that go beyond it are not seen.
    assert awake_s.mean() == pytest.approx(60, rel=0.03)
    assert asleep_s.mean() == pytest.approx(20, rel=0.03)
    # The standard deviation is the mean, and e^-1 are longer.
    assert awake_s.std() == pytest.approx(60, rel=0.04)
    assert np.mean(asleep_s > 20) == pytest.approx(np.exp(-1), abs=0.01)


def test_in_the_long_run_as_many_are_awake_as_the_means_say() -> None:
    found = fleet(20_000, awake_s=60.0, asleep_s=20.0)
    for until_s in (500.0, 700.0):
        what = found.changes(until_s, seed=1).kinds
        asleep = np.count_nonzero(what == SLEEP) - np.count_nonzero(what == WAKE)
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
def test_each_learner_goes_from_one_state_to_a_possible_next_one(
    awake_s: float, asleep_s: float, joins_s: float, stays_s: float, until_s: float, seed: int
) -> None:
    leaves_s = joins_s + stays_s
    availability = fleet(5, joins_s=joins_s, leaves_s=leaves_s, awake_s=awake_s, asleep_s=asleep_s)
    found = availability.changes(until_s, seed)
    assert np.all((found.at_s > 0) & (found.at_s <= until_s))
    assert np.all((np.diff(found.at_s) > 0) | (np.diff(found.learners) >= 0))
    for learner, present in enumerate(availability.present_at_start.tolist()):
        before = JOIN if present else None
        for what in found.kinds[found.learners == learner].tolist():
            assert what in ALLOWED_NEXT[before]
            before = what
        assert (before == LEAVE) == (leaves_s <= until_s)


@given(shorter_s=st.floats(0, 300), seed=st.integers(0, 99))
def test_a_longer_run_begins_like_a_shorter_one(shorter_s: float, seed: int) -> None:
    found = fleet(40, joins_s=np.arange(40) % 7, awake_s=20.0, asleep_s=5.0)
    short, long = found.changes(shorter_s, seed), found.changes(400.0, seed)
    assert rows(short) == rows(long)[: len(short)]
    assert np.all(long.at_s[len(short) :] > shorter_s)


def test_a_learner_sleeps_alike_whoever_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    many = fleet(300, awake_s=20.0, asleep_s=5.0).changes(500, seed=1)
    few = fleet(7, awake_s=20.0, asleep_s=5.0).changes(500, seed=1)
    assert rows(many.select(many.learners < 7)) == rows(few)
    # However many spans are drawn at once.
    monkeypatch.setattr(availability, "BLOCK_SPANS", 16)
    assert rows(fleet(300, awake_s=20.0, asleep_s=5.0).changes(500, seed=1)) == rows(many)


def test_another_seed_is_another_sleep() -> None:
    found = fleet(9, awake_s=20.0, asleep_s=5.0)
    assert rows(found.changes(100, seed=1)) == rows(found.changes(100, seed=1))
    assert rows(found.changes(100, seed=1)) != rows(found.changes(100, seed=2))


def test_a_trace_says_who_is_there_at_the_start() -> None:
    found = fleet(
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
    assert found.present_at_start.tolist() == [False, True, True, False, False, True, True]
    assert rows(found.changes(5, seed=1)) == [(5.0, 0, "join"), (5.0, 2, "leave"), (5.0, 4, "wake")]


def test_traced_and_drawn_changes_are_in_one_order() -> None:
    found = fleet(
        3, [(10.0, 2, SLEEP)], joins_s=[10.0, 0, 0], awake_s=[NEVER, 5.0, NEVER], asleep_s=5.0
    )
    at_s = found.changes(60, seed=1).at_s
    assert at_s.tolist() == sorted(at_s)
    assert [row for row in rows(found.changes(60, seed=1)) if row[1] != 1] == [
        (10.0, 0, "join"),
        (10.0, 2, "sleep"),
    ]


@pytest.mark.parametrize("until_s", [-1.0, np.nan])
def test_an_instant_that_is_none_is_refused(until_s: float) -> None:
    with pytest.raises(SettingError, match="expected at least 0"):
        fleet(1).changes(until_s, seed=1)


@pytest.mark.parametrize("until_s", [1e12, np.inf])
def test_more_changes_than_can_be_held_are_refused(until_s: float) -> None:
    with pytest.raises(SettingError, match=r"fall asleep and wake about .* times .*awake_s or a"):
        fleet(9, awake_s=60.0, asleep_s=20.0).changes(until_s, seed=1)


def test_one_that_sleeps_very_often_is_as_quick_as_many_that_sleep_seldom() -> None:
    began_s = time.process_time()
    assert len(fleet(1, awake_s=1e-3, asleep_s=1e-3).changes(500, seed=1)) == pytest.approx(
        5e5, rel=0.01
    )
    assert time.process_time() - began_s < 5


def test_a_million_sleepers_take_seconds() -> None:
    began_s = time.process_time()
    found = fleet(1_000_000, awake_s=600.0, asleep_s=60.0).changes(150, seed=1)
    assert time.process_time() - began_s < 5
    # Of an alternating process of both rates that begins awake: 150 / 660 + (1 - e^-2.75) / 11^2.
    expected = 1e6 * (150 / 660 + (1 - np.exp(-2.75)) / 121)
    assert np.count_nonzero(found.kinds == SLEEP) == pytest.approx(expected, rel=0.01)

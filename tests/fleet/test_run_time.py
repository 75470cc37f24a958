"""Deadlines and total times of the command line and of Python, and `finish_by`."""

from datetime import datetime, timedelta, timezone

import pytest

from melisma.errors import SettingError
from melisma.fleet.finish_time import parse_finish_time
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import DEFAULT_CYCLES, Task

UTC = timezone.utc
NOW = datetime(2026, 11, 18, 20, 15, tzinfo=UTC)


def make_task(**settings: object) -> Task:
    return Task(name="digits", model="twonn", data="mnist", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("23:00", datetime(2026, 11, 18, 23, 0, tzinfo=UTC)),
        ("06:30", datetime(2026, 11, 19, 6, 30, tzinfo=UTC)),
        ("20:15", datetime(2026, 11, 19, 20, 15, tzinfo=UTC)),
        ("2026-11-20 06:30", datetime(2026, 11, 20, 6, 30, tzinfo=UTC)),
        ("2026-11-20T06:30", datetime(2026, 11, 20, 6, 30, tzinfo=UTC)),
    ],
)
def test_a_time_of_day_is_the_next_one(text: str, expected: datetime) -> None:
    assert parse_finish_time(text, NOW) == expected


@pytest.mark.parametrize("text", ["25:00", "soon", "", "23.00", "2026-13-01 10:00"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as"):
        make_task(finish_by=text)


def test_finish_by_becomes_a_total_time_and_a_date() -> None:
    task = make_task(finish_by="23:00").with_total(NOW)
    assert task.total_s == timedelta(hours=2, minutes=45).total_seconds()
    assert task.finish_by == "2026-11-18 23:00"


def test_the_earlier_of_two_ends_counts() -> None:
    assert make_task(finish_by="23:00", total_s=60).with_total(NOW).total_s == 60


def test_a_time_that_has_passed_is_refused() -> None:
    with pytest.raises(SettingError, match="is too soon: it is 2026-11-18 20:15:00 now"):
        make_task(finish_by="2026-11-18 20:00").with_total(NOW)


def test_what_is_left_counts_from_the_start() -> None:
    assert make_task(total_s=60).seconds_left(15.0) == 45.0
    by_clock = make_task(finish_by="2026-01-01 00:00", total_s=60)
    assert by_clock.seconds_left(0.0) < 0


def test_a_task_needs_one_of_the_times() -> None:
    with pytest.raises(ValueError, match="use deadline_s for the seconds of a cycle, total_s for"):
        make_task()
    with pytest.raises(ValueError, match="total_s is 4; expected at least 5"):
        make_task(total_s=4)
    assert make_task(deadline_s=6).cycles == DEFAULT_CYCLES
    assert make_task(total_s=60).cycles is None


def test_a_total_time_replaces_deadline_and_cycles_of_the_task() -> None:
    task = RunTime(total_s=600).apply(make_task(deadline_s=6, cycles=3))
    assert (task.total_s, task.deadline_s, task.cycles) == (600, 12, None)
    assert task.expected_cycles == 50


def test_a_deadline_replaces_a_total_time() -> None:
    task = RunTime(deadline_s=6).apply(make_task(total_s=600))
    assert (task.total_s, task.deadline_s, task.cycles) == (None, 6, DEFAULT_CYCLES)
    assert task.expected_s == 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deadline_s": 0.0}, "deadline_s is 0; expected seconds, more than 0"),
        ({"total_s": -1.0}, "total_s is -1; expected seconds, more than 0"),
        ({"total_s": float("inf")}, "total_s is inf; expected seconds"),
        ({"deadline_s": 1.0, "total_s": 60.0}, "which chooses the length of its cycles"),
        ({"deadline_s": 1.0, "finish_by": "23:00"}, "use one of them"),
    ],
)
def test_times_that_contradict_each_other_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        RunTime(**settings)  # type: ignore[arg-type]

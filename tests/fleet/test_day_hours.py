import numpy as np
import pytest

from melisma.fleet.day_hours import DAY_S, DayHours, parse_clock, parse_hours

HOUR_S = 3600.0


def make_hours(*hours: str, starts_at: str) -> DayHours:
    pairs = [parse_hours(text) if text else (np.nan, np.nan) for text in hours]
    from_s, to_s = (np.array(column) for column in zip(*pairs, strict=True))
    return DayHours(from_s, to_s, parse_clock("starts_at", starts_at))


@pytest.mark.parametrize(
    ("starts_at", "present"),
    [
        ("00:00", [False, True, True]),
        ("07:00", [True, False, True]),
        ("12:00", [True, False, True]),
        ("23:00", [False, True, True]),
    ],
)
def test_hours_of_day_and_night(starts_at: str, present: list[bool]) -> None:
    hours = make_hours("07:00-22:30", "22:00-06:00", "", starts_at=starts_at)
    assert hours.open_at_start.tolist() == present


def test_hours_begin_and_end_each_day() -> None:
    hours = make_hours("", "07:00-23:00", "22:00-06:00", starts_at="20:00")
    begins = hours.changes(1.5 * DAY_S, begin=True)
    ends = hours.changes(1.5 * DAY_S, begin=False)
    assert (begins[0] / HOUR_S).tolist() == [2, 11, 26, 35]
    assert begins[1].tolist() == [2, 1, 2, 1]
    assert (ends[0] / HOUR_S).tolist() == [3, 10, 27, 34]
    assert ends[1].tolist() == [1, 2, 1, 2]
    assert make_hours("", starts_at="20:00").changes(DAY_S, begin=True)[0].size == 0


@pytest.mark.parametrize("text", ["7-23", "07:00", "07:00-24:00", "07:00-07:00", "07:00 - 23:00"])
def test_invalid_hours_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match='expected two times such as "07:00-23:00"'):
        parse_hours(text)


@pytest.mark.parametrize("text", ["7", "25:00", "noon", "07:00-23:00"])
def test_an_invalid_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r'starts_at is .*; expected a time such as "18:00"'):
        parse_clock("starts_at", text)

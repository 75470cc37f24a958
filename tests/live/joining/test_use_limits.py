"""Limits of use: hours, batteries in fake folders of the kernel, and cores."""

from datetime import datetime, time, timezone
from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.live.joining.use_limits import Battery, Hours, UseLimits, read_battery


def write_supply(folder: Path, name: str, **values: str) -> None:
    (folder / name).mkdir(parents=True)
    for key, value in values.items():
        (folder / name / key).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("hours", "now", "expected"),
    [
        ("22:00-06:00", time(23), True),
        ("22:00-06:00", time(5, 59), True),
        ("22:00-06:00", time(6), False),
        ("22:00-06:00", time(21, 59), False),
        ("9:00-17:30", time(9), True),
        ("9:00-17:30", time(17, 30), False),
        ("18:00-24:00", time(23, 59), True),
        ("18:00-24:00", time(0), False),
    ],
)
def test_hours_may_pass_midnight_and_exclude_their_end(
    hours: str, now: time, expected: bool
) -> None:
    assert Hours.parse(hours).contains(now) is expected


@pytest.mark.parametrize("text", ["", "22-6", "22:00", "25:00-06:00", "22:60-06:00", "24:30-1:00"])
def test_invalid_hours_name_the_format(text: str) -> None:
    with pytest.raises(SettingError, match="write it as in 22:00-06:00"):
        Hours.parse(text)


def test_equal_hours_are_refused() -> None:
    with pytest.raises(SettingError, match="empty"):
        Hours.parse("06:00-06:00")


def test_a_device_without_battery_has_none(tmp_path: Path) -> None:
    assert read_battery(tmp_path / "missing") is None
    write_supply(tmp_path, "AC", type="Mains", online="1")
    assert read_battery(tmp_path) is None


def test_the_lowest_battery_counts_and_peripherals_do_not(tmp_path: Path) -> None:
    write_supply(tmp_path, "BAT0", type="Battery", capacity="80", status="Discharging")
    write_supply(tmp_path, "BAT1", type="Battery", energy_now="20", energy_full="50")
    write_supply(tmp_path, "mouse", type="Battery", capacity="3", scope="Device")
    assert read_battery(tmp_path) == Battery(40.0, has_power=False)


@pytest.mark.parametrize(
    "values",
    [{"status": "Charging"}, {"status": "Full"}, {"status": "Not charging"}],
)
def test_a_charging_battery_has_power(tmp_path: Path, values: dict[str, str]) -> None:
    write_supply(tmp_path, "BAT0", type="Battery", capacity="5", **values)
    assert read_battery(tmp_path) == Battery(5.0, has_power=True)


def test_a_low_battery_pauses_until_it_has_power(tmp_path: Path) -> None:
    limits = UseLimits(min_battery_percent=30, power_supply=tmp_path)
    assert limits.find_reason_to_pause() is None
    write_supply(tmp_path, "BAT0", type="Battery", capacity="29", status="Discharging")
    reason = limits.find_reason_to_pause()
    assert reason == "the battery is at 29 %, below 30 %, and is not charging"
    write_supply(tmp_path, "AC", type="Mains", online="1")
    assert limits.find_reason_to_pause() is None


def test_hours_pause_by_the_clock_of_the_device() -> None:
    now = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
    limits = UseLimits(hours=Hours.parse("22:00-06:00"), now=lambda: now)
    assert limits.find_reason_to_pause() == "outside of the hours 22:00-06:00"
    now = datetime(2026, 1, 1, 22, 0, tzinfo=timezone.utc)
    assert limits.find_reason_to_pause() is None


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, {0, 1, 2, 3}), (0.5, {2, 3}), (0.3, {3}), (0.01, {3})]
)
def test_a_share_of_cores_is_at_least_one(share: float, expected: set[int]) -> None:
    assert UseLimits(core_share=share).cores({0, 1, 2, 3}) == expected


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_an_invalid_share_of_cores_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="--cores"):
        UseLimits(core_share=share)


def test_an_invalid_battery_limit_is_refused() -> None:
    with pytest.raises(SettingError, match="--min-battery is 130: use a percentage"):
        UseLimits(min_battery_percent=130)


def test_a_battery_limit_is_refused_where_no_battery_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"does not report its battery.*leave --min-battery out"):
        UseLimits(min_battery_percent=30, power_supply=tmp_path / "missing")

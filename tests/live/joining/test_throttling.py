"""Signs of throttling, in fake folders of the kernel and answers of the firmware."""

from pathlib import Path

import pytest

from melisma.live.joining.throttling import find_throttling


def find(folder: Path, answer: str = "") -> tuple[str, ...]:
    return find_throttling(folder / "thermal", folder / "cpu", lambda: answer)


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def test_a_device_without_these_files_shows_no_sign(tmp_path: Path) -> None:
    assert find(tmp_path) == ()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("throttled=0x0", 0),
        ("throttled=0x50000", 0),  # Since the start, not now.
        ("throttled=0x50005", 2),
        ("throttled=0x2", 1),
        ("VCHI initialization failed", 0),
    ],
)
def test_flags_of_a_raspberry_pi_that_hold_now_are_named(
    tmp_path: Path, answer: str, expected: int
) -> None:
    assert len(find(tmp_path, answer)) == expected


def test_low_voltage_says_what_to_mend(tmp_path: Path) -> None:
    assert find(tmp_path, "throttled=0x1\n") == (
        "the supply voltage is too low: use a stronger power supply",
    )


def test_a_zone_at_its_passive_trip_point_is_hot(tmp_path: Path) -> None:
    zone = tmp_path / "thermal" / "thermal_zone0"
    write(zone / "type", "cpu-thermal")
    write(zone / "trip_point_0_type", "active")
    write(zone / "trip_point_0_temp", 50_000)
    write(zone / "trip_point_1_type", "passive")
    write(zone / "trip_point_1_temp", 80_000)
    write(zone / "temp", 79_000)
    assert find(tmp_path) == ()
    write(zone / "temp", 81_500)
    assert find(tmp_path) == ("cpu-thermal is at 82 °C, its limit is 80 °C",)


def test_a_lowered_clock_is_named_once(tmp_path: Path) -> None:
    for core in range(4):
        write(tmp_path / "cpu" / f"cpu{core}" / "cpufreq" / "cpuinfo_max_freq", 1_800_000)
        write(tmp_path / "cpu" / f"cpu{core}" / "cpufreq" / "scaling_max_freq", 1_000_000)
    assert find(tmp_path) == ("the clock is limited to 1.00 GHz of 1.80 GHz (cpu0)",)

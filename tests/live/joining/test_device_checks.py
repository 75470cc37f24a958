"""Checks of a device: each names what it found, and what to mend."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from melisma.live.joining import clock_check, device_checks
from melisma.live.joining.device_checks import CheckedOrchestrator, Finding
from melisma.live.joining.speed_probe import SpeedProbe, measure
from melisma.live.learner.device_identity import DeviceState
from tests.live.joining.fleet import OpenRun
from tests.live.joining.test_enrolling import JoiningDevice


def levels(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.level) for finding in findings]


def test_an_old_or_32_bit_python_fails() -> None:
    assert device_checks.check_python((3, 9)).text == "3.9 is too old: install 3.10 or newer"
    small = device_checks.check_python((3, 11), 2**31 - 1)
    assert small.level == "fail"
    assert "64-bit operating system" in small.text
    assert device_checks.check_python((3, 10)).level == "ok"


def test_a_package_that_cannot_be_imported_is_named() -> None:
    assert device_checks.check_packages(["msgspec"]).level == "ok"
    found = device_checks.check_packages(["msgspec", "no_such_package"])
    assert found.level == "fail"
    assert "no_such_package cannot be imported (ModuleNotFoundError" in found.text


@pytest.mark.parametrize(
    ("free_kb", "level"), [(4_000_000, "ok"), (900_000, "warn"), (100_000, "fail")]
)
def test_memory_that_is_free_counts(tmp_path: Path, free_kb: int, level: str) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 8000000 kB\nMemFree: 5 kB\nMemAvailable: {free_kb} kB\n")
    assert device_checks.check_memory(meminfo).level == level


def test_memory_is_not_known_everywhere(tmp_path: Path) -> None:
    """Other systems tell the memory of the machine, but not what is free."""

    def sysconf(pages: int) -> Callable[[str], int]:
        return lambda name: {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 16384}[name]

    def check(of: Callable[[str], int]) -> Finding:
        return device_checks.check_memory(tmp_path / "missing", of)

    large = check(sysconf(1 << 20))
    assert large.level == "ok"
    assert large.text == "16.0 GB in all; this system does not report how much is free"
    assert check(sysconf(1 << 10)).level == "fail"

    def refuse(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    assert check(refuse).level == "warn"


@pytest.mark.parametrize(
    ("free_bytes", "level"), [(10 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "fail")]
)
def test_the_disk_of_a_folder_that_is_missing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, level: str
) -> None:
    class Usage:
        free = free_bytes

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    found = device_checks.check_disk("cache", tmp_path / "not" / "yet")
    assert (found.check, found.level) == ("cache", level)


@pytest.mark.parametrize(
    ("now_s", "synchronized", "level", "text"),
    [
        (86_400.0, True, "warn", "cannot be right: set it"),
        (3e9, None, "warn", "cannot be right: set it"),
        (1.8e9, False, "warn", "not synchronised with time servers: set it"),
        (1.8e9, None, "ok", "training does not depend on it"),
        (1.8e9, True, "ok", "training does not depend on it"),
    ],
)
def test_a_clock_that_is_wrong_or_alone_is_a_warning(
    now_s: float, *, synchronized: bool | None, level: str, text: str
) -> None:
    found = device_checks.check_clock(now_s, synchronized)
    assert (found.check, found.level) == ("clock", level)
    assert text in found.text


@pytest.mark.parametrize(("answer", "known"), [("yes\n", True), ("no\n", False), ("", None)])
def test_the_system_may_know_whether_the_clock_is_synchronised(
    answer: str, *, known: bool | None
) -> None:
    assert clock_check.is_synchronized(lambda: answer) is known


@pytest.mark.parametrize("status", ["refused", "accepted"])
async def test_the_clock_is_compared_with_that_of_the_orchestrator(
    tmp_path: Path, status: str
) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening() as run:
        if status == "accepted":
            await device.join(run.string)

        async def difference_s(offset_s: float) -> float:
            certificate = device.state.identity if status == "accepted" else None
            found = await asyncio.to_thread(
                clock_check.measure_clock_difference,
                run.address,
                certificate,
                lambda: time.time() + offset_s,
            )
            assert found is not None
            return found

        assert abs(await difference_s(0.0)) < 10
        assert 3590 < await difference_s(3600.0) < 3610
        fake = f"{run.address.partition('#')[0]}#sha256:{'0' * 64}"
        assert await asyncio.to_thread(clock_check.measure_clock_difference, fake) is None


def test_a_difference_of_clocks_says_which_one_to_set() -> None:
    assert clock_check.describe_difference(29.0, None) == ""
    ahead = clock_check.describe_difference(3600.0, None)
    assert ahead.startswith("this device is 3,600 s ahead of the orchestrator: where the clock is")
    behind = clock_check.describe_difference(-60.0, True)
    assert behind.endswith(
        "behind the orchestrator, and synchronised with time servers: set the "
        "clock of the orchestrator"
    )


@pytest.mark.parametrize(
    ("code", "output", "level", "text"),
    [
        (0, b'{"torch_version":"2.6","samples_per_s":{"cpu":1500}}', "ok", "1,500 on cpu"),
        (0, b'{"samples_per_s":{"cuda":9,"cpu":1}}', "ok", "9 on cuda, 1 on cpu"),
        (0, b'{"problem":"missing"}', "warn", "pip install 'melisma[torch]'"),
        (-4, b"", "fail", "ended by signal 4: install a build for this processor"),
        (-9, b"", "fail", "or free memory"),
        (1, b"", "fail", "the measurement failed (the last line)"),
    ],
)
def test_pytorch_is_judged_by_its_own_process(
    code: int, output: bytes, level: str, text: str
) -> None:
    done = subprocess.CompletedProcess([], code, output.decode(), "first\nthe last line\n")
    found, *_ = device_checks.check_speed(lambda *_: done)
    assert found.level == level
    assert text in found.text


@pytest.mark.parametrize(
    ("speeds", "driver", "level", "text"),
    [
        ('{"cuda":9,"cpu":1}', True, "ok", "cuda, which melisma join uses"),
        ('{"mps":9,"cpu":1}', False, "ok", "mps, which melisma join uses"),
        ('{"cpu":1}', False, "ok", "none that PyTorch can use"),
        (
            '{"cpu":1}',
            True,
            "warn",
            "PyTorch 2.6 cannot use the NVIDIA GPU of this device: install",
        ),
    ],
)
def test_a_gpu_has_a_line_of_its_own(
    tmp_path: Path, speeds: str, driver: bool, level: str, text: str
) -> None:
    file = tmp_path / "nvidia0"
    if driver:
        file.touch()
    output = f'{{"torch_version":"2.6","samples_per_s":{speeds}}}'
    done = subprocess.CompletedProcess([], 0, output, "")
    _, found = device_checks.check_speed(lambda *_: done, [file])
    assert (found.check, found.level) == ("gpu", level)
    assert text in found.text


def test_power_that_a_system_does_not_tell_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checks, "read_battery", lambda: None)
    for name in ("reports_power", "reports_throttling"):
        monkeypatch.setattr(device_checks, name, lambda: False)
    found = {item.check: item.text for item in device_checks.check_power()}
    assert found["battery"].startswith("not known on this system")
    assert found["throttling"].startswith("not known on this system")


def test_a_pytorch_that_does_not_load_is_a_failure() -> None:
    def run(*_: str) -> "subprocess.CompletedProcess[str]":
        raise subprocess.TimeoutExpired("python", 180)

    (found,) = device_checks.check_speed(run)
    assert "too slow" in found.text


def test_the_speed_of_the_processor_is_measured() -> None:
    probe = measure(1e-6)
    assert probe == SpeedProbe(probe.torch_version, probe.samples_per_s)
    assert probe.samples_per_s["cpu"] > 0


def test_data_of_the_device_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.zeros((20, 3), np.float32))
    np.save(tmp_path / "labels.npy", np.zeros(20, np.int64))
    assert device_checks.check_data(str(tmp_path)) == Finding(
        "data", "ok", "20 samples, such as (3,)"
    )
    missing = device_checks.check_data(str(tmp_path / "missing"))
    assert missing.level == "fail"
    assert "missing" in missing.text


async def test_each_address_is_checked_and_whether_the_device_has_enrolled(tmp_path: Path) -> None:
    device = JoiningDevice(tmp_path / "a")
    state = device.state

    async def check(target: CheckedOrchestrator) -> list[Finding]:
        return await asyncio.to_thread(
            lambda: list(device_checks.check_orchestrator(target, state))
        )

    async with OpenRun(tmp_path).listening() as run:
        target = CheckedOrchestrator.from_string(run.string)
        before = await check(target)
        assert levels(before) == [
            ("address", "ok"),
            ("address", "warn"),
            ("clocks", "ok"),
            ("enrolled", "warn"),
        ]
        assert "connection refused" in before[1].text
        state.create_identity()
        unknown = (await check(target))[-1]
        assert unknown.level == "warn"
        assert "melisma join STRING" in unknown.text
        await device.join(run.string)
        known = CheckedOrchestrator.last_joined(state)
        assert known is not None
        assert (await check(known))[-1].level == "ok"
        other = CheckedOrchestrator(known.hosts[:1], known.port, f"sha256:{'0' * 64}")
        refused = await check(other)
    assert levels(refused) == [("address", "fail"), ("orchestrator", "fail")]
    assert "another server answers" in refused[0].text
    gone = await check(known)
    assert levels(gone)[-1] == ("orchestrator", "fail")
    assert "firewall allows TCP port" in gone[-1].text


def test_a_device_that_has_joined_nothing_has_no_target(tmp_path: Path) -> None:
    assert CheckedOrchestrator.last_joined(DeviceState(tmp_path)) is None

"""Stressors in real threads, on emulated devices and on this machine itself."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from melisma import axon
from melisma.errors import RefusedError, SettingError, UnregisteredError
from melisma.fleet.emulation import MAX_CATCH_UP_S
from melisma.fleet.stressors import stress_matrix
from melisma.live.learner import running_stressor
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.learner.learner_settings import EmulatedDevice, OperatingState
from melisma.live.learner.running_stressor import Stressors
from melisma.live.protocol import STRESS_MATRIX
from tests.live.learner import own_stress

OWN = own_stress.__name__
MATRIX_BYTES = 900 * 900 * 8
PATIENCE_S = 60.0


class NoFiles:
    """An orchestrator that nothing is fetched from."""

    def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
        raise AssertionError((name, start))


def emulate(stress: str, *, share: float = 0.2, bandwidth_bps: float = 1e9) -> Device:
    states = (OperatingState(stress=stress),)
    return Device(EmulatedDevice(share, bandwidth_bps, bandwidth_bps, 0.0, states))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; it is checked often."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def work(seconds: float) -> None:
    """Use this much processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def train(device: Device, least_s: float, is_enough: Callable[[], bool]) -> tuple[float, float]:
    """Work in small pieces; return the processor time and the time of the device."""
    device.start_compute()
    began, used_s = device.now(), time.thread_time()
    while time.thread_time() - used_s < least_s or not is_enough():
        work(0.003)
        device.throttle()
    device.finish_compute()
    return time.thread_time() - used_s, device.now() - began


def test_products_take_processor_time_from_training() -> None:
    """The device needs the time of both; other load on this machine only makes it longer."""
    device = emulate("training")
    began_s = time.process_time()
    with Stressors(device, NoFiles(), ()).running():
        used_s, took_s = train(device, 0.1, lambda: device.contention.counted_s > 0.06)
    taken_s = device.contention.counted_s
    assert time.process_time() - began_s >= used_s + taken_s
    assert took_s >= 0.95 * (used_s + taken_s) / 0.2
    assert took_s > 1.2 * used_s / 0.2


def test_a_stressor_uses_half_of_the_core_at_most() -> None:
    device = emulate("training", share=0.1)
    began = time.monotonic()
    with Stressors(device, NoFiles(), ()).running():
        wait_for(lambda: device.contention.used_s > 0.05)
        took_s = time.monotonic() - began
    # It may be ahead by a short sleep and a part of a product.
    assert took_s > 0.7 * 0.05 / (0.5 * 0.1)


def test_a_stressor_ends_when_the_work_ends() -> None:
    device = emulate("training")
    with Stressors(device, NoFiles(), ()).running():
        wait_for(lambda: device.contention.used_s > 0)
    used_s, ended_s = device.contention.used_s, time.thread_time()
    work(0.05)
    assert time.thread_time() > ended_s
    assert device.contention.used_s == used_s


def test_a_state_without_a_stressor_runs_none() -> None:
    device = emulate("")
    with Stressors(device, NoFiles(), ()).running():
        train(device, 0.02, lambda: True)
    assert device.contention.used_s == 0


def test_a_matrix_is_downloaded_again_and_again_over_the_link_of_the_device(
    tmp_path: Path,
) -> None:
    """What it moves and another download together are no more than the link carries."""
    (tmp_path / STRESS_MATRIX).write_bytes(stress_matrix())
    worker = axon.Worker(port=0, files=lambda name, _caller: tmp_path / name)
    moved: list[int] = []

    class CountingConnection(Connection):
        def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
            for piece in super().fetch(name, start):
                moved.append(len(piece))
                yield piece

    bytes_per_s = MATRIX_BYTES / 0.2
    with worker.start() as address, CountingConnection((address,)) as connection:
        device = emulate("downloading", bandwidth_bps=8 * bytes_per_s)
        began, others = time.monotonic(), 0
        with Stressors(device, connection, ()).running():
            wait_for(lambda: sum(moved) > 2 * MATRIX_BYTES)
            device.start_download()
            while sum(moved) < 2.5 * MATRIX_BYTES:
                device.add_downloaded(1 << 16)
                others += 1 << 16
            took_s = time.monotonic() - began
            carried = sum(moved) + others
    assert others
    # A piece may be on its way, and a link makes up for a short delay.
    assert took_s > (carried - (1 << 17)) / bytes_per_s - MAX_CATCH_UP_S - 0.01


class FailingFiles:
    """An orchestrator that answers each download with an error."""

    def __init__(self, error: Exception) -> None:
        self.error, self.asked = error, threading.Event()

    def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
        del name, start
        self.asked.set()
        raise self.error


def test_a_download_that_ends_with_the_run_is_no_error_and_a_refused_one_is() -> None:
    device = emulate("downloading")
    files = FailingFiles(UnregisteredError("the run has ended"))
    with Stressors(device, files, ()).running():
        assert files.asked.wait(PATIENCE_S)
    files = FailingFiles(RefusedError("no file stress-matrix"))
    with (
        pytest.raises(SettingError, match="stress downloading: RefusedError: no file"),
        Stressors(device, files, ()).running(),
    ):
        assert files.asked.wait(PATIENCE_S)


def test_the_matrix_is_always_the_same_and_has_900_rows_of_float64() -> None:
    assert len(stress_matrix()) == MATRIX_BYTES
    assert stress_matrix() == stress_matrix()


def test_a_function_of_the_user_runs_only_from_an_allowed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("STRESS_LOG", str(log))
    device = emulate(f"{OWN}:count_rounds")
    with pytest.raises(SettingError, match=f"--allow-module {OWN}"):
        Stressors(device, NoFiles(), ("another",))
    with Stressors(device, NoFiles(), (OWN,)).running():
        wait_for(log.exists)
    assert device.contention.used_s > 0


def test_a_stressor_that_fails_is_an_error_of_the_learner() -> None:
    stressors = Stressors(emulate(f"{OWN}:fail"), NoFiles(), (OWN,))
    expected = "own_stress:fail: ZeroDivisionError: nothing"
    with pytest.raises(SettingError, match=expected), stressors.running():
        pass


def test_an_error_of_the_work_is_not_hidden_by_one_of_the_stressor() -> None:
    stressors = Stressors(emulate(f"{OWN}:fail"), NoFiles(), (OWN,))
    with pytest.raises(KeyError), stressors.running():
        raise KeyError


def test_a_stressor_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_stressor, "END_S", 0.05)
    stressors = Stressors(emulate(f"{OWN}:ignore_stop"), NoFiles(), (OWN,))
    with pytest.raises(SettingError, match=r"has to call stop\(\) often"), stressors.running():
        assert own_stress.BEGAN.wait(PATIENCE_S)
    own_stress.END.set()


def test_on_a_real_device_a_stressor_runs_unpaced() -> None:
    device = Device(None)
    assert device.stress == ""
    assert device.stress_pacer(time.sleep) is None

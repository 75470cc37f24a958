"""Emulated devices take the time of the device, on a clock that the test moves."""

import pytest

from melisma.live.learner.device import Device, EmulatedDevice
from tests.live.learner.manual_clock import ManualClock


def test_transfers_take_the_time_of_the_link(clock: ManualClock) -> None:
    device = Device(EmulatedDevice(1.0, 8e6, 16e6, 0.25))
    began = clock.now_s
    device.start_download()
    for _ in range(10):
        device.add_downloaded(100_000)
    assert clock.now_s - began == pytest.approx(0.25 + 1.0)
    began = clock.now_s
    device.delay_upload(1_000_000)
    assert clock.now_s - began == pytest.approx(0.25 + 0.5)


def test_a_real_device_is_not_slowed(clock: ManualClock) -> None:
    device, began = Device(None), clock.now_s
    device.start_compute()
    device.throttle()
    device.start_download()
    device.add_downloaded(10**9)
    device.delay_upload(10**9)
    assert clock.now_s == began


def test_states_follow_their_probabilities_and_the_seed(clock: ManualClock) -> None:
    states = ((0.5, 1.0, 1.0), (0.5, 0.25, 0.5))

    def seconds(cycle: int, seed: int) -> float:
        device = Device(EmulatedDevice(0.5, 8e6, 8e6, 0.0, states, seed), number=3)
        device.start_cycle(cycle)
        began = clock.now_s
        device.start_compute()
        clock.work(1.0)
        device.finish_compute()
        return round(clock.now_s - began, 6)

    first = [seconds(cycle, 1) for cycle in range(40)]
    assert first == [seconds(cycle, 1) for cycle in range(40)]
    assert set(first) == {2.0, 8.0}
    assert 8 < first.count(2.0) < 32
    assert first != [seconds(cycle, 2) for cycle in range(40)]

"""Emulated devices take the time of the device, on a clock that the test moves."""

from typing import Literal

import msgspec
import numpy as np
import pytest

from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.variation import BandwidthTrace, Variation
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.live.learner.device import NOMINAL_SHARE, Device
from melisma.live.learner.learner_settings import EmulatedDevice, OperatingState
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


def test_paced_batches_take_the_time_of_the_device_for_their_samples(clock: ManualClock) -> None:
    device = Device(EmulatedDevice(0.3, 1e6, 1e6, 0.0, sample_s=0.01))
    samples = Split(np.zeros((20, 1)), np.zeros(20))
    device.start_compute()
    began, asked_s = clock.now_s, list[float]()

    def stop() -> bool:
        asked_s.append(device.now() - began)
        return False

    batches = device.pace(batches_of(samples, 1, 8, np.random.default_rng(1), stop))
    clock.work(0.005)  # setup is not part of the first batch
    for _ in batches:
        clock.work(0.001)
    device.finish_compute()
    assert asked_s == pytest.approx([0.005, 0.085, 0.165, 0.205])
    assert clock.now_s - began == pytest.approx(0.205)


def test_states_follow_their_probabilities_and_the_seed(clock: ManualClock) -> None:
    states = (OperatingState(0.5), OperatingState(0.5, 0.25, 0.5))

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


def test_training_waits_for_a_stressor_on_the_same_core(clock: ManualClock) -> None:
    """A stressor that uses as much as training doubles its time; the shares do not count."""
    state = OperatingState(1.0, 0.1, 0.1, "training")
    device = Device(EmulatedDevice(0.5, 8e6, 8e6, 0.0, (state,)))
    assert device.stress == "training"
    device.contention.used_s = 7.0  # before training begins
    device.start_compute()
    began = clock.now_s
    for _ in range(100):
        clock.work(0.01)
        device.contention.used_s += 0.01
        device.throttle()
    device.finish_compute()
    assert clock.now_s - began == pytest.approx(2 * 1.0 / 0.5)
    began = clock.now_s
    device.start_download()
    device.add_downloaded(1_000_000)
    assert clock.now_s - began == pytest.approx(1.0)


@pytest.mark.parametrize("sample_s", [None, 0.02])
def test_a_stressor_takes_nothing_while_training_has_no_work(
    clock: ManualClock, sample_s: float | None
) -> None:
    state = OperatingState(stress="training")
    device = Device(EmulatedDevice(0.5, 8e6, 8e6, 0.0, (state,), sample_s=sample_s))
    device.start_compute()
    began = clock.now_s
    for _ in range(10):
        clock.work(0.01)
        device.add_samples(1)
        device.throttle()
        clock.sleep(0.5)
        device.contention.used_s += 0.25
        device.skip(0.5)
    device.finish_compute()
    assert clock.now_s - began == pytest.approx(10 * (0.5 + 0.02), rel=0.02)


def test_samples_of_a_given_duration_take_longer_beside_a_stressor(clock: ManualClock) -> None:
    state = OperatingState(stress="training")
    device = Device(EmulatedDevice(0.25, 8e6, 8e6, 0.0, (state,), sample_s=0.1))
    device.start_compute()
    began = clock.now_s
    for _ in range(20):
        # Half of its share of a core, for as long as the sample takes.
        device.contention.used_s += 0.2 * NOMINAL_SHARE / 2
        device.add_samples(1)
        device.throttle()
    device.finish_compute()
    assert clock.now_s - began == pytest.approx(20 * 2 * 0.1)


TRACE = ((0.0, 6e6, 2e6), (20.0, 1e6, 0.0), (25.0, 9e6, 4e6))


def vary(seed: int = 4) -> Variation:
    """Return the variation of a simulated fleet of 10 learners that all have noise and a trace."""
    noise = {"compute": 0.4, "bandwidth": 0.3, "correlation_s": 3.0}
    group = {"count": 10, "samples_per_s": 10.0, "bandwidth_bps": 1e6, "noise": noise}
    table = msgspec.convert({"seed": seed, "group": [group]}, FleetTable)
    variation = build_fleet(table).variation
    return Variation(
        seed, variation.learners, variation.noise, np.zeros(10, np.int64), (BandwidthTrace(TRACE),)
    )


def make_varying_device(began_at: float, sample_s: float | None) -> Device:
    states = (OperatingState(1.0, 0.5, 0.25),)
    noise = (0.4, 0.3, 3.0)
    emulated = EmulatedDevice(0.8, 8e6, 4e6, 0.0, states, 4, sample_s, noise, TRACE)
    return Device(emulated, number=7, began_at=began_at)


@pytest.mark.parametrize("run_s", [0.0, 7.0, 1003.5])
def test_an_emulated_device_varies_like_the_simulated_one(clock: ManualClock, run_s: float) -> None:
    varying = vary().of(np.array([7]))

    def expect(resource: Literal["compute", "downlink", "uplink"], work_s: float) -> float:
        at_s = np.array([clock.now_s - began_at])
        return float(varying.seconds(resource, at_s, np.array([work_s]))[0])

    began_at = clock.now_s - run_s
    device = make_varying_device(began_at, sample_s=0.1)
    began, seconds = clock.now_s, expect("downlink", 8.0)
    device.start_download()
    for _ in range(20):
        device.add_downloaded(100_000)
    assert clock.now_s - began == pytest.approx(seconds, abs=1e-4)
    began, seconds = clock.now_s, expect("uplink", 4.0)
    device.delay_upload(500_000)
    assert clock.now_s - began == pytest.approx(seconds, abs=1e-4)
    began, seconds = clock.now_s, expect("compute", 60 * 0.1 / 0.5)
    device.start_compute()
    for _ in range(60):
        device.add_samples(1)
        device.throttle()
    device.finish_compute()
    assert clock.now_s - began == pytest.approx(seconds, abs=1e-4)
    device = make_varying_device(began_at, sample_s=None)
    began, seconds = clock.now_s, expect("compute", 5.0 / (0.8 * 0.5))
    device.start_compute()
    for _ in range(50):
        clock.work(0.1)
        device.throttle()
    device.finish_compute()
    assert clock.now_s - began == pytest.approx(seconds, rel=1e-3)

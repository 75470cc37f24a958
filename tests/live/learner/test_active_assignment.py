"""Assignments end in time, on a clock that the test moves."""

import time
from collections.abc import Iterator
from math import isnan

import numpy as np
import pytest

from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.live.learner.active_assignment import ActiveAssignment, WithdrawnError, seconds_per
from melisma.live.learner.device import Device
from melisma.live.learner.learner_settings import EmulatedDevice
from melisma.live.protocol import Train
from tests.live.learner.manual_clock import ManualClock

SAMPLES = Split(np.zeros((32, 2)), np.zeros(32))


def receive_assignment(seconds_left: float = 10.0) -> ActiveAssignment:
    train = Train(1, 1, "model-0.safetensors", 2, seconds_left)
    return ActiveAssignment(train, time.monotonic())


def train_until_stopped(
    assignment: ActiveAssignment,
    clock: ManualClock,
    device: Device,
    batch_s: float,
    upload_s: float,
) -> int:
    """Return the number of batches trained."""
    stream = batches_of(
        SAMPLES, 10**6, 32, np.random.default_rng(1), assignment.stop_signal(device, upload_s)
    )
    batches = 0
    for _ in assignment.time_batches(stream, device):
        clock.work(batch_s)
        batches += 1
    device.finish_compute()
    return batches


@pytest.mark.parametrize("share", [0.05, 0.25, 1.0])
def test_training_on_a_share_of_a_core_ends_in_time(clock: ManualClock, share: float) -> None:
    device = Device(EmulatedDevice(share, 1e6, 1e6, 0.0))
    began, assignment = clock.now_s, receive_assignment()
    batches = train_until_stopped(assignment, clock, device, batch_s=0.01, upload_s=1.5)
    took_s, batch_s = clock.now_s - began, 0.01 / share
    assert 8.5 - 2 * batch_s <= took_s <= 8.5 + 1e-9
    assert batches == pytest.approx(8.5 / batch_s, abs=2)
    assert assignment.visits == 32 * batches


def test_a_batch_that_would_end_too_late_is_not_started(clock: ManualClock) -> None:
    assignment, device = receive_assignment(10.0), Device(None)
    began = clock.now_s
    assert train_until_stopped(assignment, clock, device, batch_s=3.0, upload_s=0.0) == 3
    assert clock.now_s - began == pytest.approx(9.0)


def test_setup_ends_at_the_first_request_and_stands_for_the_first_batch(clock: ManualClock) -> None:
    assignment, device = receive_assignment(10.0), Device(None)
    stop = assignment.stop_signal(device, 0.0)
    batches = assignment.time_batches(iter([SAMPLES]), device)
    clock.work(6.0)
    next(batches)
    assert assignment.setup_s == pytest.approx(6.0)
    assert stop()


def test_time_in_which_no_batch_was_ready_is_not_part_of_a_batch(clock: ManualClock) -> None:
    """A device of 0.1 s a sample, which waits 2 s for the samples of its second batch."""
    assignment, device = (
        receive_assignment(100.0),
        Device(EmulatedDevice(1.0, 1e6, 1e6, 0.0, sample_s=0.1)),
    )
    stop, began = assignment.stop_signal(device, 0.0), clock.now_s

    def delayed() -> Iterator[Split]:
        assert not stop()
        yield SAMPLES
        for _ in range(40):
            assert not stop()
            clock.sleep(0.05)
            device.skip(0.05)
        assert not stop()
        yield SAMPLES

    for _ in assignment.time_batches(delayed(), device):
        clock.work(0.001)
    device.finish_compute()
    assert clock.now_s - began == pytest.approx(3.2 + 2.0 + 3.2)
    assert assignment.batch_s == pytest.approx(3.2)
    assert assignment.visits == 64


def test_sleeping_too_long_does_not_slow_a_device_down(clock: ManualClock) -> None:
    """A device of 2 ms a sample on a machine whose sleeps take 10 ms too long."""
    assignment = receive_assignment(10.0)
    device = Device(EmulatedDevice(1.0, 1e6, 1e6, 0.0, sample_s=0.002))
    clock.oversleep_s = 0.01
    batches = train_until_stopped(assignment, clock, device, batch_s=0.001, upload_s=0.0)
    assert batches == pytest.approx(10.0 / 0.064, abs=1.5)


def test_withdrawn_work_stops_at_the_next_batch(clock: ManualClock) -> None:
    assignment = receive_assignment()
    stop = assignment.stop_signal(Device(None), 0.0)
    assert not stop()
    assignment.withdraw()
    with pytest.raises(WithdrawnError):
        stop()


def test_phases_add_up_to_the_time_since_the_instruction(clock: ManualClock) -> None:
    assignment = receive_assignment()
    for phase, seconds in (("wait", 0.5), ("fetch model", 1.0), ("train", 4.0), ("train", 2.0)):
        clock.sleep(seconds)
        assert assignment.lap(phase) == pytest.approx(seconds)
    assert assignment.seconds["train"] == pytest.approx(6.0)
    assert sum(assignment.seconds.values()) == pytest.approx(clock.now_s - assignment.received_at)


def test_seconds_per_item_are_nan_without_items() -> None:
    assert seconds_per(3.0, 2) == 1.5
    assert isnan(seconds_per(3.0, 0))

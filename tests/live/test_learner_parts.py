"""The parts of a learner, with a clock that the test moves."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from melisma.cycle.learner import CostHistory
from melisma.fleet.estimates import Estimate
from melisma.learning.trainer import Trained
from melisma.live.learner.active_assignment import ActiveAssignment, WithdrawnError, seconds_per
from melisma.live.learner.device import Device, EmulatedDevice
from melisma.live.learner.paced_trainer import PacedTrainer
from melisma.live.protocol import Train


class Clock:
    """Stands for the time of this process: sleeping moves it, and so does work."""

    def __init__(self) -> None:
        self.now_s, self.used_s = 100.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.used_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(time, "process_time", lambda: made.used_s)
    monkeypatch.setattr(time, "sleep", made.sleep)
    return made


def job(seconds_left: float = 10.0) -> ActiveAssignment:
    order = Train(1, 1, "model-0.safetensors", 2, seconds_left)
    return ActiveAssignment(order, time.monotonic())


def known(**said: Estimate) -> CostHistory:
    one = Estimate(1.0, 0.1, 8)
    parts = dict.fromkeys(("train_s", "ship_s", "down_s", "up_s", "rest_s"), one)
    return CostHistory(**parts | said)


def trained(
    job: ActiveAssignment, clock: Clock, device: Device, batch_s: float, upload_s: float
) -> int:
    stop: Callable[[], bool] = job.stop_signal(device, 32, upload_s)
    batches = 0
    while not stop():
        clock.work(batch_s)
        batches += 1
    device.finish_compute()
    return batches


@pytest.mark.parametrize("share", [0.05, 0.25, 1.0])
def test_training_on_a_share_of_a_core_ends_in_time(clock: Clock, share: float) -> None:
    device = Device(EmulatedDevice(share, 1e6, 0.0))
    began, at_work = clock.now_s, job()
    batches = trained(at_work, clock, device, batch_s=0.01, upload_s=1.5)
    took_s, batch_s = clock.now_s - began, 0.01 / share
    assert 8.5 - 2 * batch_s <= took_s <= 8.5 + 1e-9
    assert batches == pytest.approx(8.5 / batch_s, abs=2)
    assert at_work.visits == 32 * batches


def test_a_batch_that_would_be_too_late_is_not_begun(clock: Clock) -> None:
    at_work, device = job(10.0), Device(None)
    began = clock.now_s
    assert trained(at_work, clock, device, batch_s=3.0, upload_s=0.0) == 3
    assert clock.now_s - began == pytest.approx(9.0)


def test_work_that_is_withdrawn_stops_at_once(clock: Clock) -> None:
    at_work = job()
    stop = at_work.stop_signal(Device(None), 32, 0.0)
    assert not stop()
    at_work.withdraw()
    with pytest.raises(WithdrawnError):
        stop()


def test_phases_add_up_to_the_time_since_the_order(clock: Clock) -> None:
    at_work = job()
    for phase, seconds in (("wait", 0.5), ("fetch model", 1.0), ("train", 4.0), ("train", 2.0)):
        clock.sleep(seconds)
        assert at_work.lap(phase) == pytest.approx(seconds)
    assert at_work.seconds["train"] == pytest.approx(6.0)
    assert sum(at_work.seconds.values()) == pytest.approx(clock.now_s - at_work.received_at)


def test_transfers_take_as_long_as_the_link(clock: Clock) -> None:
    device = Device(EmulatedDevice(1.0, 8e6, 0.25))
    began = clock.now_s
    device.start_transfer()
    for _ in range(10):
        device.add_bytes(100_000)
    assert clock.now_s - began == pytest.approx(0.25 + 1.0)


def test_a_real_device_waits_for_nothing(clock: Clock) -> None:
    device, began = Device(None), clock.now_s
    device.start_compute()
    device.throttle()
    device.start_transfer()
    device.add_bytes(10**9)
    assert clock.now_s == began


def test_states_are_drawn_by_their_chances_and_the_seed(clock: Clock) -> None:
    states = ((0.5, 1.0, 1.0), (0.5, 0.25, 0.5))

    def seconds(cycle: int, seed: int) -> float:
        device = Device(EmulatedDevice(0.5, 8e6, 0.0, states, seed), number=3)
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


def test_the_three_costs_are_those_of_the_cost_model() -> None:
    costs = known(down_s=Estimate(2.0, 0.3, 4), up_s=Estimate(3.0, 0.4, 6)).estimates
    assert float(costs.fixed_s.mean) == 6.0
    assert float(costs.fixed_s.spread) == pytest.approx(np.sqrt(0.09 + 0.16 + 0.01))
    assert float(costs.fixed_s.count) == 4
    assert known().costs().shape == (3, 3)


def test_estimates_follow_a_device_that_slows_down() -> None:
    experience = known()
    cautious = []
    for _ in range(20):
        experience = experience.after(train_s=4.0)
        cautious.append(float(experience.train_s.quantile(0.9)))
    assert cautious[0] > 1.5
    assert float(experience.train_s.mean) == pytest.approx(4.0, rel=0.1)
    assert float(experience.ship_s.mean) == 1.0


def test_what_was_not_measured_changes_nothing() -> None:
    before = known()
    after = before.after(ship_s=seconds_per(3.0, 0), train_s=seconds_per(3.0, 2))
    assert after.costs()[1].tolist() == before.costs()[1].tolist()
    assert float(after.train_s.mean) > 1.0


def test_a_speed_in_samples_is_kept_whatever_the_machine_takes(clock: Clock) -> None:
    device = Device(EmulatedDevice(0.3, 1e6, 0.0, sample_s=0.01))

    class Quick:
        """Trains in batches of 8 that take this machine next to nothing."""

        def train(self, parameters: Any, samples: Any, passes: int, rng: Any, stop: Any) -> Trained:
            visits = 0
            while visits < 20 and not stop():
                clock.work(0.001)
                visits += min(8, 20 - visits)
            return Trained(parameters, visits, 0.0)

    device.start_compute()
    began = clock.now_s
    at: list[float] = []

    def stop() -> bool:
        at.append(device.now() - began)
        return False

    trainer: Any = PacedTrainer(Quick(), device, 8)  # type: ignore[arg-type]
    assert trainer.train({}, None, 1, None, stop).visits == 20
    device.finish_compute()
    assert at == pytest.approx([0.0, 0.08, 0.16])
    assert clock.now_s - began == pytest.approx(0.2)

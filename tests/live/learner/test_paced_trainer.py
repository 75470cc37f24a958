"""A paced trainer takes the time that the device needs for each sample."""

from typing import Any

import pytest

from melisma.learning.trainer import TrainingResult
from melisma.live.learner.device import Device, EmulatedDevice
from melisma.live.learner.paced_trainer import PacedTrainer
from tests.live.learner.manual_clock import ManualClock


def test_a_speed_in_samples_holds_whatever_the_speed_of_this_machine(clock: ManualClock) -> None:
    device = Device(EmulatedDevice(0.3, 1e6, 1e6, 0.0, sample_s=0.01))

    class FastTrainer:
        """Trains 20 samples in batches of 8, each in a millisecond."""

        def train(
            self, parameters: Any, samples: Any, passes: int, rng: Any, stop: Any
        ) -> TrainingResult:
            visits = 0
            while visits < 20 and not stop():
                clock.work(0.001)
                visits += min(8, 20 - visits)
            return TrainingResult(parameters, visits, 0.0)

    device.start_compute()
    began = clock.now_s
    asked_s: list[float] = []

    def stop() -> bool:
        asked_s.append(device.now() - began)
        return False

    trainer: Any = PacedTrainer(FastTrainer(), device, 8)  # type: ignore[arg-type]
    assert trainer.train({}, None, 1, None, stop).visits == 20
    device.finish_compute()
    assert asked_s == pytest.approx([0.0, 0.08, 0.16])
    assert clock.now_s - began == pytest.approx(0.2)

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.fleet.emulation import ComputePacer
from melisma.fleet.task import Task
from melisma.learning.benchmark import (
    ReferenceDevice,
    TrainCost,
    download_benchmark,
    measure_flops,
    subset_benchmark,
)
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.trainer import Score, TrainingResult

BATCH = 10


class Clock:
    """Time passes only when something says so."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now(self) -> float:
        return self.at_s

    def pass_s(self, seconds: float) -> None:
        self.at_s += seconds


class Steady:
    """A trainer that takes so long before, for each sample, and after; its first is slow."""

    def __init__(
        self, clock: Clock, before: float = 0.5, sample: float = 0.25, after: float = 0.125
    ) -> None:
        self.clock, self.before, self.sample, self.after = clock, before, sample, after
        self.calls, self.visits, self.cold = 0, 0, 1000.0

    def initial(self) -> dict[str, NDArray[Any]]:
        return {"w": np.zeros(2)}

    def train(
        self, parameters: Arrays, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        self.calls += 1
        self.clock.pass_s(self.before + self.cold)
        self.cold = 0.0
        visits = 0
        for batch in batches:
            self.clock.pass_s(self.sample * len(batch))
            visits += len(batch)
        self.visits += visits
        self.clock.pass_s(self.after)
        return TrainingResult(dict(parameters), visits, 1.0)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        raise NotImplementedError


def shard(samples: int) -> Split:
    return Split(np.zeros((samples, 2)), np.zeros(samples, np.int64))


def measure(trainer: Steady, sizes: list[int], **changes: Any) -> TrainCost:
    arguments: dict[str, Any] = {
        "batch": BATCH,
        "rng": np.random.default_rng(0),
        "now_s": trainer.clock.now,
        "throttle": lambda: None,
    }
    return subset_benchmark(trainer, [shard(size) for size in sizes], **arguments | changes)


@given(
    sizes=st.lists(st.integers(11, 60), min_size=1, max_size=5),
    before=st.floats(0, 10),
    sample=st.floats(0, 10),
    after=st.floats(0, 10),
    whole=st.integers(1, 100),
)
def test_constant_costs_are_measured_to_rounding_error(
    sizes: list[int], before: float, sample: float, after: float, whole: int
) -> None:
    trainer = Steady(Clock(), before, sample, after)
    cost = measure(trainer, sizes, shard_samples=whole)
    assert float(cost.shard_s.mean) == pytest.approx(sample * whole, abs=1e-6)
    assert float(cost.setup_s.mean) == pytest.approx(before + after, abs=1e-6)
    assert float(cost.shard_s.spread) == pytest.approx(0, abs=1e-6)
    assert float(cost.shard_s.count) == len(sizes)
    assert cost.seconds(20) == pytest.approx(before + after + 20 * sample * whole, abs=1e-5)


def test_exactly_representable_costs_are_measured_exactly() -> None:
    cost = measure(Steady(Clock()), [40, 40, 20])
    assert float(cost.shard_s.mean) == 0.25 * 40
    assert float(cost.setup_s.mean) == 0.625
    assert float(cost.shard_s.spread) == float(cost.setup_s.spread) == 0.0


def test_the_spread_equals_that_of_the_shards() -> None:
    trainer = Steady(Clock())
    taken = iter([0.25, 0.25, 0.2, 0.3, 0.4])
    begin = trainer.initial

    def initial() -> dict[str, NDArray[Any]]:
        trainer.sample = next(taken)
        return begin()

    trainer.initial = initial  # type: ignore[method-assign]
    cost = measure(trainer, [40, 40, 40])
    assert float(cost.shard_s.mean) == pytest.approx(0.3 * 40)
    assert float(cost.shard_s.spread) == pytest.approx(0.1 * 40)


def test_the_pace_is_kept_before_every_batch_and_around_every_training() -> None:
    trainer, rests = Steady(Clock()), []
    measure(trainer, [40, 40], throttle=lambda: rests.append(trainer.clock.at_s))
    # Two warm-ups ask twice each, two shards five times; one rest before and one after each.
    assert len(rests) == 2 * 2 + 2 * 5 + 4 * 2


def test_a_paced_device_is_measured_at_its_own_speed() -> None:
    clock, used = Clock(), Clock()
    trainer = Steady(used)
    pace = ComputePacer(0.1, used.now, clock.now, clock.pass_s)
    cost = measure(trainer, [40, 40], now_s=clock.now, throttle=pace.throttle)
    assert float(cost.shard_s.mean) == pytest.approx(0.25 * 40 / 0.1)
    assert float(cost.setup_s.mean) == pytest.approx(0.625 / 0.1)


@pytest.mark.parametrize(
    ("late_s", "visits", "count"),
    [
        (0, 10, 1),  # the first batch of all
        (1004, 20, 1),  # both warm-ups
        (1012, 50, 1),  # in the middle of the first shard
        (1030, 110, 2),  # in the middle of the third, which does not count then
        (9999, 140, 3),
    ],
)
def test_the_benchmark_stops_in_time_and_uses_its_measurements_so_far(
    late_s: float, visits: int, count: int
) -> None:
    trainer = Steady(Clock())
    cost = measure(trainer, [40, 40, 40], until_s=100 + late_s, shard_samples=40)
    assert trainer.visits == visits
    assert float(cost.shard_s.count) == count
    assert float(cost.shard_s.mean) == 10.0
    if late_s:
        assert float(cost.setup_s.mean) == 0.625


@pytest.mark.parametrize("sizes", [[], [40, 0]])
def test_a_benchmark_without_samples_is_refused(sizes: list[int]) -> None:
    with pytest.raises(SettingError, match="at least one shard, each with samples"):
        measure(Steady(Clock()), sizes)


def test_a_trainer_that_requests_no_batch_is_refused() -> None:
    class RequestsNothing(Steady):
        def train(self, parameters: Arrays, *_: Any) -> TrainingResult:
            return TrainingResult(dict(parameters), 40, 1.0)

    with pytest.raises(DataError, match="requested 0 batches and reports 40 visits"):
        measure(RequestsNothing(Clock()), [40])


def test_fetching_is_timed_for_each_shard_and_a_short_shard_is_ignored() -> None:
    clock, taken = Clock(), [1.0, 2.0, 0.25, 3.0]

    def fetch(number: int) -> int:
        clock.pass_s(taken[number])
        return 10 if number == 2 else 500

    cost = download_benchmark(fetch, 4, clock.now)
    assert (float(cost.mean), float(cost.spread), float(cost.count)) == (2.0, 1.0, 3.0)
    with pytest.raises(SettingError, match="at least 1 shard, not 0"):
        download_benchmark(fetch, 0, clock.now)


def test_the_rate_of_operations_is_measured_by_the_clock() -> None:
    clock = Clock()
    assert measure_flops(clock.now, lambda: clock.pass_s(0.25), side=8, times=3) == 2 * 8**3 / 0.25
    assert ReferenceDevice(flops=4e9, seconds=30.0).predict_s(1e9) == 120.0


def test_this_machine_is_measured() -> None:
    task = Task(name="digits", model="twonn", data="mnist", deadline_s=15.0)
    rng = np.random.default_rng(0)
    shards = [
        Split(rng.integers(0, 255, (200, 28, 28), np.uint8), rng.integers(0, 9, 200))
        for _ in range(3)
    ]
    began_s = time.perf_counter()
    cost = subset_benchmark(
        TorchTrainer(task),
        shards,
        batch=32,
        rng=rng,
        now_s=time.perf_counter,
        throttle=lambda: None,
    )
    took_s = time.perf_counter() - began_s
    # All that was measured lies within the time that passed.
    assert 0 < 3 * cost.shard_s.mean < took_s
    assert 0 < cost.setup_s.mean < took_s
    assert cost.seconds(3) < took_s
    assert measure_flops(time.perf_counter, lambda: None, times=3) > 1e6

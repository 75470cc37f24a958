"""Real training in virtual time."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor, nn

from melisma.cycle import commands, events
from melisma.errors import MelismaWarning, RunFailedError
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.rng import Generators
from melisma.fleet.server_settings import ServerSettings
from melisma.fleet.task import Task
from melisma.learning import batched
from melisma.learning.aggregation import RunningMean, SpooledUpdate, UpdateSpool, weighted_mean
from melisma.learning.batched import TrainingWork, train_one
from melisma.learning.parameters import Layout
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.server.server_optimizer import ServerOptimizer
from melisma.learning.verification.update_check import UpdateChecks
from melisma.runs.report import Report
from melisma.runs.trace import Step, encode_step, read_trace
from melisma.simulation.compute.fork_pool import ForkPool
from melisma.simulation.compute.real_training import PartResult, RealTraining
from melisma.simulation.compute.work_record import WeightedWork, WorkRecord
from melisma.simulation.compute.work_trainer import WorkTrainer
from melisma.simulation.driver import Driver
from melisma.simulation.faults import parse_faults
from melisma.simulation.simulation import PreparedSimulation, SimulationOptions, prepare, run
from tests.live import tiny_task

MODULE = "melisma.simulation.compute.real_training"

TASK: dict[str, Any] = {
    "name": "blobs",
    "model": "tiny_task:Linear",
    "data": "tiny_task:blobs",
    "scheme": "equal",
    "passes": 2,
    "deadline_s": 10.0,
    "cycles": 3,
    "shard_samples": 40,
    "optimizer": {"name": "sgd", "lr": 0.3},
}
TORCH: dict[str, Any] = {"model": "mlp", "model_args": {"layers": [4, 8, 2]}}
GROUP = {"group": [{"count": 5, "samples_per_s": 500.0, "bandwidth_bps": 1e7, "name": "d"}]}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def make_simulation(work: str = "train", **settings: Any) -> PreparedSimulation:
    task = msgspec.convert(TASK | settings | {"simulation": {"work": work}}, Task)
    return prepare(task, build_fleet(msgspec.convert(GROUP, FleetTable)), SimulationOptions())


def train(simulation: PreparedSimulation) -> dict[str, NDArray[Any]]:
    compute = simulation.make_compute()
    assert isinstance(compute, RealTraining)
    Driver(simulation.scenario, compute).run()
    return dict(compute.parameters)


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
@pytest.mark.parametrize("said", [{}, TORCH], ids=["own", "torch"])
def test_batched_training_equals_one_by_one_training(mode: str, said: dict[str, Any]) -> None:
    one, many = (train(make_simulation(work, mode=mode, **said)) for work in ("train", "batched"))
    for name, array in one.items():
        np.testing.assert_allclose(array, many[name], rtol=1e-4, atol=2e-6)


def test_a_model_learns_in_virtual_time() -> None:
    report = run(make_simulation(cycles=5))
    assert report.accuracy > 0.9
    assert report.seconds_to(0.9) < report.ended_s
    losses = [each.loss for each in report.cycles[-1].assignments]
    assert all(0 < loss < 1 for loss in losses)


def test_without_test_samples_devices_hold_some_back() -> None:
    report = run(make_simulation(mode="federated", data_args={"test": 0}))
    # One in ten of each shard.
    assert {each.samples for each in report.cycles[0].assignments} == {3 * 36}
    assert report.accuracy > 0.8


def test_an_optimiser_that_is_kept_stays_with_its_learner() -> None:
    momentum = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    kept, fresh = (
        train(make_simulation("batched", **TORCH, optimizer=momentum | {"keep": keep}))
        for keep in (True, False)
    )
    assert any(not np.allclose(kept[name], fresh[name]) for name in kept)


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_the_mean_in_memory_is_that_from_files_bit_for_bit(at_once: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    updates: list[dict[str, NDArray[Any]]] = [
        {"a": rng.normal(size=(5, 3)).astype(np.float32), "n": rng.integers(0, 9, 2)}
        for _ in range(4)
    ]
    weights = [3.0, 9.0, 1.0, 9.0]
    layout = Layout.from_arrays(updates[0])
    spool = UpdateSpool(tmp_path, layout)
    files = [
        SpooledUpdate(number, weight, spool.add(str(number), update))
        for number, (weight, update) in enumerate(zip(weights, updates, strict=True))
    ]
    shares = np.array(weights) / sum(weights)
    some = [slice(first, first + at_once) for first in range(0, len(weights), at_once)]
    stacks = [
        {name: np.stack([each[name] for each in updates[at]]) for name in "an"} for at in some
    ]
    expected = weighted_mean(layout, files)
    mean = RunningMean(layout)
    for at, stack in zip(some, stacks, strict=True):
        mean.add(shares[at], stack)
    found = mean.result()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_updates_that_are_not_finite_are_left_out_of_the_mean() -> None:
    fine = {"a": np.array([[1.0], [3.0]], np.float32), "n": np.array([4, 5])}
    wrong = {"a": np.array([[np.nan], [5.0]], np.float32), "n": np.array([6, 7])}
    layout = Layout.from_arrays({"a": np.zeros(1, np.float32), "n": np.array(0)})
    mean, part, quarters = RunningMean(layout), RunningMean(layout), np.full(2, 0.25)
    part.add(np.array([0.5]), {"a": np.array([[np.inf]], np.float32), "n": np.array([8])})
    assert not part
    part = RunningMean(layout)
    part.add(quarters, wrong)
    mean.add(quarters, fine)
    mean.merge(part)
    found = mean.result()
    assert found["a"] == pytest.approx([(1 + 3 + 5) / 3])
    # Integers are not averaged.
    assert (found["n"].shape, found["n"].tolist()) == ((), 0)


class Normed(nn.Sequential):
    """BatchNorm, which counts batches; on the sample with the largest number it is no number."""

    def __init__(self, poison: float = np.inf) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.poison = poison

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return torch.where((x.max() >= self.poison) & torch.tensor(self.training), torch.nan, out)


@pytest.mark.parametrize("work", ["train", "batched"])
def test_models_with_counters_are_saved_and_diverged_learners_are_left_out(
    work: str, place: Path
) -> None:
    sizes = {"sizes": {"sample_ops": 1e3}}
    (points, _), _ = tiny_task.blobs()
    largest = float(points.max())
    said = {"model": f"{__name__}:Normed", "model_args": {"poison": largest}, "mode": "federated"}
    report = run(make_simulation(work, **said, **sizes), folder=place / "out")
    assert np.isfinite(report.loss)
    kept = load_file(place / "out" / "model.safetensors")
    assert kept["1.num_batches_tracked"].tolist() == 0
    assert all(np.isfinite(array).all() for array in kept.values())


def test_a_cycle_interrupted_during_aggregation_does_not_change_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    average, one = RealTraining.average, make_simulation("batched", mode="federated", **TORCH)

    def interrupted(work: RealTraining, cycle: int, *given: Any) -> Any:
        if cycle == 2:
            raise KeyboardInterrupt
        return average(work, cycle, *given)

    monkeypatch.setattr(RealTraining, "average", interrupted)
    report = run(one)
    assert report.outcome == "cancelled"
    assert [each.ending for each in report.cycles] == ["aggregated", "interrupted"]
    assert {each.status for each in report.cycles[1].assignments} == {"dropped"}
    assert report.visits_counted == report.cycles[0].visits_counted > 0


FAILING = """
from torch import nn


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 2))
        self.first = self[1].weight.sum().item()

    def forward(self, x):
        if self.training and self[1].weight.sum().item() != self.first:
            raise ValueError("I have learnt enough")
        return super().forward(x)


class Scored(Model):
    def forward(self, x):
        if not self.training and self[1].weight.sum().item() != self.first:
            raise ValueError("I shall not be judged")
        return nn.Sequential.forward(self, x)


class Asking(Model):
    def forward(self, x):
        # Neither in the trial, which has few samples, nor one by one does this fail.
        if self.training and len(x) > 3 and not x.isfinite().all():
            raise ValueError("there is no such number")
        return nn.Sequential.forward(self, x)


class Large(Model):
    def forward(self, x):
        if self.training and len(x) > 20:
            raise ValueError("they are too many")
        return nn.Sequential.forward(self, x)
"""


@pytest.mark.parametrize("work", ["train", "batched"])
def test_the_error_of_a_model_names_learner_and_cycle_and_partial_results_are_saved(
    work: str, place: Path
) -> None:
    (place / "failing.py").write_text(FAILING)
    # One batch a cycle: it fails in the second.
    one = make_simulation(work, model="failing:Model", passes=1, batch=1000, extension=False)
    says = r"d-1 could not train in cycle 2: ValueError: I have learnt enough \(failing"
    with pytest.raises(RunFailedError, match=says):
        run(one, place / "kept")
    assert load_file(place / "kept" / "model.safetensors")
    report = Report.from_trace(read_trace(place / "kept" / "trace.jsonl"))
    assert (report.outcome, len(report.ended_cycles)) == ("cancelled", 1)
    assert "could not train in cycle 2" in report.reason


def test_an_error_during_evaluation_is_reported(place: Path) -> None:
    (place / "failing.py").write_text(FAILING)
    one = make_simulation("batched", model="failing:Scored")
    with pytest.raises(
        RunFailedError, match="could not be scored: ValueError: I shall not be judged"
    ):
        run(one, place / "kept")
    assert load_file(place / "kept" / "model.safetensors")


def test_a_learner_that_fails_in_a_batch_is_named(place: Path) -> None:
    (place / "failing.py").write_text(FAILING)
    one = make_simulation("batched", model="failing:Large", batch=32)
    with pytest.raises(
        RunFailedError, match="d-1 could not train in cycle 1: ValueError: they are too"
    ):
        run(one, place / "kept")
    assert Report.from_trace(read_trace(place / "kept" / "trace.jsonl")).outcome == "cancelled"


def test_an_error_of_batched_training_alone_suggests_one_by_one_training(place: Path) -> None:
    (place / "failing.py").write_text(FAILING)
    says = (
        'cycle 1 could not be trained in one batch: RuntimeError: vmap.*simulation.work = "train"'
    )
    with pytest.raises(RunFailedError, match=says):
        run(make_simulation("batched", model="failing:Asking", batch=32))
    assert run(make_simulation("train", model="failing:Asking", batch=32)).outcome == "finished"


def test_three_cycles_without_finite_updates_end_the_run(place: Path) -> None:
    wild = {"optimizer": {"name": "sgd", "lr": 1e30}, "cycles": 5}
    with (
        pytest.warns(MelismaWarning, match="5 of 5 updates"),
        pytest.raises(RunFailedError, match="3 cycles in a row no update was finite"),
    ):
        run(make_simulation("batched", **TORCH, **wild), place / "kept")
    assert len(Report.from_trace(read_trace(place / "kept" / "trace.jsonl")).cycles) == 3


def test_diverged_updates_cause_a_warning() -> None:
    one = make_simulation("batched", **TORCH, optimizer={"name": "sgd", "lr": 1e30}, cycles=1)
    with pytest.warns(
        MelismaWarning, match="cycle 1: 5 of 5 updates hold numbers that are not fin"
    ):
        run(one)


RULES: dict[str, Any] = {"extension": True, "overlap": True, "late": "carry", "quorum": 0.8}
FAULTS = "partition 1 at 8 for 7; crash 2 at 4; partition 3 at 26 for 14"


def with_faults(simulation: PreparedSimulation, faults: str = FAULTS) -> PreparedSimulation:
    learners = simulation.scenario.fleet.learners
    scenario = replace(simulation.scenario, faults=parse_faults(faults, learners))
    return replace(simulation, scenario=scenario)


class Reference:
    """Computes the model of a run from its trace: one update after another, in float64."""

    def __init__(self, simulation: PreparedSimulation) -> None:
        compute = simulation.make_compute()
        assert isinstance(compute, RealTraining)
        self.compute, self.task = compute, simulation.scenario.task
        self.given: dict[tuple[int, int], dict[int, list[int]]] = {}
        self.passes: dict[tuple[int, int], int] = {}
        self.visits: dict[tuple[int, int], int] = {}
        self.present = {k: v.astype(np.float64) for k, v in compute.parameters.items()}
        self.starts: dict[int, dict[str, Any]] = {}
        self.late = self.extended = 0

    def watch(self, step: Step) -> None:
        event = step.event
        if isinstance(event, events.ShardsReleased):
            for learner, shards in zip(event.learners.tolist(), event.shards, strict=True):
                for part in self.given[event.cycle, learner].values():
                    part[:] = [shard for shard in part if shard not in shards]
        if isinstance(event, events.UpdatesReceived):
            for learner, visits in zip(event.learners.tolist(), event.visits, strict=True):
                self.visits.setdefault((event.cycle, learner), int(visits))
        for command in step.commands:
            if isinstance(command, commands.Dispatch | commands.Extend):
                rows = zip(command.learners.tolist(), command.attempts.tolist(), strict=True)
                for row, (learner, attempt) in enumerate(rows):
                    key = command.cycle, learner
                    self.given.setdefault(key, {})[attempt] = command.shards[row].tolist()
                    self.passes[key] = int(command.passes[row])
            if isinstance(command, commands.Aggregate):
                self.aggregate(command)

    def aggregate(self, command: commands.Aggregate) -> None:
        late = command.late
        self.starts[command.cycle] = self.present
        cycles = [command.cycle] * command.learners.size + late.cycles.tolist()
        learners = [*command.learners.tolist(), *late.learners.tolist()]
        attempts = [*command.attempts.tolist(), *late.attempts.tolist()]
        weights = np.concatenate([command.weights, late.weights])
        if not weights.size:
            return
        self.late += late.learners.size
        mean = {name: np.zeros_like(array) for name, array in self.present.items()}
        for cycle, learner, attempt, share in zip(
            cycles, learners, attempts, weights / weights.sum(), strict=True
        ):
            start = self.starts[cycle]
            trained = self.train(cycle, learner, attempt, start)
            for name, total in mean.items():
                change = trained[name].astype(np.float64) - start[name]
                total += share * (self.present[name] + change)  # noqa: PLW2901
        self.present = mean

    def train(
        self, cycle: int, learner: int, attempt: int, start: dict[str, Any]
    ) -> dict[str, NDArray[Any]]:
        given = self.given[cycle, learner]
        self.extended += attempt > 1
        shards = [shard for nth in sorted(given) if nth <= attempt for shard in given[nth]]
        samples = self.compute._trainer._index.samples(learner, np.array(shards))
        batch, visits = self.task.batch, self.visits[cycle, learner]
        per_pass = -(-len(samples) // batch)
        batches = visits // len(samples) * per_pass + -(-(visits % len(samples)) // batch)
        passes = max(self.passes[cycle, learner], -(-batches // per_pass))
        generators = Generators(self.task.seed, "train", cycle, np.array([learner]))
        initial = self.compute.parameters
        work = TrainingWork(
            self.compute._trainer._train_data, passes, lambda: generators.get(0), batches, samples
        )
        parameters = {name: array.astype(initial[name].dtype) for name, array in start.items()}
        return dict(
            train_one(self.task, self.compute._trainer._trainer, parameters, work).parameters
        )


@pytest.mark.parametrize("work", ["train", "batched"])
def test_the_model_with_extensions_and_late_updates_is_that_of_a_plain_computation(
    work: str,
) -> None:
    simulation = with_faults(make_simulation(work, **RULES, cycles=5))
    reference, compute = Reference(simulation), simulation.make_compute()
    assert isinstance(compute, RealTraining)
    steps: list[Step] = []
    Driver(simulation.scenario, compute, steps.append).run()
    compute.close()
    for step in steps:
        reference.watch(step)
    assert reference.late > 0
    assert reference.extended > 0
    for name, array in compute.parameters.items():
        np.testing.assert_allclose(array, reference.present[name], rtol=1e-3, atol=1e-5)


def test_the_trace_is_the_same_with_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lines(processes: int) -> list[bytes]:
        monkeypatch.setattr(
            "melisma.simulation.compute.work_trainer.trainer_cores", lambda _: processes
        )
        simulation = with_faults(make_simulation("train", **RULES, cycles=4))
        steps: list[Step] = []
        compute = simulation.make_compute()
        Driver(simulation.scenario, compute, steps.append).run()
        compute.close()
        return [encode_step(step) for step in steps]

    first = lines(1)
    assert any(b"Extend" in line for line in first)
    assert lines(2) == first
    assert lines(3) == first


def threads_used(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Return PyTorch's number of threads during training and scoring, of 2 that it may use."""
    trained, scored = list[int](), list[int]()
    train_many, score = batched.train_many, TorchTrainer.score

    def counted_train(*arguments: Any) -> Iterator[batched.BatchedResults]:
        for result in train_many(*arguments):
            trained.append(torch.get_num_threads())
            yield result

    def counted_score(*arguments: Any) -> Any:
        scored.append(torch.get_num_threads())
        return score(*arguments)

    monkeypatch.setattr(batched, "train_many", counted_train)
    monkeypatch.setattr(TorchTrainer, "score", counted_score)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(make_simulation("batched", **TORCH, cycles=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    # Preparation scores a few samples.
    return trained, scored[-2:]


def test_a_small_model_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, scored = threads_used(monkeypatch)
    assert trained == [1, 1]
    assert scored == [1, 1]


def test_a_large_model_is_scored_with_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "MAX_STACKED_BYTES", 0)
    _, scored = threads_used(monkeypatch)
    assert scored == [2, 2]


@pytest.mark.parametrize("together", [False, True])
def test_a_few_learners_that_cannot_be_batched_are_shared_by_processes(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    class CountedPool(ForkPool[Any, Any, Any]):
        def __init__(self, *arguments: Any) -> None:
            sizes.append(arguments[1])
            super().__init__(*arguments)

    def lines(processes: int) -> list[bytes]:
        monkeypatch.setattr(
            "melisma.simulation.compute.work_trainer.trainer_cores", lambda _: processes
        )
        simulation, steps = make_simulation("batched", **TORCH), list[Step]()
        compute = simulation.make_compute()
        Driver(simulation.scenario, compute, steps.append).run()
        compute.close()
        return [encode_step(step) for step in steps]

    monkeypatch.setattr(f"{MODULE}.ForkPool", CountedPool)
    # A process of pytest-xdist has a second thread, which only receives.
    monkeypatch.setattr(f"{MODULE}.can_fork", lambda: True)
    if not together:
        monkeypatch.setattr(batched, "can_train_together", lambda *_: False)
    assert lines(1) == lines(2)
    assert sizes == ([] if together else [2])


def test_a_late_update_that_is_not_finite_does_not_shift_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute = make_simulation(**RULES).make_compute()
    assert isinstance(compute, RealTraining)
    one = np.array([0])
    first, second = (WeightedWork(WorkRecord(n, 5), one, one, np.ones(1), one + 1) for n in (1, 2))

    def add(mean: RunningMean, part: WeightedWork, start: Any, shares: Any, _: Any) -> Any:
        number = np.nan if part is first and compute.parameters is not start else 1.0
        mean.add(shares, {name: (array + number)[None] for name, array in start.items()})
        return PartResult(mean, np.zeros(1), np.array([number]), [UpdateChecks()])

    monkeypatch.setattr(compute, "_train_weighted", add)
    compute.average(1, [first])
    before = dict(compute.parameters)
    with pytest.warns(MelismaWarning, match="1 of 2 updates"):
        compute.average(2, [second, first])
    for name, array in compute.parameters.items():
        np.testing.assert_allclose(array, before[name] + 1.0)


def scale_training(monkeypatch: pytest.MonkeyPatch, learner: int, factor: float) -> None:
    """Let one learner return a change that is `factor` times its own."""
    train = WorkTrainer._train_one

    def train_scaled(self: Any, work: Any, row: int, start: Any, learner_work: Any) -> Any:
        trained = train(self, work, row, start, learner_work)
        if int(work.learners[row]) != learner:
            return trained
        arrays = {
            name: (start[name] + factor * (array - start[name])).astype(array.dtype)
            for name, array in trained.parameters.items()
        }
        return replace(trained, parameters=arrays)

    monkeypatch.setattr(WorkTrainer, "_train_one", train_scaled)


@pytest.mark.parametrize("settings", [{}, {"optimizer": {"name": "sgd", "lr": 0.1, "keep": True}}])
def test_a_learner_with_huge_updates_does_not_destroy_a_simulated_model(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    scale_training(monkeypatch, 3, 1e20)
    report = run(make_simulation(**TORCH, **settings))
    assert report.outcome == "finished"
    assert report.accuracy > 0.8
    assert report.left_out == {"d-4": 3}
    assert report.learners[3].refused == 3


def test_a_large_change_is_scaled_down_in_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_training(monkeypatch, 3, 20.0)
    report = run(make_simulation(**TORCH))
    assert report.clipped == {"d-4": 3}
    assert report.accuracy > 0.8


def test_an_own_aggregation_is_called_once_a_cycle_with_guarded_updates(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    (place / "counting_own.py").write_text(
        "import numpy as np\n"
        "calls = []\n"
        "def mean(updates, weights):\n"
        "    calls.append(len(weights))\n"
        "    return {name: np.average(array, axis=0, weights=weights)\n"
        "            for name, array in updates.items()}\n"
    )
    scale_training(monkeypatch, 3, 20.0)
    own = run(make_simulation(**TORCH, aggregation="counting_own:mean"))
    assert len(import_module("counting_own").calls) == len(own.cycles) == 3
    assert own.clipped == {"d-4": 3}
    mean = run(make_simulation(**TORCH))
    assert own.loss == pytest.approx(mean.loss, rel=1e-3)


def test_a_simulated_model_that_is_not_finite_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for learner in range(5):
        scale_training(monkeypatch, learner, 1e25)
    report = run(make_simulation(**TORCH))
    assert report.outcome == "failed"
    assert "not finite" in report.reason
    assert [cycle.rejected for cycle in report.cycles] == [True] * 3


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_the_server_optimiser_steps_once_a_cycle_from_the_mean(name: Any) -> None:
    """The first step from the same mean; a later one depends on the state, too."""
    mean = train(make_simulation(cycles=1))
    stepped = train(make_simulation(cycles=1, server={"name": name}))
    server = ServerOptimizer(ServerSettings(name=name), ["weight", "bias"])
    initial = {key: np.zeros_like(array) for key, array in mean.items()}
    for key, array in server.apply(initial, mean).items():
        np.testing.assert_allclose(stepped[key], array, rtol=1e-6)


def test_restore_returns_the_state_of_the_server_optimiser() -> None:
    simulation = make_simulation(server={"name": "momentum"})
    compute = simulation.make_compute()
    assert isinstance(compute, RealTraining)
    compute._server.apply(compute.parameters, {**compute.parameters})
    state = compute._server._state
    compute._before, compute.parameters = compute.parameters, {**compute.parameters}
    compute._server.apply(compute._before, {**compute.parameters})
    assert compute._server._state is not state
    compute.restore()
    assert compute._server._state is state


@pytest.mark.parametrize("settings", [{}, {"late": "drop"}, {"normalize": True}], ids=str)
def test_the_mean_as_a_function_of_the_user_gives_the_mean(
    settings: dict[str, Any], place: Path
) -> None:
    (place / "own_mean.py").write_text(
        "import numpy as np\n"
        "def mean(updates, weights):\n"
        "    return {n: np.average(a, axis=0, weights=weights) for n, a in updates.items()}\n"
    )
    mean = train(make_simulation(**settings))
    own = train(make_simulation(aggregation="own_mean:mean", **settings))
    for name, array in mean.items():
        np.testing.assert_allclose(own[name], array, rtol=1e-5, atol=1e-7)


def test_normalised_changes_weigh_less_after_more_steps() -> None:
    """Learners with other numbers of steps: another mean; with one learner, the same."""
    group = [{"count": 1, "samples_per_s": speed, "bandwidth_bps": 1e7} for speed in (90.0, 500.0)]
    results = []
    for learners, normalize in (
        (group, False),
        (group, True),
        (group[:1], False),
        (group[:1], True),
    ):
        settings = TASK | {"scheme": "dab", "normalize": normalize, "cycles": 1, "deadline_s": 3.0}
        task = msgspec.convert(settings | {"simulation": {"work": "train"}}, Task)
        fleet = build_fleet(msgspec.convert({"group": learners}, FleetTable))
        results.append(train(prepare(task, fleet, SimulationOptions()))["weight"])
    assert not np.allclose(results[0], results[1], rtol=1e-3)
    np.testing.assert_array_equal(results[2], results[3])


@pytest.mark.parametrize("optimizer", [{"lr": 0.3}, {"lr": 0.1, "momentum": 0.5}])
def test_the_proximal_term_is_the_same_in_batched_training(optimizer: dict[str, Any]) -> None:
    settings = TORCH | {"prox": 1.0, "optimizer": optimizer}
    one, many = (train(make_simulation(work, **settings)) for work in ("train", "batched"))
    kept = train(make_simulation("train", **TORCH, prox=1.0, optimizer=optimizer | {"keep": True}))
    plain = train(make_simulation("train", **TORCH, optimizer=optimizer))
    for name, array in one.items():
        np.testing.assert_allclose(array, many[name], rtol=1e-4, atol=2e-6)
        assert not np.allclose(array, plain[name], rtol=1e-3)
        assert optimizer.get("momentum") or np.allclose(kept[name], array)


def test_a_failing_aggregation_ends_the_run_with_its_error(place: Path) -> None:
    (place / "broken_own.py").write_text("def broken(updates, weights):\n    return updates\n")
    simulation = make_simulation(aggregation="broken_own:broken")
    with pytest.raises(
        RunFailedError, match=r"aggregation broken_own:broken returned weight with shape"
    ):
        run(simulation, place / "out")

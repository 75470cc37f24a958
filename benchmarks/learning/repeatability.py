"""False accusations: honest trainings, checked with other kernels and another number of threads.

Each training is that of a learner in one environment; one random segment of it is checked in
another one. Environments differ in threads (1, 2), in PyTorch's deterministic algorithms, and in
oneDNN's kernels. Models have float32 or float64 parameters, or compute in bfloat16; optimizers are
SGD, with momentum, and Adam. A second part leaves out batches, to find what the tolerance hides.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness.parts import Benchmark, Part
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split, load_dataset
from melisma.learning.trainer import TrainingState
from melisma.learning.trainer_factory import trainer_for
from melisma.learning.verification.reexecution import Verdict, relative_error, repeat_segment
from melisma.learning.verification.segments import SegmentRecorder, segment_edges
from melisma.learning.verification.update_check import (
    AssignedTraining,
    RepeatableTrainer,
    ReportedTraining,
    SegmentChecker,
)

UPDATES = 1008
QUICK_UPDATES = 24
SAMPLES, BATCHES = 1200, 48
SKIPPED = (2, 4, 8, 16, 32, 64)


class Net(nn.Module):
    """A small network of one hidden layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        out: Tensor = self.layers(x)
        return out


class DoubleNet(Net):
    """The same with parameters of double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        return super().forward(x.double())


class HalfNet(Net):
    """The same, computed in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = super().forward(x)
        return out.float()


class NormNet(nn.Module):
    """A small convolutional network with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        out: Tensor = self.layers(x.reshape(-1, 1, 28, 28))
        return out


MODELS = {
    "float32": "Net",
    "float64": "DoubleNet",
    "bfloat16 (autocast)": "HalfNet",
    "float32, BatchNorm": "NormNet",
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.02, "momentum": 0.9},
    "adam": {"name": "adam", "lr": 0.001},
}
ENVIRONMENTS = [
    (threads, deterministic, onednn)
    for threads in (1, 2)
    for deterministic in (False, True)
    for onednn in (True, False)
]


@contextmanager
def environment(threads: int, deterministic: bool, onednn: bool) -> Iterator[None]:
    """Train with these kernels and threads within the context."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.mkldnn.set_flags(onednn)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.backends.mkldnn.set_flags(True)  # type: ignore[no-untyped-call]


@cache
def trainer_of(model: str, optimizer: str) -> RepeatableTrainer:
    """Return the trainer of a model."""
    settings = {
        "name": "repeat",
        "model": f"benchmarks.learning.repeatability:{MODELS[model]}",
        "data": "mnist",
        "deadline_s": 1.0,
        "optimizer": OPTIMIZERS[optimizer],
    }
    trainer = trainer_for(msgspec.convert(settings, Task))
    assert isinstance(trainer, RepeatableTrainer)
    return trainer


def train(
    trainer: RepeatableTrainer, samples: Split, seed: int, recorder: SegmentRecorder, skip: int = 0
) -> TrainingState:
    """Train from the initial parameters; leave out one of every `skip` batches."""
    rng = generator(seed, "train")

    def batches() -> Iterator[Split]:
        stream = batches_of(samples, BATCHES, 32, rng)
        for number, batch in enumerate(islice(stream, BATCHES)):
            recorder.record(number, trainer)
            if not skip or (number + seed) % skip:
                yield batch
        recorder.record(BATCHES, trainer)

    return repeat_segment(trainer, trainer.initial(), batches(), rng)


def assigned(trainer: RepeatableTrainer, samples: Split, seed: int) -> AssignedTraining:
    """Return the training that a learner was given."""

    def batches() -> Iterator[Split]:
        return islice(batches_of(samples, BATCHES, 32, generator(seed, "train")), BATCHES)

    return AssignedTraining(trainer.initial(), batches, lambda: generator(seed, "train"))


def report(recorder: SegmentRecorder, end: TrainingState, segment: int) -> ReportedTraining:
    """Return what a learner reports and reveals."""
    digests, states = recorder.digests(BATCHES, end.parameters), recorder.states(BATCHES, segment)
    return ReportedTraining(BATCHES, digests, segment, states, end.parameters)


def measure_honest(quick: bool) -> dict[str, Any]:
    """Check honest trainings of all models in other environments."""
    data, rng = load_dataset("mnist", {}).train, np.random.default_rng(1)
    count = (QUICK_UPDATES if quick else UPDATES) // (len(MODELS) * len(OPTIMIZERS))
    rows: dict[str, dict[str, float]] = {}
    for model in MODELS:
        verdicts, worst, differing = Counter[Verdict](), 0.0, 0
        for optimizer in OPTIMIZERS:
            trainer = trainer_of(model, optimizer)
            for number in range(count):
                first, second = rng.choice(len(ENVIRONMENTS), 2, replace=False)
                samples = data.take(rng.choice(len(data), SAMPLES, replace=False))
                recorder = SegmentRecorder()
                with environment(*ENVIRONMENTS[first]):
                    end = train(trainer, samples, number, recorder)
                segment = int(rng.integers(len(segment_edges(BATCHES))))
                with environment(*ENVIRONMENTS[second]):
                    checker = SegmentChecker(trainer, trainer.trainable())
                    found = checker.check(
                        report(recorder, end, segment), assigned(trainer, samples, number)
                    )
                verdicts[found.verdict] += 1
                worst, differing = max(worst, found.error), differing + (found.error > 0)
        rows[model] = {
            "updates": sum(verdicts.values()),
            "accused": verdicts[Verdict.WRONG],
            "no verdict": verdicts[Verdict.IMPOSSIBLE],
            "differ": differing,
            "largest difference, ppm": float(f"{1e6 * worst:.2g}"),
        }
    return {"rows": rows, "own_s": 0.0}


def measure_skipped(quick: bool) -> dict[str, Any]:
    """Leave out one of every n batches; return how much that changes, and how often it is found."""
    data = load_dataset("mnist", {}).train
    rows = {}
    for skip in SKIPPED:
        errors, wrong = list[float](), 0
        for optimizer in OPTIMIZERS:
            trainer = trainer_of("float32", optimizer)
            for seed in range(1 if quick else 5):
                samples = data.take(np.arange(seed * SAMPLES, (seed + 1) * SAMPLES))
                recorder = SegmentRecorder()
                end = train(trainer, samples, seed, recorder, skip)
                honest = train(trainer, samples, seed, SegmentRecorder())
                start = TrainingState(trainer.initial(), {}, 0, 0.0)
                known = TrainingState(honest.parameters, {}, 0, 0.0)
                errors.append(relative_error(end, known, start, set(trainer.trainable())))
                checker = SegmentChecker(trainer, trainer.trainable())
                for segment in range(len(segment_edges(BATCHES))):
                    found = checker.check(
                        report(recorder, end, segment), assigned(trainer, samples, seed)
                    )
                    wrong += found.verdict is Verdict.WRONG
        checks = len(errors) * len(segment_edges(BATCHES))
        rows[f"1 of {skip} batches"] = {
            "checks": checks,
            "found %": round(100 * wrong / checks, 1),
            "least difference %": round(100 * min(errors), 1),
        }
    return {"rows": rows, "own_s": 0.0}


BENCHMARK = Benchmark(
    "repeatability",
    {
        "repeatability_honest": Part(
            "Honest updates, checked in another environment",
            measure_honest,
            ["updates", "accused", "no verdict", "differ", "largest difference, ppm"],
            timed=False,
        ),
        "repeatability_skipped": Part(
            "Updates for which a learner left out batches",
            measure_skipped,
            ["checks", "found %", "least difference %"],
            timed=False,
        ),
    },
    ["melisma", "numpy", "torch"],
)


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    return BENCHMARK.run(quick, only)

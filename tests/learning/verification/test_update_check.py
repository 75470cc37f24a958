"""Re-execution: honest trainings are right, and whatever differs from them is wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from melisma.errors import SettingError
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import TrainingState
from melisma.learning.trainer_factory import trainer_for
from melisma.learning.verification.reexecution import TOLERANCE, Verdict, repeat_segment
from melisma.learning.verification.segments import SegmentRecorder, segment_edges
from melisma.learning.verification.update_check import (
    AssignedTraining,
    RepeatableTrainer,
    ReportedTraining,
    SegmentChecker,
    require_repeatable,
)
from melisma.testing import FakeTrainer

SAMPLES, BATCH = 200, 16
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "adam": {"name": "adam", "lr": 0.01},
}


class Dropping(torch.nn.Module):
    """A small model that draws random numbers, and has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def task_with(optimizer: str) -> Task:
    settings = {"name": "t", "model": f"{__name__}:Dropping", "data": "mnist", "deadline_s": 1.0}
    return msgspec.convert(settings | {"optimizer": OPTIMIZERS[optimizer]}, Task)


@pytest.fixture(params=list(OPTIMIZERS))
def trainer(request: pytest.FixtureRequest) -> RepeatableTrainer:
    return require_repeatable(task := task_with(request.param), trainer_for(task))


def samples(seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.normal(size=(SAMPLES, 6)).astype(np.float32), rng.integers(3, size=SAMPLES))


def batches(split: Split, count: int = 1) -> Iterator[Split]:
    return iter(batches_of(split, count, BATCH, generator(1, "train")))


class Learner:
    """Trains, and reveals any segment."""

    def __init__(self, trainer: RepeatableTrainer, trained: Split, most: int | None = None) -> None:
        self.batches, self.recorder = len(list(batches(trained))), SegmentRecorder()

        def feed() -> Iterator[Split]:
            count = 0
            for count, batch in enumerate(batches(trained)):
                if count == most:
                    return
                self.recorder.record(count, trainer)
                yield batch
            self.recorder.record(count + 1, trainer)

        self.end = repeat_segment(trainer, trainer.initial(), feed(), generator(1, "train"))
        if most is not None:
            self.recorder.fill(self.batches, self.end)

    def report(self, segment: int) -> ReportedTraining:
        update = self.end.parameters
        digests = self.recorder.digests(self.batches, update)
        states = self.recorder.states(self.batches, segment)
        return ReportedTraining(self.batches, digests, segment, states, update)


def assigned(trainer: RepeatableTrainer, split: Split) -> AssignedTraining:
    return AssignedTraining(
        trainer.initial(), lambda: batches(split), lambda: generator(1, "train")
    )


def check(trainer: RepeatableTrainer, reported: ReportedTraining, split: Split) -> Verdict:
    checker = SegmentChecker(trainer, trainer.trainable())
    return checker.check(reported, assigned(trainer, split)).verdict


def test_every_segment_of_an_honest_training_is_right(trainer: RepeatableTrainer) -> None:
    learner, segments = Learner(trainer, samples()), len(segment_edges(13))
    for segment in range(segments):
        assert check(trainer, learner.report(segment), samples()) is Verdict.RIGHT


def test_segments_that_were_not_trained_are_wrong_and_others_are_right(
    trainer: RepeatableTrainer,
) -> None:
    learner, edges = Learner(trainer, samples(), most=6), segment_edges(13)
    for segment, (_, end) in enumerate(edges):
        verdict = check(trainer, learner.report(segment), samples())
        assert verdict is (Verdict.RIGHT if end <= 6 else Verdict.WRONG)


def test_training_on_other_samples_is_wrong(trainer: RepeatableTrainer) -> None:
    learner = Learner(trainer, samples(seed=1))
    for segment in range(len(segment_edges(13))):
        assert check(trainer, learner.report(segment), samples()) is Verdict.WRONG


def test_states_that_were_not_committed_to_are_wrong(trainer: RepeatableTrainer) -> None:
    honest, other = Learner(trainer, samples()), Learner(trainer, samples(seed=1))
    digests = other.report(1).digests
    reported = replace(honest.report(1), digests=digests)
    assert check(trainer, reported, samples()) is Verdict.WRONG


def test_changed_momenta_are_wrong() -> None:
    task = task_with("momentum")
    trainer = require_repeatable(task, trainer_for(task))
    learner = Learner(trainer, samples())
    kept = learner.recorder.states(learner.batches, 1).end
    assert kept is not None
    for name in [name for name in kept.extra if name.startswith("optimizer.")]:
        kept.extra[name] = 2 * kept.extra[name]
    assert check(trainer, learner.report(1), samples()) is Verdict.WRONG


def test_a_difference_within_the_tolerance_is_right_and_one_beyond_it_is_wrong(
    trainer: RepeatableTrainer,
) -> None:
    learner = Learner(trainer, samples())
    last = len(segment_edges(13)) - 1
    state = learner.recorder.states(learner.batches, last).start
    assert state is not None
    exact = learner.end.parameters
    for part, verdict in ((0.3, Verdict.RIGHT), (6.0, Verdict.WRONG)):
        moved = {
            name: array + np.asarray(part * TOLERANCE * (array - state.parameters[name]))
            if array.dtype.kind == "f"
            else array
            for name, array in exact.items()
        }
        typed = {name: np.asarray(array, exact[name].dtype) for name, array in moved.items()}
        learner.end = TrainingState(typed, {}, 0, 0.0)
        assert check(trainer, learner.report(last), samples()) is verdict


def test_a_state_of_another_model_is_wrong(trainer: RepeatableTrainer) -> None:
    reported = Learner(trainer, samples()).report(1)
    assert reported.states.start is not None
    strange = replace(reported.states.start, parameters={"x": np.zeros(3, np.float32)})
    states = replace(reported.states, start=strange)
    assert check(trainer, replace(reported, states=states), samples()) is Verdict.WRONG


def test_random_numbers_of_another_device_give_no_verdict(trainer: RepeatableTrainer) -> None:
    learner = Learner(trainer, samples())
    reported = replace(learner.report(1), device="cuda")
    assert check(trainer, reported, samples()) is Verdict.IMPOSSIBLE


def test_a_trainer_that_cannot_go_on_from_a_state_cannot_be_audited() -> None:
    with pytest.raises(SettingError, match="needs a trainer with checkpoint"):
        require_repeatable(task_with("sgd"), FakeTrainer(task_with("sgd")))

"""The examples with their own framework, model or data."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.task_file import read_sized_task, read_task
from melisma.fleet.task import Task
from melisma.learning.aggregation import SpooledUpdate, UpdateSpool, weighted_mean
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import DataSet, Split, load_dataset
from melisma.learning.parameters import Layout
from melisma.learning.task_sizes import with_actual_sizes
from melisma.learning.trainer import Trainer, TrainingResult
from melisma.learning.trainer_factory import check_model_fits, trainer_for

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.syspath_prepend(EXAMPLES / request.param)
    return read_task(EXAMPLES / request.param / "TASK.toml")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        return load_dataset("mnist")


def take(split: Split, start: int, end: int) -> Split:
    return Split(split.samples[start:end], split.labels[start:end])


def train(
    example: Task, trainer: Trainer, samples: Split, passes: int = 1, batches: int | None = None
) -> TrainingResult:
    """Train the first batches of some passes, from the initial parameters."""
    rng = np.random.default_rng(3)
    stream = islice(batches_of(samples, passes, example.batch, rng), batches)
    return trainer.train(trainer.initial(), stream, rng)


@pytest.mark.parametrize("example", ["scikit-learn"], indirect=True)
def test_scikit_learn_trains_digits_and_two_updates_are_averaged(
    example: Task, digits: DataSet, tmp_path: Path
) -> None:
    trainer = trainer_for(example)
    check_model_fits(trainer, digits)
    start, layout = trainer.initial(), Layout.from_arrays(trainer.initial())
    spool = UpdateSpool(tmp_path, layout)
    halves = [take(digits.train, 0, 3000), take(digits.train, 3000, 6000)]
    trained = [train(example, trainer, half) for half in halves]
    updates = [
        SpooledUpdate(i, each.visits, spool.add(str(i), each.parameters))
        for i, each in enumerate(trained)
    ]
    mean = weighted_mean(layout, updates)
    test = take(digits.test, 0, 2000)
    before, after = trainer.score(start, test), trainer.score(mean, test)
    assert after.accuracy > max(0.8, before.accuracy)
    assert after.loss < before.loss
    # The loss of the mean of two convex models is at most the mean of their losses.
    losses = [trainer.score(each.parameters, test).loss for each in trained]
    assert after.loss <= np.mean(losses) + 1e-9
    assert not np.any(start["coef"])


@pytest.mark.parametrize("example", ["scikit-learn"], indirect=True)
def test_scikit_learn_ends_with_the_batches(example: Task, digits: DataSet) -> None:
    trainer = trainer_for(example)
    stopped = train(example, trainer, take(digits.train, 0, 500), 2, batches=5)
    assert stopped.visits == 5 * example.batch
    assert np.isnan(train(example, trainer, digits.train, batches=0).loss)


@pytest.mark.parametrize("example", ["scikit-learn"], indirect=True)
def test_scikit_learn_refuses_data_that_does_not_fit(example: Task) -> None:
    small = Split(np.ones((5, 3, 3), np.uint8), np.zeros(5, np.uint8))
    with pytest.raises(SettingError, match="samples of 9 numbers; expected 784"):
        check_model_fits(trainer_for(example), DataSet(small, small))


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("example", ["own"], indirect=True)
def test_a_model_of_the_user_learns_from_data_of_the_user(example: Task) -> None:
    data, trainer = load_dataset(example.data, example.data_args), trainer_for(example)
    check_model_fits(trainer, data)
    trained = train(example, trainer, data.train, 5)
    assert trainer.score(trained.parameters, data.test).loss < 0.05


@pytest.mark.parametrize("example", ["own", "scikit-learn"], indirect=True)
def test_sizes_in_the_task_files_are_those_of_model_and_data(
    example: Task, digits: DataSet
) -> None:
    data = digits if example.data == "mnist" else load_dataset(example.data, example.data_args)
    bare = Task(name="a", model="a:b", data="a:b", deadline_s=1.0)
    measured = with_actual_sizes(bare, data, Layout.from_arrays(trainer_for(example).initial()))
    assert (example.samples, example.model_bytes) == (measured.samples, measured.model_bytes)
    assert example.shard_bytes // example.shard_samples == measured.sizes.sample_bytes


@pytest.mark.parametrize("name", ["own", "scikit-learn"])
def test_examples_can_be_planned(name: str) -> None:
    assert read_sized_task(EXAMPLES / name / "TASK.toml").passes
    assert read_fleet(EXAMPLES / name / "FLEET.toml").learners == 2

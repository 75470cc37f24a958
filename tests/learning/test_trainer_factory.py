import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.trainer_factory import check_model_fits, trainer_for, use_one_thread

TASK = Task(name="digits", model="twonn", data="mnist", deadline_s=15.0)
LINEAR = {"in_features": 3, "out_features": 2}


def data(shape: tuple[int, ...], labels: Any, dtype: Any = np.uint8) -> DataSet:
    split = Split(np.ones((50, *shape), dtype), np.resize(np.asarray(labels), 50))
    return DataSet(split, split)


class Memory:
    """A trainer of one's own, in name."""

    def __init__(self, task: Task, size: int = 3) -> None:
        self.task, self.size = task, size

    def initial(self) -> None: ...
    def train(self, parameters: Any, batches: Any, rng: Any) -> None: ...
    def score(self) -> None: ...


def test_built_in_models_and_torch_modules_are_trained_by_torch() -> None:
    assert isinstance(trainer_for(TASK), TorchTrainer)
    linear = replace(TASK, model="torch.nn:Linear", model_args=LINEAR)
    assert isinstance(trainer_for(linear), TorchTrainer)


def test_a_class_with_a_train_method_is_the_trainer() -> None:
    task = replace(TASK, model=f"{__name__}:Memory", model_args={"size": 7})
    made = trainer_for(task)
    assert isinstance(made, Memory)
    assert (made.task, made.size) == (task, 7)
    with pytest.raises(SettingError, match=r"Memory with \{'depth': 1\}: "):
        trainer_for(replace(task, model_args={"depth": 1}))


class TakesSamples(Memory):
    def train(self, parameters: Any, samples: Any, passes: int, rng: Any, stop: Any) -> None: ...  # type: ignore[override]


class TakesNothing(Memory):
    def train(self) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [(TakesSamples, "parameters, samples, passes, rng, stop"), (TakesNothing, "")],
)
def test_a_trainer_with_other_parameters_is_refused(kind: type, taken: str) -> None:
    message = rf"{kind.__name__}: train takes \({taken}\); change it to train\(parameters, batches"
    with pytest.raises(SettingError, match=message):
        trainer_for(replace(TASK, model=f"{__name__}:{kind.__name__}"))


def test_a_trainer_that_does_not_add_the_proximal_term_is_refused_with_prox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = replace(TASK, model=f"{__name__}:Memory", prox=0.5)
    with pytest.raises(SettingError, match=r"prox is 0.5, .* set supports_prox = True"):
        trainer_for(task)
    monkeypatch.setattr(Memory, "supports_prox", True, raising=False)
    assert isinstance(trainer_for(task), Memory)


def test_only_built_in_trainers_need_torch_and_the_error_says_so() -> None:
    code = """
import sys
sys.modules["torch"] = None
from melisma.errors import SettingError
from melisma.fleet.task import Task
from melisma.learning.trainer_factory import trainer_for
sys.modules["own"] = type(sys)("own")
sys.modules["own"].Own = type("Own", (), dict.fromkeys(("initial", "train", "score"), print)
    | {"__init__": lambda self, task: None})
made = trainer_for(Task(name="a", model="own:Own", data="mnist", deadline_s=1.0))
print(type(made).__name__)
try:
    trainer_for(Task(name="a", model="twonn", data="mnist", deadline_s=1.0))
except SettingError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    message = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert message == [
        "Own",
        "model twonn needs PyTorch, which is not installed: pip install 'melisma[torch]'",
    ]


@pytest.mark.parametrize(
    ("changes", "dataset"),
    [
        ({}, data((28, 28), range(10))),
        ({"model": "lenet"}, data((28, 28), range(10))),
        ({"model": "torch.nn:Linear", "model_args": LINEAR}, data((3,), [0, 1], np.float64)),
        (
            {"model": "torch.nn:Linear", "model_args": LINEAR | {"out_features": 1}, "loss": "mse"},
            data((3,), [0.5, 1.5], np.float32),
        ),
    ],
)
def test_a_model_that_fits_its_data_passes(changes: dict[str, Any], dataset: DataSet) -> None:
    check_model_fits(trainer_for(replace(TASK, **changes)), dataset)


@pytest.mark.parametrize(
    ("changes", "dataset", "message"),
    [
        (
            {},
            data((32, 32, 3), range(10)),
            r"mat1 and mat2 shapes.*samples are uint8\[32, 32, 3\].*1.weight float32\[50, 784\]",
        ),
        ({}, data((28, 28), range(11)), "Target 10 is out of bounds.*labels int64 from 0 to 10"),
        ({}, data((28, 28), [*range(40), 3]), "from 0 to 39"),
        ({}, data((28, 28), [-1, 3]), "Target -1 is out of bounds.*from -1 to 3"),
        ({"model": "lenet"}, data((7, 7), range(10)), "does not fit the data"),
        ({}, data((28, 28), [0.5, 1.0]), "loss cross_entropy needs integers.*from 0.5 to 1"),
        ({"loss": "mse"}, data((28, 28), [0.5, 1.0]), "does not fit the data"),
    ],
)
def test_the_error_about_a_model_that_does_not_fit_names_the_shapes(
    changes: dict[str, Any], dataset: DataSet, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        check_model_fits(trainer_for(replace(TASK, **changes)), dataset)


def test_a_label_of_a_single_sample_is_checked() -> None:
    labels = np.zeros(5000, np.int64)
    labels[4321] = 10
    split = Split(np.zeros((5000, 28, 28), np.uint8), labels)
    with pytest.raises(SettingError, match="Target 10 is out of bounds"):
        check_model_fits(trainer_for(TASK), DataSet(split, split))


def test_torch_uses_one_thread_where_requested() -> None:
    before = torch.get_num_threads()
    try:
        use_one_thread()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)

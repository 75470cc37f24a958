"""Who trains a task: PyTorch, or a class of your own with `initial`, `train` and `score`.

PyTorch is imported only for a task that needs it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.trainer import Trainer
from melisma.learning.user_code import call_user_code, describe_error, import_object, is_import_path

METHODS = ("initial", "train", "score")
TRIAL_SAMPLES = 32  # samples that show whether a model fits


def trainer_for(task: Task) -> Trainer:
    """The trainer of a task.

    A class that has the three methods of a `Trainer` and is no torch module is one itself, made
    with the task and its `model_args`; every other model is trained by PyTorch.
    """
    if is_import_path(task.model) and _is_trainer(import_object("model", task.model)):
        trainer: Trainer = call_user_code("model", task.model, task, **task.model_args)
        return trainer
    try:
        from melisma.learning.pytorch.torch_trainer import TorchTrainer
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise SettingError(
            f"model {task.model} needs PyTorch, which is not installed: "
            "pip install 'melisma[torch]'"
        ) from error
    return TorchTrainer(task)


def check_model_fits(trainer: Trainer, data: DataSet) -> None:
    """`SettingError` with both shapes unless the model takes these samples and these labels."""
    try:
        parameters = trainer.initial()
    except Exception as error:  # The model is the user's.
        raise SettingError(
            f"the model has no parameters to begin with: {describe_error(error)}"
        ) from error
    if not parameters:
        raise SettingError("the model has no parameters to train")
    for split in filter(len, (data.train, data.test)):
        try:
            trainer.score(parameters, _trial_samples(split))
        except Exception as error:  # The model is the user's.
            forms = [f"{name} {_describe_array(array)}" for name, array in parameters.items()]
            model = ", ".join(forms if len(forms) < 5 else [*forms[:2], "...", forms[-1]])
            raise SettingError(
                f"the model does not fit the data: {describe_error(error)}; samples are "
                f"{_describe_array(split.samples[0])}, labels {_describe_array(split.labels[0])} "
                f"{_label_range(split)}, the model {model}"
            ) from error


def _is_trainer(own: Any) -> bool:
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(own, type) and issubclass(own, torch.nn.Module)
    return not is_module and all(callable(getattr(own, name, None)) for name in METHODS)


def _trial_samples(split: Split) -> Split:
    """Some samples, those with the smallest and the largest label among them."""
    flat = split.labels.reshape(len(split), -1)
    extreme = [flat.min(axis=1).argmin(), flat.max(axis=1).argmax()]
    some = np.unique([*range(min(TRIAL_SAMPLES, len(split))), *extreme])
    return Split(split.samples[some], split.labels[some])


def _describe_array(array: NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}" if array.ndim else str(array.dtype)


def _label_range(split: Split) -> str:
    return f"from {split.labels.min():g} to {split.labels.max():g}"


def trainer_cores(trainer: Trainer) -> int:
    """Cores that its steps may use: those that PyTorch may; of others nothing is known."""
    torch = sys.modules.get("torch")
    ours = sys.modules.get("melisma.learning.pytorch.torch_trainer")
    known = ours is not None and type(trainer) is ours.TorchTrainer
    return int(torch.get_num_threads()) if torch is not None and known else 1


def use_one_thread() -> None:
    """Keep PyTorch, where it is loaded, to one thread: what an emulated device is paced by."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """For a while; then as it was."""
    torch = sys.modules.get("torch")
    before = 0 if torch is None else torch.get_num_threads()
    use_one_thread()
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)

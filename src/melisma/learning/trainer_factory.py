"""The trainer of a task: PyTorch, or a class of the user with `initial`, `train` and `score`.

PyTorch is imported only for a task that needs it.
"""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.sizes import ModelSize
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.trainer import Trainer
from melisma.user_code import call_user_code, describe_error, import_object, is_import_path

METHODS = ("initial", "train", "score")
STEP_OPS = 2e6  # a fifth of a millisecond of one core
TRIAL_SAMPLES = 32  # samples for the check that a model fits the data


def trainer_for(task: Task, device: str = "cpu") -> Trainer:
    """Return the trainer of a task, on the device ``auto``, ``cpu``, ``cuda`` or ``mps``.

    A class with the three methods of a `Trainer` that is not a torch module is a trainer; it is
    called with the task and its `model_args`, and chooses its device itself. PyTorch trains every
    other model.
    """
    if is_import_path(task.model) and _is_trainer(import_object("model", task.model)):
        if device not in ("auto", "cpu"):
            raise SettingError(
                f"device is {device!r}, but model {task.model} is a trainer, which chooses its "
                "device itself; use device = 'auto'"
            )
        trainer: Trainer = call_user_code("model", task.model, task, **task.model_args)
        if problem := signature_problem(trainer):
            raise SettingError(f"model {task.model}: {problem}")
        if task.prox and not getattr(trainer, "supports_prox", False):
            raise SettingError(
                f"prox is {task.prox:g}, but model {task.model} is a trainer that does not add the "
                "proximal term; remove prox, or add it in train() and set supports_prox = True"
            )
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
    return TorchTrainer(task, device)


def signature_problem(trainer: Trainer) -> str | None:
    """Return the problem with the parameters of `train`; None if it can be called."""
    try:
        signature = inspect.signature(trainer.train)
    except ValueError:  # some functions written in C have none
        return None
    try:
        signature.bind("parameters", "batches", "rng")
    except TypeError:
        taken = ", ".join(signature.parameters)
        return f"train takes ({taken}); change it to train(parameters, batches, rng)"
    return None


def check_model_fits(trainer: Trainer, data: DataSet) -> None:
    """Raise `SettingError` with both shapes unless the model accepts the samples and labels."""
    try:
        parameters = trainer.initial()
    except Exception as error:  # The model is the user's.
        raise SettingError(
            f"the model failed to return its initial parameters: {describe_error(error)}"
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


def measure_sample_ops(task: Task, trainer: Trainer, split: Split) -> float | None:
    """Return the operations to train on one sample; None for a model of a known size.

    PyTorch counts those of its models. Other trainers, and models without operations that it
    counts, are taken to use each parameter once. Calling a framework takes as long as `STEP_OPS`
    for each batch. So the estimate is the same on every machine.
    """
    if not is_import_path(task.model):
        return None
    ops = 0.0
    if _is_torch_trainer(trainer):
        from melisma.learning.pytorch.torch_operations import count_sample_ops

        ops = count_sample_ops(trainer, split)  # type: ignore[arg-type] # checked above
    parameters = sum(array.size for array in trainer.initial().values())
    ops = ops or ModelSize(parameters, parameters).sample_ops
    return ops + STEP_OPS / task.batch


def _is_trainer(model: Any) -> bool:
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(model, type) and issubclass(model, torch.nn.Module)
    return not is_module and all(callable(getattr(model, name, None)) for name in METHODS)


def _trial_samples(split: Split) -> Split:
    """Return the first samples and those with the smallest and the largest label."""
    flat = split.labels.reshape(len(split), -1)
    extreme = [flat.min(axis=1).argmin(), flat.max(axis=1).argmax()]
    indices = np.unique([*range(min(TRIAL_SAMPLES, len(split))), *extreme])
    return Split(split.samples[indices], split.labels[indices])


def _describe_array(array: NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}" if array.ndim else str(array.dtype)


def _label_range(split: Split) -> str:
    return f"from {split.labels.min():g} to {split.labels.max():g}"


def trainer_cores(trainer: Trainer) -> int:
    """Return the number of cores that training may use: 1 unless PyTorch trains."""
    torch = sys.modules.get("torch")
    is_torch = torch is not None and _is_torch_trainer(trainer)
    return int(torch.get_num_threads()) if torch is not None and is_torch else 1


def _is_torch_trainer(trainer: Trainer) -> bool:
    module = sys.modules.get("melisma.learning.pytorch.torch_trainer")
    return module is not None and type(trainer) is module.TorchTrainer


def use_one_thread() -> None:
    """Limit PyTorch, if it is loaded, to one thread, as the pacing of emulated devices needs."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread within the context, then restore the number of threads."""
    torch = sys.modules.get("torch")
    before = 0 if torch is None else torch.get_num_threads()
    use_one_thread()
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)

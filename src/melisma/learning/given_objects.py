"""A model and data that are given as Python objects instead of by their names in the task.

A model of a live run gets a name that learner processes can import: that of its module, or of a
module that is written from its source (`definitions`). A simulated run uses the object itself.
"""

import copy
import re
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.learning.definitions import Definition, check_top_level, write_definition, write_module
from melisma.learning.parameters import Arrays, Layout, state_arrays
from melisma.learning.trainer import Trainer
from melisma.user_code import is_installed

OBJECTS_MODULE = "task_objects"
"""The module of this process alone in which a simulated run finds its model."""
_registered: dict[str, Any] = {}
EXPECTED = (
    "expected a name, a torch.nn.Module class or instance, a function that returns one, or a "
    "trainer class"
)

BUILD_SOURCE = """from collections import OrderedDict

from torch.nn import *


def build():
    return {}
"""
"""A module that builds an instance of PyTorch's own layers."""


@dataclass(frozen=True, eq=False)
class GivenObjects:
    """The arguments `model` and `data` of a run; None where the task names them."""

    model: Any = None
    data: Any = None

    def __bool__(self) -> bool:
        return self.model is not None or self.data is not None


NO_OBJECTS = GivenObjects()


@dataclass(frozen=True, eq=False)
class NamedModel:
    """The import path of a model, the folders of its modules, and the instance that it was."""

    name: str
    folders: tuple[str, ...] = ()
    instance: Any = field(default=None, repr=False)

    def start(self, trainer: Trainer) -> Arrays | None:
        """Return the parameters of the instance; `SettingError` unless the trainer has the same.

        Without an instance there are none.
        """
        if self.instance is None:
            return None
        start = _parameters(self.instance)
        built = getattr(trainer, "model", self.instance)
        # The text of a torch module has the settings of its layers.
        same_layers = repr(built) == repr(self.instance) or _is_trainer(self.instance)
        if not same_layers or Layout.from_arrays(start) != Layout.from_arrays(trainer.initial()):
            raise SettingError(f"model is another one when it is built again; {self.rebuild_hint}")
        return start

    @property
    def rebuild_hint(self) -> str:
        """How to pass an instance whose arguments are not known; empty without an instance."""
        if self.instance is None:
            return ""
        kind = type(self.instance).__name__
        return (
            f"learners build the {kind} that was given again, with the model_args of the task: set "
            "them to its arguments, or pass a function that returns it"
        )


def name_model(model: Any, *, shipped: bool) -> NamedModel:
    """Return the name of a model; if it is `shipped`, other processes can import it.

    Raise `SettingError` that says what to do for one that they cannot import.
    """
    if isinstance(model, str):
        return NamedModel(model)
    instance = None if isinstance(model, Definition) else model
    if instance is not None and not _is_model(instance):
        if not shipped and callable(instance):
            return _register(instance)
        raise SettingError(f"model is {describe(model)}; {EXPECTED}{_partial_hint(model)}")
    if instance is not None and not _is_trainer(instance):
        state_arrays(instance.state_dict())
    if not shipped:
        return _register(model if instance is None else _factory(instance), instance)
    if instance is not None and _is_torch_layer(instance):
        name, folder = write_module(BUILD_SOURCE.format(_expression(instance)), "build")
        return NamedModel(name, (str(folder),), instance)
    definition = model if instance is None else type(instance)
    name, folders = _import_path(definition)
    return NamedModel(name, folders, instance)


def _import_path(definition: Definition) -> tuple[str, tuple[str, ...]]:
    """Return the name of a definition, and the folder that its module is imported from."""
    check_top_level(definition)
    module, name = sys.modules.get(definition.__module__), definition.__name__
    is_imported = definition.__module__ != "__main__" and getattr(module, name, None) is definition
    if is_imported and getattr(module, "__spec__", None) is not None:
        return f"{definition.__module__}:{name}", _root_folder(definition.__module__)
    path, folder = write_definition(definition)
    return path, (str(folder), *_root_folder("__main__"))


def _root_folder(module: str) -> tuple[str, ...]:
    """Return the folder that a top-level module was imported from, unless it is installed."""
    top = sys.modules.get(module.partition(".")[0])
    # A package is a folder; a module is a file, and a notebook has none.
    places = [*getattr(top, "__path__", ()), *filter(None, [getattr(top, "__file__", None)])]
    if not places:
        return ()
    folder = Path(places[0]).resolve().parent
    return () if is_installed(folder) else (str(folder),)


def _register(model: Any, instance: Any = None) -> NamedModel:
    """Make a model importable in this process and its forks.

    The same object keeps its name; another one whose name is taken gets a number.
    """
    module = sys.modules.setdefault(OBJECTS_MODULE, ModuleType(OBJECTS_MODULE))
    word = re.sub(r"\W", "", getattr(model, "__name__", "")) or "model"
    given = model if instance is None else instance
    names = (word if number == 1 else f"{word}_{number}" for number in count(1))
    name = next(name for name in names if _registered.setdefault(name, given) is given)
    setattr(module, name, model)
    return NamedModel(f"{OBJECTS_MODULE}:{name}", (), instance)


def _factory(instance: Any) -> Any:
    if _is_trainer(instance):
        return type(instance)

    def build() -> Any:
        return copy.deepcopy(instance)

    build.__name__ = type(instance).__name__
    return build


def _parameters(instance: Any) -> Arrays:
    if _is_trainer(instance):
        return dict(instance.initial())
    return {name: np.array(each) for name, each in state_arrays(instance.state_dict()).items()}


def _is_model(instance: Any) -> bool:
    return callable(getattr(instance, "state_dict", None)) or _is_trainer(instance)


def _is_trainer(instance: Any) -> bool:
    is_torch = callable(getattr(instance, "state_dict", None))
    methods = ("initial", "train", "score")
    return not is_torch and all(callable(getattr(instance, name, None)) for name in methods)


def _is_torch_layer(instance: Any) -> bool:
    """Whether a module is one of PyTorch itself, so that its text tells how to build it."""
    return type(instance).__module__.startswith("torch.nn.modules.")


def _expression(layer: Any) -> str:
    """Return an expression that builds a layer of PyTorch, as it describes itself."""
    kind, children = type(layer).__name__, dict(layer.named_children())
    if not _is_torch_layer(layer):
        raise SettingError(
            f"model is a torch.nn.Sequential with a layer of your own, {kind}, whose arguments are "
            "not known: pass a function that returns the model"
        )
    if kind == "Sequential":
        parts = ", ".join(f"({name!r}, {_expression(each)})" for name, each in children.items())
        return f"Sequential(OrderedDict([{parts}]))"
    if children:
        raise SettingError(
            f"model has a {kind}, which cannot be built again from its text: pass a function that "
            "returns the model"
        )
    return repr(layer)


def _partial_hint(model: Any) -> str:
    return "; use model_args of the task for arguments" if hasattr(model, "func") else ""

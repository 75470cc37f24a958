"""Models that are given as Python objects get names that other processes can import."""

import linecache
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from torch import nn

import melisma
from melisma import Fleet, Task
from melisma.errors import SettingError
from melisma.learning.definitions import write_definition
from melisma.learning.given_objects import GivenObjects, name_model
from melisma.learning.loaded_task import LoadedTask, load_task
from melisma.learning.trainer_factory import trainer_for
from tests.live.tiny_task import Linear, blobs

TASK = Task(name="objects", deadline_s=1.0, passes=1, shard_samples=50)


class Net(nn.Sequential):
    def __init__(self, width: int = 3) -> None:
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def make_net() -> nn.Module:
    return Net(5)


def load(model: Any, *, shipped: bool = True, **settings: Any) -> LoadedTask:
    task = Task(name="objects", deadline_s=1.0, passes=1, shard_samples=50, **settings)
    return load_task(task, None, GivenObjects(model, blobs()), shipped=shipped)


def test_a_class_of_a_module_is_named_by_it_with_the_folder_to_import_it_from() -> None:
    named = name_model(Net, shipped=True)
    assert named.name == f"{__name__}:Net"
    assert named.folders == (str(Path(__file__).parents[2]),)
    loaded = load(Net)
    assert loaded.initial.keys() == loaded.trainer.initial().keys()


def test_a_function_that_returns_a_model_is_called() -> None:
    assert load(make_net).trainer.initial()["0.weight"].shape == (5, 4)


@pytest.mark.parametrize("shipped", [True, False])
def test_an_instance_gives_the_parameters_to_start_from(shipped: bool) -> None:
    instance = Net()
    loaded = load(instance, shipped=shipped)
    expected = instance.state_dict()["2.weight"].numpy()
    np.testing.assert_array_equal(loaded.initial["2.weight"], expected)
    assert (loaded.trainer.initial()["2.weight"] != expected).any() == shipped


def test_an_instance_is_built_again_with_the_arguments_of_the_task() -> None:
    assert load(Net(7), model_args={"width": 7}).initial["0.weight"].shape == (7, 4)
    with pytest.raises(SettingError, match="set them to its arguments, or pass a function"):
        load(Net(7))


def test_an_instance_and_a_saved_model_to_start_from_exclude_each_other() -> None:
    with pytest.raises(SettingError, match="both give the parameters to start from"):
        load(Net(), start="model.safetensors")


def test_layers_of_pytorch_are_built_again_from_their_text() -> None:
    instance = nn.Sequential(nn.Flatten(), nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2))
    loaded = load(instance)
    assert repr(loaded.trainer.model) == repr(instance)  # type: ignore[attr-defined]


def test_a_layer_of_the_users_own_inside_of_them_is_refused() -> None:
    with pytest.raises(SettingError, match="a layer of your own, Net, whose arguments"):
        load(nn.Sequential(Net()))


def make_bfloat16() -> nn.Module:
    return nn.Linear(4, 2).bfloat16()


@pytest.mark.parametrize("shipped", [True, False])
@pytest.mark.parametrize("model", [make_bfloat16(), make_bfloat16])
def test_a_model_whose_dtype_has_no_arrays_is_refused(model: Any, shipped: bool) -> None:
    with pytest.raises(SettingError, match=r"model: weight is torch\.bfloat16, which .*float32"):
        load(model, shipped=shipped)


def test_a_trainer_class_or_instance_is_taken_too() -> None:
    assert isinstance(load(Linear).trainer, Linear)
    assert isinstance(load(Linear(TASK)).trainer, Linear)


def test_a_simulated_run_takes_any_callable() -> None:
    width = 9
    loaded = load(lambda: Net(width), shipped=False)
    assert loaded.trainer.initial()["0.weight"].shape == (9, 4)


def test_models_of_simulated_runs_with_the_same_name_are_kept_apart() -> None:
    models = [lambda width=width: Net(width) for width in (2, 6)]
    given = [*models, Net(3), Net(8)]
    tasks = [load(model, shipped=False).task for model in given]
    shapes = [trainer_for(task).initial()["0.weight"].shape for task in tasks]
    assert shapes == [(2, 4), (6, 4), (3, 4), (8, 4)]
    assert [load(model, shipped=False).task.model for model in given] == [
        task.model for task in tasks
    ]


def test_data_in_memory_is_named_so() -> None:
    loaded = load(Net)
    assert (loaded.task.data, loaded.task.samples) == ("in memory", 600)


SCRIPT = """
from __future__ import annotations
import xml
import xml.dom
from math import sqrt as root

import numpy as np

LIMITS = {"low": [1, 2.5], "high": None}


def double(value: "int") -> int:
    return 2 * value


class Base:
    scale = double(2)


class Used(Base):
    def compute(self, unused: Missing = None) -> float:
        text = np.array([self.scale])
        return root(text[0]) + LIMITS["low"][1] + len(xml.dom.__name__)


if __name__ == "__main__":
    import sys
    from melisma.learning.definitions import write_definition

    text = object()
    name, folder = write_definition(Used)
    sys.path.insert(0, str(folder))
    module = __import__(name.partition(":")[0])
    assert module.Used is not Used
    print(module.Used().compute(None))
    print(sorted(key for key in vars(module) if not key.startswith("__")))
"""


def test_a_definition_of_a_script_takes_what_it_uses_along_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    names = ["Base", "LIMITS", "Used", "annotations", "double", "np", "root", "xml"]
    assert result.stdout == f"11.5\n{names}\n", result.stderr


def test_a_definition_without_source_says_what_to_do() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def build():\n    return 1\n", namespace)
    with pytest.raises(SettingError, match=r"the source of build is not known.* file of its own"):
        write_definition(namespace["build"])


REPEATED = """
import sys

import torch

from melisma.errors import SettingError
from melisma.learning.definitions import write_definition


def call(definition):
    name, folder = write_definition(definition)
    sys.path[:0] = [str(folder)]
    module, _, attribute = name.partition(":")
    return getattr(__import__(module), attribute)()


def build():
    return 1


class Net:
    def __init__(self):
        self.size = 1


class Sizes:
    size = 1


first = build, Net, Sizes


def build():
    return 2


class Net:
    def __init__(self):
        self.size = 2


class Sizes:
    size = 2


if len(sys.argv) > 9:
    def branch():
        return "if"
else:
    def branch():
        return "else"
try:
    raise KeyError
except KeyError:
    def handled():
        return "except"
finally:
    def final():
        return "finally"

UNIT = 3
__version__ = "1.2"


def dunders():
    return __name__[:11], __file__.startswith(sys.path[0]), __version__


@torch.no_grad()
def decorated():
    return UNIT


class Unclear:
    size = 1 + 0


class Unclear:
    size = 1 + 1


for build_it, net, sizes in (first, (build, Net, Sizes)):
    print(call(build_it), call(net).size, call(sizes).size)
print(call(branch), call(handled), call(final), call(decorated), call(dunders))
try:
    call(Unclear)
except SettingError as error:
    print(error)
"""


def test_the_definition_that_was_given_is_taken_if_several_have_its_name(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REPEATED)
    result = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    lines = result.stdout.splitlines()
    others = "else except finally 3 ('task_model_', True, '1.2')"
    assert lines[:3] == ["1 1 1", "2 2 2", others], result.stderr
    assert lines[3].startswith("model: 2 definitions have the name Unclear, and it is not known")


@pytest.mark.parametrize("chosen", [0, 1])
def test_the_cell_of_a_class_without_methods_is_found_by_its_values(
    chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [f"class Widths:\n    hidden: list = [{width}, 8]\n" for width in (4, 5)]
    for number, cell in enumerate(cells):
        entry = (len(cell), None, cell.splitlines(keepends=True), f"<cell {number}>")
        monkeypatch.setitem(linecache.cache, f"<cell {number}>", entry)
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(cells[chosen], f"<cell {chosen}>", "exec"), namespace)
    name, folder = write_definition(namespace["Widths"])
    source = (folder / f"{name.partition(':')[0]}.py").read_text()
    assert source.strip() == cells[chosen].strip()


METHODS = """
from functools import lru_cache, total_ordering


def helper(self):
    return 1


@total_ordering
class Ordered:
    def __lt__(self, other):
        return True


class Net(Ordered):
    borrowed = helper
    from os.path import join

    def forward(self):
        forward = 2
        return forward

    @lru_cache
    def cached(self):
        return 3

    @staticmethod
    def static():
        return 4


class Child(Net):
    pass


"""


def define(code: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a cell of a notebook, and return its names."""
    entry = (len(code), None, code.splitlines(keepends=True), "<cell>")
    monkeypatch.setitem(linecache.cache, "<cell>", entry)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    monkeypatch.setitem(sys.modules, "notebook", ModuleType("notebook"))
    exec(compile(code, "<cell>", "exec"), namespace)
    vars(sys.modules["notebook"]).update(namespace)
    return namespace


@pytest.mark.parametrize(
    ("change", "method"),
    [
        ("Net.added = helper", "Net.added"),
        ("Net.forward = helper", "Net.forward"),
        ("Net.forward = lambda self: 5", "Net.forward"),
        ("Net.added = staticmethod(helper)", "Net.added"),
        ("Child.forward = helper", "Child.forward"),
    ],
)
def test_a_method_assigned_after_the_definition_is_refused(
    change: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = define(METHODS + change + "\n", monkeypatch)["Child"]
    with pytest.raises(SettingError, match=f"model: {method} was assigned after .* define it in"):
        write_definition(child)


def test_methods_of_decorators_and_of_the_body_are_taken_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = define(METHODS, monkeypatch)["Child"]
    name, folder = write_definition(child)
    assert "borrowed = helper" in (folder / f"{name.partition(':')[0]}.py").read_text()


FLEET = Fleet.from_profiles({"kitchen": "raspberry-pi-4", "shed": "jetson-nano"})


def test_a_saved_model_of_a_run_with_objects_is_scored_with_the_same_objects(
    tmp_path: Path,
) -> None:
    task, data = replace(TASK, cycles=2, checkpoints="best"), blobs()
    report = melisma.simulate(task, FLEET, model=Net(), data=data, folder=tmp_path / "run")
    assert report.model is not None
    assert report.best_model is not None
    for given in (task, report.task):
        score = melisma.evaluate(report.model, given, model=Net, data=data)
        assert (score.accuracy, score.loss) == (report.accuracy, report.loss)
    best = melisma.evaluate(report.best_model, task, model=Net(), data=data)
    assert best.accuracy == max(cycle.accuracy for cycle in report.cycles)


def test_an_evaluation_without_the_objects_says_which_to_pass(tmp_path: Path) -> None:
    report = melisma.simulate(TASK, FLEET, model=Net, data=blobs(), folder=tmp_path / "run")
    assert report.model is not None
    with pytest.raises(SettingError, match=r"had it in memory: pass it again as data="):
        melisma.evaluate(report.model, report.task)
    with pytest.raises(SettingError, match=r"pass an object as the argument model"):
        melisma.evaluate(report.model, TASK, data=blobs())


@pytest.mark.parametrize("find", ["deadline", "model"])
def test_a_sizing_takes_objects_and_measures_their_sizes(find: Any) -> None:
    sizing = melisma.size(
        TASK, FLEET, find, model=Net, data=blobs(), within_s=10.0, visits=1000, seeds=1
    )
    assert sizing.chosen is not None
    assert sizing.chosen.reached >= 1000
    with pytest.raises(SettingError, match="model is missing"):
        melisma.size(TASK, FLEET, find, within_s=10.0, visits=1000)


def test_a_sizing_to_an_accuracy_trains_the_objects() -> None:
    sizing = melisma.size(
        TASK, FLEET, "deadline", model=Net, data=blobs(), within_s=1.0, accuracy=0.01, seeds=1
    )
    assert sizing.level == "batched"
    assert sizing.chosen is not None

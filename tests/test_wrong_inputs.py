"""Wrong inputs in Python: each is one of our errors that says what is wrong and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import melisma
from melisma import Fleet, SimulationOptions, Task
from melisma.errors import MelismaError, SettingError
from tests.live.tiny_task import blobs


class Net(nn.Module):
    def __init__(self, inputs: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


DATA = blobs()
(SAMPLES, LABELS), TEST = DATA
TIMED: dict[str, Any] = {"name": "a", "deadline_s": 1.0}
TASK = Task(**TIMED, passes=1, shard_samples=50)
FLEET = Fleet.from_profiles({"pi": "raspberry-pi-4", "jetson": "jetson-nano"})


def task(**settings: Any) -> Task:
    return Task(**(TIMED | settings))


def train(**arguments: Any) -> Any:
    given: dict[str, Any] = {"fleet": FLEET, "model": Net, "data": DATA}
    return melisma.train(TASK, **(given | arguments))


def simulate(**arguments: Any) -> Any:
    options = SimulationOptions(**arguments.pop("options", {}))
    given: dict[str, Any] = {"task": TASK, "fleet": FLEET, "model": Net, "data": DATA}
    return melisma.simulate(options=options, **(given | arguments))


def compare(schemes: Any, seeds: Any, **arguments: Any) -> Any:
    return melisma.compare(TASK, FLEET, schemes, seeds, model=Net, data=DATA, **arguments)


def local_model() -> type[nn.Module]:
    class Local(Net):
        pass

    return Local


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "resume, a folder": (lambda: melisma.resume(None), "resume: folder: None; expected text"),  # type: ignore[arg-type]
    "resume, a start": (lambda: melisma.resume("x", start=5), "start: 5; expected text"),  # type: ignore[arg-type]
    "resume, a say": (lambda: melisma.resume("x", say=5), "say is 5 (int); expected a function"),  # type: ignore[arg-type]
    "unknown key": (lambda: task(pases=2), "Task: unknown key pases; did you mean passes?"),
    "unnamed": (lambda: Task("a"), "Task: 'a' has no name; name each setting"),  # type: ignore[call-arg]
    "text for seconds": (lambda: task(deadline_s="1"), "deadline_s: '1'; expected a number"),
    "negative": (lambda: task(cycles=-1), "cycles: -1; expected a whole number of at least 1"),
    "fraction": (lambda: task(batch=2.5), "batch: 2.5; expected a whole number"),
    "number as name": (lambda: task(name=7), "name: 7; expected text"),
    "empty name": (lambda: task(name=" "), "Task: name is empty"),
    "no deadline": (lambda: Task(name="a"), "deadline_s is missing: use deadline_s"),
    "mode": (lambda: task(mode="federatd"), "'federatd'; did you mean federated?"),
    "optimizer": (lambda: task(optimizer={"lrr": 1}), "optimizer: unknown key lrr; did you mean"),
    "stop": (lambda: task(stop={"accuracy": 80}), "stop.accuracy: 80; expected a number of at m"),
    "clock": (lambda: task(finish_by="noon"), "finish_by is 'noon'; expected a time such as"),
    "shards": (lambda: task(min_shards=9, max_shards=2), "min_shards is 9; expected at most max"),
    "partition": (lambda: task(partition={}), 'partition is for mode = "federated" only'),
    "fleet of arrays": (lambda: Fleet("pi"), "use Fleet.from_profiles"),  # type: ignore[call-arg, arg-type]
    "profile": (
        lambda: Fleet.from_profiles({"a": "phon"}),
        "'phon' is unknown; did you mean phone",
    ),
    "list": (lambda: Fleet.from_profiles(["phone"]), "expected names with profiles"),  # type: ignore[arg-type]
    "no learners": (
        lambda: Fleet.from_profiles({}),
        "profiles are empty; expected names with profiles",
    ),
    "fleet key": (lambda: Fleet.from_tables(learnr=[]), "unknown key learnr; did you mean learner"),
    "group": (
        lambda: Fleet.from_tables(group=[{"count": 0, "profile": "phone"}]),
        "group[0].count: 0; expected a whole number of at least 1",
    ),
    "speed": (
        lambda: Fleet.from_tables(learner=[{"name": "a", "compute": "fast"}]),
        "learner[a].compute: 'fast'; expected a number",
    ),
    "task file": (lambda: melisma.train("no.toml", FLEET), "no.toml: no such file"),
    "fleet file": (lambda: train(fleet="no.toml"), "no.toml: no such file"),
    "task type": (lambda: melisma.train(3, FLEET), "task is 3 (int); expected a melisma.Task"),  # type: ignore[call-overload]
    "fleet type": (lambda: train(fleet=[1]), "fleet is [1] (list); expected a melisma.Fleet"),
    "no devices": (lambda: melisma.train(TASK), "train has neither a fleet nor devices: pass"),
    "both": (lambda: train(devices=2), "train has a fleet and devices = 2: leave out"),
    "devices": (lambda: train(devices="two"), "train: devices: 'two'; expected a whole number"),
    "port": (lambda: train(port=70000), "train: port: 70000; expected a whole number of at most"),
    "scheme": (lambda: train(scheme="dabb"), "dabb"),
    "two times": (lambda: train(deadline_s=1, total_s=60), "use one of them"),
    "time": (lambda: train(deadline_s="1"), "deadline_s: '1'; expected a number"),
    "folder": (lambda: train(folder=5), "folder is 5 (int); expected the path of a folder"),
    "callback": (lambda: train(on_cycle=5), "on_cycle is 5 (int); expected a function"),
    "model": (lambda: train(model=5), "model is 5 (int); expected a name, a torch.nn.Module"),
    "lambda": (lambda: train(model=lambda: Net(4)), "model is a lambda"),
    "local": (lambda: train(model=local_model()), "define it at the top level of a file or cell"),
    "instance": (lambda: train(model=Net(5)), "model is another one when it is built again"),
    "no model": (lambda: train(model=None), "model is missing: name it"),
    "model name": (lambda: simulate(model="twon"), "unknown model 'twon'; did you mean twonn?"),
    "misfit": (lambda: simulate(model=lambda: Net(7)), "the model does not fit the data"),
    "one pair": (lambda: simulate(data=(SAMPLES, LABELS)), "data is one pair of arrays; expected"),
    "counts": (lambda: simulate(data=((SAMPLES, LABELS[:9]), TEST)), "600 samples with 9 labels"),
    "no test": (lambda: simulate(data=(DATA[0], None)), "has no test samples; add some"),
    "loader": (
        lambda: simulate(data=(DataLoader(TensorDataset()), TEST)),
        "data: train is a DataLoader; pass the dataset of the loader",
    ),
    "text data": (lambda: simulate(data=((np.array(["a"]), [0]), TEST)), "samples are <U1; expect"),
    "options": (lambda: simulate(options={"seed": "x"}), "seed: 'x'; expected a whole number"),
    "work": (lambda: simulate(options={"work": "tran"}), "work is 'tran'; did you mean train?"),
    "faults": (lambda: simulate(options={"faults": "crush 1 at 2"}), "crush"),
    "no schemes": (lambda: compare([], [1]), "no scheme to compare; expected some of"),
    "one scheme": (lambda: compare("dab", [1]), "schemes: 'dab'; expected a list"),
    "seeds": (lambda: compare(["dab"], 3), "seeds: 3; expected a list"),
    "accuracy": (
        lambda: compare(["dab"], [1], accuracy=2.0),
        "accuracy is 2; expected more than 0",
    ),
    "host": (lambda: melisma.orchestrate(TASK, host="x"), "host = 'x' is not an IP address: use"),
    "learners": (lambda: melisma.orchestrate(TASK, learners=0), "use learners >= 1"),
    "waiting": (
        lambda: melisma.orchestrate(TASK, until_ready=-1.0),
        "until_ready = -1 is invalid: use until_ready >= 0",
    ),
}


def test_there_are_at_least_forty() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_an_error_that_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = WRONG[name]
    with pytest.raises(MelismaError) as caught:
        call()
    assert isinstance(caught.value, SettingError)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    # Nothing was started.
    assert not [*tmp_path.iterdir()]

"""`melisma.plan` gives the result of the command, for files and for objects."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import melisma
from melisma import Fleet, Task
from melisma.errors import SettingError
from tests.cli.command_line import melisma as command
from tests.live.tiny_task import blobs

EXAMPLES = Path(__file__).parents[3] / "examples"
CLUSTER = EXAMPLES / "mays-cluster" / "TASK.toml", EXAMPLES / "mays-cluster" / "FLEET.toml"
TASK = Task(name="points", deadline_s=2.0, cycles=2, passes=1, shard_samples=100)
FLEET = Fleet.from_profiles({"kitchen": "raspberry-pi-4", "shed": "jetson-nano"})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.output(x)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, ()),
        ({"scheme": "equal"}, ("--scheme", "equal")),
        ({"deadline_s": 1e-3}, ("--deadline", "0.001")),
        ({"total_s": 60.0}, ("--total", "1min")),
        ({"learners": 8}, ("--learners", "8")),
    ],
)
def test_the_plan_is_that_of_the_command(
    options: dict[str, Any], arguments: tuple[str, ...]
) -> None:
    task, fleet = CLUSTER
    printed = command("plan", str(task), "--fleet", str(fleet), "--json", *arguments)
    plan = melisma.plan(task, fleet, **options)
    assert plan.as_dict() == json.loads(printed.stdout)
    assert printed.code == (0 if plan.is_met else 1)


def test_tasks_and_fleets_may_be_objects_and_files() -> None:
    task, fleet = CLUSTER
    read = melisma.fleet.read_task(task), melisma.fleet.read_fleet(fleet)
    assert melisma.plan(*read).as_dict() == melisma.plan(task, fleet).as_dict()


def test_a_model_and_data_of_the_user_are_measured() -> None:
    plan = melisma.plan(TASK, FLEET, model=Net, data=blobs())
    assert plan.feasible
    assert plan.figures["shards"] == [6]
    assert {row["name"] for row in plan.learners} == {"kitchen", "shed"}


def test_several_tasks_share_a_fleet() -> None:
    files = sorted((EXAMPLES / "med").glob("*.toml"))
    tasks = [file for file in files if file.name != "FLEET.toml"]
    plan = melisma.plan(tasks, EXAMPLES / "med" / "FLEET.toml")
    assert plan.scheme == "med"
    assert len(plan.figures["tasks"]) == len(tasks) > 1


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (5, {}, r"task is 5 \(int\); expected a melisma.Task"),
        ([], {}, "task is an empty list"),
        (TASK, {}, "model is missing"),
        ([TASK, TASK], {"model": Net}, "model and data are those of one task, found 2"),
        (CLUSTER[0], {"time_limit_s": 0.0}, "time_limit_s is 0; expected seconds, more than 0"),
        (CLUSTER[0], {"scheme": "eqal"}, "no scheme is called 'eqal'; did you mean equal"),
        (CLUSTER[0], {"learners": 0}, "learners"),
    ],
)
def test_wrong_arguments_are_refused(task: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        melisma.plan(task, FLEET, **options)


@pytest.mark.parametrize("data", ["mnist", "nowhere:load"])
def test_a_task_without_passes_is_refused_before_its_data_is_loaded(data: str) -> None:
    task = Task(name="digits", model="twonn", data=data, deadline_s=2.0)
    with pytest.raises(SettingError, match=r"^task: passes is missing; scheme dab needs it"):
        melisma.plan(task, FLEET)

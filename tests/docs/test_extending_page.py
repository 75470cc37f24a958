"""docs/extending.md shows the code of examples/extending, which runs live as well."""

import re
import sys
from pathlib import Path

import pytest

from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.task_file import read_task
from melisma.learning.data.datasets import load_dataset
from melisma.learning.trainer_factory import trainer_for
from melisma.live.training import train
from melisma.simulation import SimulationOptions, simulate
from melisma.testing import check_trainer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extending"
FILES = EXAMPLE / "TASK.toml", EXAMPLE / "FLEET.toml"


def test_the_page_shows_the_functions_of_the_example() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    code = (EXAMPLE / "own.py").read_text(encoding="utf-8")
    functions = re.findall(r"^def .*?(?=\n```|\n\n\n)", page, re.MULTILINE | re.DOTALL)
    assert len(functions) == 3
    for function in functions:
        assert function in code


def test_the_trainer_of_the_example_follows_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    # Another test may have imported a module of this name.
    monkeypatch.delitem(sys.modules, "own", raising=False)
    check_trainer(trainer_for(read_task(FILES[0])), load_dataset("own:load", {}).train)


def test_the_example_runs_live_with_scheme_and_trainer_of_its_own(tmp_path: Path) -> None:
    report = train(*FILES, folder=tmp_path)
    assert report.outcome == "finished"
    assert report.task.scheme == "own:fastest_first"
    assert report.accuracy > 0.9


def test_the_partition_gives_devices_few_labels_and_counts_as_simulated() -> None:
    report = simulate(EXAMPLE / "FEDERATED.toml", FILES[1])
    assert report.outcome == "finished"
    assert report.accuracy > 0.9
    again = simulate(EXAMPLE / "FEDERATED.toml", read_fleet(FILES[1]), SimulationOptions())
    assert again.as_dict() == report.as_dict()

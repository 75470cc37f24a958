"""`melisma evaluate`, and runs that start from a model and keep the best one."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import melisma as api
from melisma.errors import SettingError
from tests.cli.command_line import melisma, parse_json
from tests.live import tiny_task

TASK = """
[task]
name = "blobs"
model = "tiny_task:Linear"
data = "tiny_task:blobs"
scheme = "equal"
passes = 1
deadline_s = 10.0
cycles = 3
shard_samples = 100
checkpoints = "all"
optimizer = { lr = 0.3 }
"""
FLEET = """
[[fleet.group]]
name = "d"
count = 3
samples_per_s = 500
bandwidth_bps = 20e6
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with task, fleet and model code; the working directory is another one."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run_task(folder: Path, name: str, start: str | Path | None = None) -> api.Report:
    options = api.simulation.SimulationOptions(start=start)
    files = folder / "task.toml", folder / "fleet.toml"
    return api.simulate(*files, options, folder=folder / name)


def test_the_score_of_the_last_model_is_that_of_the_report(folder: Path) -> None:
    report = run_task(folder, "run")
    assert report.model is not None
    score = api.evaluate(report.model, folder / "task.toml")
    assert (score.accuracy, score.loss) == (report.accuracy, report.loss)
    printed = parse_json(melisma("evaluate", report.model, folder / "task.toml", "--json").stdout)
    assert printed == {"accuracy": report.accuracy, "loss": report.loss, "samples": 200}
    line = melisma("evaluate", report.model, folder / "task.toml").stdout
    assert line == f"accuracy {report.accuracy:.1%}, loss {report.loss:.4g} on 200 test samples\n"


def test_best_and_checkpoints_are_models_of_the_cycles(folder: Path) -> None:
    report = run_task(folder, "run")
    assert report.best_model == folder / "run" / "best.safetensors"
    files = sorted((folder / "run" / "checkpoints").iterdir())
    assert [file.name for file in files] == [f"cycle-000{n}.safetensors" for n in (1, 2, 3)]
    for file, cycle in zip(files, report.cycles, strict=True):
        assert api.evaluate(file, folder / "task.toml").loss == cycle.loss
    best = api.evaluate(report.best_model, folder / "task.toml")
    assert best.accuracy == max(cycle.accuracy for cycle in report.cycles)


def test_a_run_starts_from_a_model_beside_the_task_file_or_of_the_command_line(
    folder: Path,
) -> None:
    """A start from the result of one run gives the same first cycle in both ways."""
    model = run_task(folder, "first").model
    assert model is not None
    shutil.copy(model, folder / "start.safetensors")
    by_option = run_task(folder, "second", model)
    text = TASK.replace('checkpoints = "all"', 'start = "start.safetensors"')
    (folder / "task.toml").write_text(text)
    by_file = run_task(folder, "third")
    plain = load_file(folder / "first" / "checkpoints" / "cycle-0001.safetensors")
    assert by_option.model is not None
    assert by_file.model is not None
    for name, array in load_file(by_option.model).items():
        np.testing.assert_array_equal(array, load_file(by_file.model)[name])
    started = load_file(folder / "second" / "checkpoints" / "cycle-0001.safetensors")
    assert not np.array_equal(plain["weight"], started["weight"])


def test_a_start_that_does_not_fit_is_one_line_that_names_the_array(folder: Path) -> None:
    save_file({"weight": np.zeros(4, np.float32)}, folder / "m.safetensors")
    files = str(folder / "task.toml"), "--fleet", str(folder / "fleet.toml")
    result = melisma("simulate", *files, "--start", folder / "m.safetensors")
    assert result.code == 2
    assert "array bias is missing; expected float32[1]" in result.stderr
    missing = melisma("run", *files, "--start", "gone.safetensors")
    assert (missing.code, "there is no such file" in missing.stderr) == (2, True)
    assert "\n" not in missing.stderr.strip()


def test_a_model_without_test_samples_cannot_be_evaluated(folder: Path) -> None:
    text = TASK.replace("passes = 1", 'passes = 1\nmode = "federated"\ndata_args = { test = 0 }')
    (folder / "task.toml").write_text(text)
    save_file(tiny_task.Linear(None).initial(), folder / "m.safetensors")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"task.toml: task: .* has no test samples"):
        api.evaluate(folder / "m.safetensors", folder / "task.toml")

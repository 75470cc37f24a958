"""Live runs with a model of a script that is not guarded, with arrays, and with a callback."""

import subprocess
import sys
from pathlib import Path

import pytest

from melisma.errors import RunFailedError
from melisma.live.training import train
from melisma.runs.report import Report
from melisma.runs.trace import read_trace
from tests.live.short_run import build

# Without torch, so that it starts soon.
SCRIPT = """
import numpy as np

import melisma
from melisma.learning.trainer import Score, TrainingResult

RATE = 0.1


def sigmoid(value):
    return 1 / (1 + np.exp(-np.clip(value, -30, 30)))


class Logistic:
    def __init__(self, task):
        self.weight = np.zeros(4, np.float32)

    def initial(self):
        return {"weight": self.weight}

    def train(self, parameters, batches, rng):
        weight, visits = np.array(parameters["weight"]), 0
        for batch in batches:
            error = sigmoid(batch.samples @ weight) - batch.labels
            weight -= RATE * batch.samples.T @ error / len(batch)
            visits += len(batch)
        return TrainingResult({"weight": weight.astype(np.float32)}, visits, 0.0)

    def score(self, parameters, samples):
        right = int(((samples.samples @ parameters["weight"] > 0) == samples.labels).sum())
        return Score(len(samples), 0.0, right)


def stop(cycle):
    print("cycle", cycle.number, cycle.accuracy > 0.5)
    raise LookupError("seen enough")


rng = np.random.default_rng(1)
labels = rng.integers(0, 2, 400)
samples = (rng.normal(0, 1, (400, 4)) + 2 * labels[:, None] - 1).astype(np.float32)
task = melisma.Task(name="script", deadline_s=1.0, cycles=50, passes=1, shard_samples=50)
fleet = melisma.Fleet.from_tables(
    learner=[{"name": name, "compute": 0.1, "bandwidth_bps": 5e7} for name in ("a", "b")]
)
try:
    melisma.train(
        task,
        fleet,
        model=Logistic,
        data=((samples[:300], labels[:300]), (samples[300:], labels[300:])),
        folder="run",
        on_cycle=stop,
    )
except LookupError as error:
    print("raised", error)
"""


def test_a_model_of_a_script_is_trained_and_an_error_of_the_callback_keeps_the_results(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stdout == "cycle 1 True\nraised seen enough\n", result.stderr
    report = Report.from_trace(read_trace(tmp_path / "run" / "trace.jsonl"))
    assert (report.outcome, report.task.data) == ("cancelled", "in memory")
    assert report.reason == "on_cycle raised LookupError: seen enough"
    assert report.cycles[0].counts["counted"] == 2
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "picture.svg").is_file()


def test_a_run_that_fails_raises_an_error_with_its_report(work_folder: Path) -> None:
    task, fleet = build({"model_args": {"broken": "raises"}}, {})
    with pytest.raises(RunFailedError, match=r"the run of task blobs failed: .* are in ") as failed:
        train(task, fleet, folder=work_folder / "run")
    report = failed.value.report
    assert report.outcome == "failed"
    assert "this model cannot be trained" in " ".join(report.departures)


def test_an_aggregation_that_fails_raises_an_error_with_the_report_and_a_picture(
    work_folder: Path,
) -> None:
    (work_folder / "failing_own.py").write_text("def fail(updates, weights):\n    return 1 / 0\n")
    task, fleet = build({"aggregation": "failing_own:fail"}, {})
    with pytest.raises(RunFailedError, match="failing_own:fail: ZeroDivisionError") as failed:
        train(task, fleet, folder=work_folder / "run")
    assert failed.value.report.outcome == "cancelled"
    assert len(failed.value.report.cycles) == 1
    assert (work_folder / "run" / "picture.svg").is_file()

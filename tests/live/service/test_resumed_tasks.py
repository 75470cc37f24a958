"""Tasks on emulated devices go on after their process was killed."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.live.killed_orchestrator import Process
from melisma.runs.report import Report
from melisma.runs.trace import read_trace
from tests.live.service.service_lab import TASK

FLEET = """
[[fleet.learner]]
name = "tortoise"
compute = 0.05
bandwidth_bps = 20e6

[[fleet.learner]]
name = "hare"
compute = 0.1
bandwidth_bps = 80e6
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    for name in ("first", "second"):
        text = TASK.format(name=name, more="", cycles=3, deadline_s=3.0, pause_s=0.05)
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_tasks_whose_process_was_killed_go_on_and_pay_nothing_twice(folder: Path) -> None:
    files = ("first.toml", "second.toml", "--fleet", "fleet.toml", "--out", "out")
    begun = Process("run", *files, folder=folder)
    assert begun.wait_for("first, cycle 1") is not None, begun.output
    assert begun.cut_power()
    resumed = Process("resume", "out", folder=folder)
    # On a busy machine cycles may close late, which is exit code 1.
    assert resumed.end() in (0, 1), resumed.output
    assert "first, second: going on in" in resumed.output
    assert "first, cycle 1:" not in resumed.output
    for name in ("1-first", "2-second"):
        report = Report.from_trace(read_trace(folder / "out" / name / "trace.jsonl"))
        assert report.outcome == "finished"
        assert report.restarts == 1
        assert [cycle.number for cycle in report.cycles] == [1, 2, 3]
    ledger = Process("ledger", "out", "--json", folder=folder)
    assert ledger.end() == 0
    ledger.wait_for("\0")
    payments = json.loads(ledger.output)["payments"]
    works = [(row["task"], row["cycle"], row["learner"]) for row in payments]
    assert len(works) == len(set(works))
    assert {(task, cycle) for task, cycle, _ in works} == {
        (name, cycle) for name in ("first", "second") for cycle in (1, 2, 3)
    }
    again = Process("resume", "out", folder=folder)
    assert again.end() == 2
    again.wait_for("\0")
    assert "have ended: start new ones in another folder" in again.output


def test_options_of_one_task_and_damaged_folders_are_refused(folder: Path) -> None:
    files = ("first.toml", "second.toml", "--fleet", "fleet.toml", "--out", "out")
    begun = Process("run", *files, folder=folder)
    assert begun.wait_for("first, cycle 1") is not None, begun.output
    assert begun.cut_power()
    refused = Process("resume", "out", "--cycles", "9", folder=folder)
    assert refused.end() == 2
    refused.wait_for("\0")
    assert "--cycles is for one task" in refused.output
    shutil.rmtree(folder / "out" / "2-second")
    damaged = Process("resume", "out", folder=folder)
    assert damaged.end() in (1, 2)
    damaged.wait_for("\0")
    assert "2-second" in damaged.output
    assert "Traceback" not in damaged.output

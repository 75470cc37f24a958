"""Runs whose updates are checked: orchestrator and learners as processes, one of which cheats."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.errors import SettingError
from melisma.learning.verification.reexecution import Verdict
from melisma.runs.progress import FAILED_CHECK
from melisma.runs.recovery import RecoveredRun
from melisma.runs.report import Report
from tests.live.short_run import DEFAULT_RULES, issued, received, run_task

FLEET = {
    "learner": [
        {"name": name, "compute": 0.1, "bandwidth_bps": 80e6, "latency_s": 0.001}
        for name in ("ant", "bee", "cat")
    ]
}
# A cycle waits for all updates, also for those of a process that starts late on a busy machine.
RULES: dict[str, Any] = DEFAULT_RULES | {
    "deadline_s": 4.0,
    "cycles": 2,
    "quorum": 1.0,
    "verify": "audit",
}


@pytest.fixture
def greedy_folder(work_folder: Path) -> Path:
    """Return a folder that holds the modules `tiny_task` and `greedy_task`."""
    shutil.copy(Path(__file__).with_name("greedy_task.py"), work_folder)
    return work_folder


def verdicts(report: Report) -> dict[int, set[Verdict]]:
    """Return the verdicts on each learner."""
    found: dict[int, set[Verdict]] = {}
    for event in received(report, events.Aggregated):
        pairs = zip(event.verified.learners, event.verified.verdicts, strict=True)
        for learner, verdict in pairs:
            found.setdefault(int(learner), set()).add(Verdict(int(verdict)))
    return found


def run_checked(folder: Path, model: str = "Greedy", **settings: Any) -> Report:
    task = RULES | {"model": f"greedy_task:{model}", "model_args": {"pause_s": 0.005}} | settings
    return run_task(folder, FLEET, **task)


def test_a_learner_that_cheats_is_found_and_left_out_and_no_other_is(greedy_folder: Path) -> None:
    report = run_checked(greedy_folder)
    assert report.outcome == "finished", report.reason
    assert verdicts(report) == {0: {Verdict.RIGHT}, 1: {Verdict.WRONG}, 2: {Verdict.RIGHT}}
    assert set(report.failed_checks) == {"bee"}
    for cycle in report.cycles:
        weights = {each.name: each.weight for each in cycle.assignments}
        assert weights["bee"] == 0
        assert weights["ant"] > 0
        reasons = {each.name: each.reason for each in cycle.assignments}
        assert reasons["bee"] == FAILED_CHECK
    assert not report.left_out
    assert report.accuracy > 0.9


def test_extended_trainings_of_honest_learners_are_right(greedy_folder: Path) -> None:
    # A shard takes 0.625 s, and a batch of an extension begins in time.
    steady = [{"name": name, "samples_per_s": 80, "bandwidth_bps": 80e6} for name in ("ant", "bee")]
    settings = {"model": "greedy_task:Repeatable", "passes": 1, "batch": 10, "cycles": 1}
    report = run_task(greedy_folder, {"learner": steady}, **RULES | settings | {"deadline_s": 3.0})
    updates = received(report, events.UpdatesReceived)
    assert max(int(update.attempts.max()) for update in updates) > 1
    assert set().union(*verdicts(report).values()) == {Verdict.RIGHT}


def test_replay_of_the_trace_restores_trust_and_the_choice(greedy_folder: Path) -> None:
    report = run_checked(greedy_folder)
    run = RecoveredRun().replay(report.trace)  # raises if it would decide differently
    learners = run.machine.state.learners
    assert learners.right[1] == 0
    assert (learners.right[[0, 2]] == len(report.cycles)).all()
    assert not learners.unanswered.any()
    challenged = np.concatenate([each.learners for each in issued(report, commands.Challenge)])
    assert np.unique(challenged).tolist() == [0, 1, 2]


def test_the_secret_of_a_run_is_in_its_trace_and_differs(greedy_folder: Path) -> None:
    (submitted,) = received(run_checked(greedy_folder, cycles=1), events.TaskSubmitted)
    assert len(submitted.secret) == 32


def test_a_trainer_that_cannot_be_repeated_is_refused_before_the_run(work_folder: Path) -> None:
    with pytest.raises(SettingError, match='verify = "audit" needs a trainer with checkpoint'):
        run_task(work_folder, verify="audit")

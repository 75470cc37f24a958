"""A killed orchestrator of devices that joined: they reconnect, with the work they are doing."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.live.joined_run import JoinedRun
from benchmarks.live.killed_orchestrator import LiveInvariants
from melisma.cycle import events
from melisma.runs.journal import Journal
from melisma.runs.report import Report

CYCLE_S, CYCLES = 2.0, 5


@pytest.fixture
def run(tmp_path: Path) -> Iterator[JoinedRun]:
    joined = JoinedRun(tmp_path, cycle_s=CYCLE_S, cycles=CYCLES, learners=2)
    try:
        yield joined
    finally:
        joined.close()


def test_devices_go_on_with_an_orchestrator_that_was_killed_twice(
    run: JoinedRun, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    run.join()
    time.sleep(float(rng.uniform(0, CYCLE_S)))  # any instant will do
    run.restart_orchestrator("resume", "run")
    run.wait_for_cycle(3)
    time.sleep(float(rng.uniform(0, CYCLE_S)))
    # The command that began the run goes on with it, too.
    run.restart_orchestrator(*run.command)
    # On a busy machine cycles may close late, which is exit code 1.
    assert run.orchestrator.end() in (0, 1), run.orchestrator.output
    assert [device.end() for device in run.devices] == [0, 0]
    with closing(Journal.open(tmp_path / "run")) as journal:
        steps = list(journal.steps())
    invariants = LiveInvariants()
    for step in steps:
        invariants.check(step)
    invariants.check_end()
    report = Report.from_trace(steps)
    assert report.outcome == "finished"
    assert report.restarts == 2
    assert [cycle.number for cycle in report.cycles] == [*range(1, CYCLES + 1)]
    assert sum(cycle.empty for cycle in report.cycles) == 0
    # They went on: none of them left, or joined as another learner.
    assert sorted(report.names) == ["device-0", "device-1"]
    assert not [step for step in steps if isinstance(step.event, events.LearnersLeft)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--deadline", "3"), "is the folder of a run with deadline_s = 2.0, and the task has 3.0"),
        (("--scheme", "equal"), "is the folder of a run with scheme = 'dab', and the task has"),
        (("--start", "model.safetensors"), "is the folder of a run with start = None, and the"),
    ],
)
def test_another_task_than_that_of_the_folder_is_refused(
    run: JoinedRun, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    run.join()
    run.orchestrator.kill()
    (tmp_path / "model.safetensors").touch()
    run.start_orchestrator(*run.command, *arguments)
    assert run.orchestrator.end() == 2
    assert problem in run.orchestrator.output

"""Learner processes end with the run, and the run continues without a killed one."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from melisma.cycle import commands, events
from melisma.cycle.events import Evaluated
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.processes import run_processes
from melisma.runs.journal import read_steps
from melisma.runs.report import Report
from melisma.runs.trace import Step
from tests.live.child_process import launched_processes, start_process
from tests.live.short_run import received, run_task


def test_processes_end_with_the_run(work_folder: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    run_task(work_folder)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


def test_a_learner_process_ends_with_its_parent(work_folder: Path) -> None:
    settings = LearnerSettings(
        name="x", orchestrator=("http://127.0.0.1:9",), cache=str(work_folder / "c")
    )
    process = start_process("melisma.live.learner.learner_process", settings, work_folder / "x.log")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 1


class Named(msgspec.Struct):
    name: str


async def test_an_error_while_an_exit_is_reported_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_module.py").write_text("def main():\n    return 0\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    reported = asyncio.Event()

    def fail(number: int, reason: str) -> None:
        reported.set()
        raise RuntimeError(f"cannot report {reason}")

    with pytest.raises(RuntimeError, match="cannot report a: its process ended"):
        async with run_processes([Named("a")], tmp_path / "logs", fail, module="ending_module"):
            await asyncio.wait_for(reported.wait(), 60)


async def test_processes_that_are_started_again_add_to_their_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_module.py").write_text(
        "import os, sys\n\ndef main():\n    sys.exit(os.environ['MESSAGE'] or 3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    reasons: asyncio.Queue[str] = asyncio.Queue()
    for message in ("no samples", ""):
        monkeypatch.setenv("MESSAGE", message)
        async with run_processes(
            [Named("a")],
            tmp_path / "logs",
            lambda _, reason: reasons.put_nowait(reason),
            module="failing_module",
        ):
            reason = await asyncio.wait_for(reasons.get(), 60)
        assert reason == f"a: {message or 'its process ended with exit code 3'}"
    assert (tmp_path / "logs" / "0.log").read_text() == "no samples\n"


def test_a_killed_orchestrator_leaves_a_trace_and_no_learner(work_folder: Path) -> None:
    code = (
        "from tests.live.short_run import build; from melisma import train; "
        "train(*build({'cycles': 1000}, {}), folder='run')"
    )
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=work_folder, env=os.environ | {"PYTHONPATH": path}
    )
    folder = work_folder / "run"
    while not any(isinstance(step.event, Evaluated) for step in read_steps(folder)):
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert len(children) == 3  # the launcher and two learners
    assert not alive
    report = Report.from_trace(read_steps(folder))
    assert report.outcome == "running"
    assert report.cycles[0].accuracy > 0.5


def test_a_run_does_not_wait_for_a_killed_learner(work_folder: Path) -> None:
    killed: list[int] = []

    def watch(step: Step) -> None:
        if not killed and any(isinstance(item, commands.Dispatch) for item in step.commands):
            victim = launched_processes()[0]
            killed.append(victim.pid)
            victim.kill()

    report = run_task(work_folder, watch=watch)
    assert report.outcome == "finished", report.reason
    (left,) = received(report, events.LearnersLeft)
    assert "its process was killed (signal 9)" in left.reason
    assert len(report.cycles) == 3


def test_a_run_without_its_launcher_has_no_learners_left(work_folder: Path) -> None:
    launchers: list[psutil.Process] = []

    def watch(step: Step) -> None:
        if not launchers and any(isinstance(item, commands.Dispatch) for item in step.commands):
            launchers.append(launched_processes()[0].parent() or psutil.Process())
            launchers[0].kill()

    report = run_task(work_folder, watch=watch)
    assert report.outcome == "failed"
    reasons = [left.reason for left in received(report, events.LearnersLeft)]
    assert sorted(reasons) == [
        "hare: its process was killed (signal 9)",
        "tortoise: its process was killed (signal 9)",
    ]


@pytest.mark.parametrize("scheme", ["dab", "equal"])
def test_a_learner_that_was_suspended_for_some_cycles_continues(
    work_folder: Path, scheme: str
) -> None:
    """Its assignment was withdrawn meanwhile; if it was silent with work, it came back."""
    stopped: list[psutil.Process] = []

    def watch(step: Step) -> None:
        if isinstance(step.event, events.Evaluated) and step.event.cycle == 1:
            child = launched_processes()[0]
            child.suspend()
            stopped.append(child)
        if isinstance(step.event, events.Evaluated) and step.event.cycle == 4:
            stopped[0].resume()

    report = run_task(work_folder, scheme=scheme, cycles=7, deadline_s=1.0, watch=watch)
    assert report.outcome == "finished", report.reason
    left = received(report, events.LearnersLeft)
    assert all("no sign of life" in event.reason for event in left)
    assert len(received(report, events.LearnersJoined)) == 2 + len(left)

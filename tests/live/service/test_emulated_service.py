"""Several tasks on emulated devices, with real processes."""

import os
from pathlib import Path

import pytest

import melisma
from melisma.cycle import events
from melisma.errors import RunFailedError, SettingError
from melisma.live.service.service_preparation import ServiceOptions, prepare_service
from melisma.runs.interruption import Cancellation
from melisma.runs.report import Report
from melisma.runs.trace import Step, read_trace
from tests.live.child_process import launched_processes
from tests.live.service.tasks import Observed, dispatched, prepare_tasks, submitted
from tests.live.short_run import build

SMALL = {"name": "small", "data_args": {"samples": 100}}


@pytest.fixture(scope="module")
def two_tasks(
    tmp_path_factory: pytest.TempPathFactory,
) -> "tuple[Observed, melisma.runs.ServiceReport]":
    """A run of two tasks on two devices."""
    observed, folder = Observed(), tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1]))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        report = observed.run(prepare_tasks(folder, {"name": "blobs"}, SMALL))
    return observed, report


def test_each_task_has_its_cycles_and_a_model_of_its_own(
    two_tasks: "tuple[Observed, melisma.runs.ServiceReport]",
) -> None:
    _, report = two_tasks
    assert report.outcome == "finished"
    assert [each.task.name for each in report.tasks] == ["blobs", "small"]
    for each in report.tasks:
        assert len(each.cycles) == 2
        assert each.accuracy > 0.9
        assert each.model is not None
        assert each.folder is not None
        assert (each.folder / "picture.svg").is_file()
        saved = Report.from_trace(read_trace(each.folder / "trace.jsonl"))
        assert saved.outcome == "finished"
        assert submitted(each).scheme == "med"


def test_no_learner_works_for_two_tasks_in_a_round(
    two_tasks: "tuple[Observed, melisma.runs.ServiceReport]",
) -> None:
    observed, report = two_tasks
    rounds = observed.rounds()
    assert sum(len(tasks) for tasks in rounds.values()) == 4
    for tasks in rounds.values():
        granted = [learner for learners in tasks.values() for learner in learners]
        assert len(granted) == len(set(granted))
    for number, each in enumerate(report.tasks):
        granted_to = [tasks[number] for tasks in rounds.values() if number in tasks]
        assert [sorted(item.learners.tolist()) for item in dispatched(each)] == granted_to


def test_the_folder_has_nothing_but_the_tasks_when_all_have_ended(
    two_tasks: "tuple[Observed, melisma.runs.ServiceReport]",
) -> None:
    _, report = two_tasks
    assert report.folder is not None
    assert sorted(path.name for path in report.folder.iterdir()) == [
        *("1-blobs", "2-small", "service.db", "service.db-synced")
    ]


def test_a_cancelled_service_keeps_what_each_task_has(work_folder: Path) -> None:
    observed = Observed(Cancellation())
    observed.cancel_after = "Evaluated"
    report = observed.run(prepare_tasks(work_folder, {"cycles": 50}, SMALL | {"cycles": 50}))
    assert report.outcome == "cancelled"
    assert {each.reason for each in report.tasks} == {"enough"}
    assert any(each.model for each in report.tasks)


def test_a_task_whose_model_fails_ends_alone(work_folder: Path) -> None:
    broken = {"name": "broken", "model_args": {"broken": "raises"}}
    report = Observed().run(prepare_tasks(work_folder, broken, SMALL))
    failed, finished = report.tasks
    assert (failed.outcome, finished.outcome) == ("failed", "finished")
    assert "this model cannot be trained" in failed.reason
    with pytest.raises(RunFailedError, match="this model cannot be trained"):
        report.require_success()


def test_other_learners_go_on_when_one_is_killed(work_folder: Path) -> None:
    class Killing(Observed):
        def watch_task(self, number: int, step: Step) -> None:
            super().watch_task(number, step)
            if isinstance(step.event, events.UpdatesReceived) and not self.killed:
                self.killed = True
                launched_processes()[0].kill()

        killed = False

    observed = Killing()
    report = observed.run(prepare_tasks(work_folder, {"cycles": 3}, SMALL | {"cycles": 3}))
    assert observed.killed
    (left,) = [
        step.event
        for steps in observed.tasks.values()
        for step in steps
        if isinstance(step.event, events.LearnersLeft)
    ]
    assert "signal 9" in left.reason
    # The process was that of one task, and its device goes on with the other one.
    assert report.tasks[1].outcome == "finished"


def test_a_task_that_never_fits_fails_and_the_other_one_finishes(work_folder: Path) -> None:
    hasty = SMALL | {"name": "hasty", "deadline_s": 1e-3}
    observed = Observed()
    report = observed.run(prepare_tasks(work_folder, {"name": "blobs"}, hasty))
    assert [each.outcome for each in report.tasks] == ["finished", "failed"]
    assert "use deadlines" in report.tasks[1].reason
    assert any("hasty" in reason for reason in observed.held())


def test_wrong_tasks_are_refused_before_anything_starts(work_folder: Path) -> None:
    task, fleet = build({"scheme": "med"}, {})
    federated, _ = build({"scheme": "med", "name": "own", "mode": "federated"}, {})
    cases = [
        ([task, task], "two tasks have the same name, blobs"),
        ([task, federated], "mode = federated, which tasks that share learners do not support"),
        ([], "tasks are"),
    ]
    for tasks, problem in cases:
        with pytest.raises(SettingError, match=problem):
            prepare_service(tasks, fleet, ServiceOptions(folder=work_folder / "out"))
        assert not (work_folder / "out").exists()


def test_settings_of_one_task_are_refused_in_python(work_folder: Path) -> None:
    task, fleet = build({"scheme": "med"}, {})
    with pytest.raises(SettingError, match="deadline_s = 3 is for one task"):
        melisma.train([task], fleet, deadline_s=3)  # type: ignore[call-overload]
    with pytest.raises(SettingError, match="model is for one task"):
        melisma.train([task], fleet, model=object())  # type: ignore[call-overload]
    with pytest.raises(SettingError, match="several tasks need a fleet"):
        melisma.train([task])  # type: ignore[call-overload]

"""Orchestrators that devices join over TLS, with real processes and sockets."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from melisma import axon, orchestrate
from melisma.cli.status import ask_status
from melisma.cycle import events
from melisma.errors import RefusedError, SettingError, SupersededError, UnauthorizedError
from melisma.fleet.task import Task
from melisma.live import orchestration, protocol
from melisma.live.invitation import Invitation, OrchestrationObserver
from melisma.live.orchestration import run_orchestrator
from melisma.live.orchestrator.lobby import StartCondition
from melisma.live.orchestrator.registry import Registry
from melisma.live.orchestrator.running_orchestrator import RunningOrchestrator, find_running
from melisma.live.orchestrator.status_service import OrchestratorStatus
from melisma.live.orchestrator_settings import OrchestratorSettings
from melisma.live.preparation import prepare_task
from melisma.runs.interruption import Cancellation
from melisma.runs.report import Report
from melisma.runs.trace import Step
from tests.live.enrolled_device import devices, join, start_learner
from tests.live.orchestrator.served_run import TASK

TASK_OF_RUN = msgspec.structs.replace(TASK, deadline_s=2.0, cycles=3)


class Owner(OrchestrationObserver):
    """Records what the owner of an orchestrator sees."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[Step] = []
        self.changed = threading.Condition()
        super().__init__(self._add_line, self._add_step)
        self.invitation: Invitation | None = None

    def _add_line(self, line: str) -> None:
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()

    def _add_step(self, step: Step) -> None:
        with self.changed:
            self.steps.append(step)
            self.changed.notify_all()

    def on_invitation(self, invitation: Invitation) -> None:
        self.invitation = invitation
        super().on_invitation(invitation)

    def wait_for(self, condition: Callable[[], Any], failed: "Future[Any]") -> None:
        with self.changed:
            while not condition():
                if failed.done() and not condition():
                    raise AssertionError(f"the run ended: {failed.exception()}, {self.lines}")
                self.changed.wait(0.1)

    def events_of(self, kind: type) -> list[Any]:
        return [step.event for step in self.steps if isinstance(step.event, kind)]


class RunningRun:
    """An orchestrator that runs in a thread of this process."""

    def __init__(self, folder: Path, task: Task, settings: OrchestratorSettings) -> None:
        self.owner, self.cancellation = Owner(), Cancellation()
        self.result: Future[Report] = Future()
        prepared = prepare_task(task, folder=folder)

        def work() -> None:
            try:
                self.result.set_result(
                    run_orchestrator(prepared, settings, self.owner, self.cancellation)
                )
            except BaseException as error:  # noqa: BLE001 - raised by result()
                self.result.set_exception(error)

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    @property
    def join_string(self) -> str:
        self.wait_for(lambda: self.owner.lines)
        assert self.owner.invitation is not None
        return str(self.owner.invitation.join_string)

    def wait_for(self, condition: Callable[[], Any]) -> None:
        self.owner.wait_for(condition, self.result)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MELISMA_HOME", str(tmp_path / "home"))
    # Elsewhere, so that the model's code is not collected from all tests for the devices.
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@contextmanager
def running(tmp_path: Path, task: Task = TASK_OF_RUN, **settings: Any) -> Iterator[RunningRun]:
    """Run an orchestrator on loopback inside a ``with``."""
    start = StartCondition(settings.pop("learners", None), settings.pop("until_ready", None))
    given = OrchestratorSettings(start=start, host="127.0.0.1", port=0, discovery=False, **settings)
    run = RunningRun(tmp_path / "run", task, given)
    try:
        yield run
    finally:
        run.cancellation.request()
        run.thread.join(20)


def ask_run(running: RunningOrchestrator) -> OrchestratorStatus:
    """Return the status of an orchestrator of one task."""
    status = ask_status(running)
    assert isinstance(status, OrchestratorStatus)
    return status


def test_devices_join_train_and_are_told_that_the_run_has_ended(tmp_path: Path) -> None:
    with (
        running(tmp_path, learners=2) as run,
        devices(tmp_path, run.join_string, "pi", "jetson") as processes,
    ):
        report = run.result.result(40)
        for process in processes:
            assert process.wait(10) == 0, process.communicate()
    assert report.outcome == "finished"
    assert sorted(report.names) == ["jetson", "pi"]
    assert report.model is not None
    assert (tmp_path / "run" / "trace.jsonl").is_file()
    assert run.owner.events_of(events.TaskSubmitted)[0].learner_count == 2
    assert any(line == "pi: registered from 127.0.0.1" for line in run.owner.lines)
    assert Registry().get("pi").host == "127.0.0.1"
    assert find_running() is None


def test_the_owner_sees_why_a_device_is_refused(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, scheme="staleness", passes=None)
    (tmp_path / "pi").mkdir()
    with running(tmp_path, task, learners=1) as run:
        settings = join(tmp_path / "pi", run.join_string)
        with start_learner(msgspec.structs.replace(settings, discloses="nothing")) as process:
            assert process.wait(30) == 1
            reason = "pi: scheme staleness needs from each learner: "
            run.wait_for(lambda: any(line.startswith(reason) for line in run.owner.lines))


def test_a_device_that_comes_later_joins_the_run(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, cycles=100)
    with (
        running(tmp_path, task, until_ready=0.0) as run,
        devices(tmp_path, run.join_string, "first"),
    ):
        run.wait_for(lambda: run.owner.events_of(events.UpdatesReceived))
        with devices(tmp_path, run.join_string, "second"):
            run.wait_for(
                lambda: (
                    {
                        learner
                        for event in run.owner.events_of(events.UpdatesReceived)
                        for learner in event.learners.tolist()
                    }
                    == {0, 1}
                )
            )
        run.cancellation.request()
        report = run.result.result(20)
    assert report.outcome == "cancelled"
    assert report.names == ("first", "second")
    assert report.model is not None


def test_a_killed_device_joins_again_under_its_name(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, cycles=100)
    with (
        running(tmp_path, task, learners=2) as run,
        devices(tmp_path, run.join_string, "pi", "jetson") as processes,
    ):
        run.wait_for(lambda: run.owner.events_of(events.UpdatesReceived))
        processes[0].kill()
        run.wait_for(lambda: run.owner.events_of(events.LearnersLeft))
        with devices(tmp_path, run.join_string, "pi"):
            run.wait_for(
                lambda: any(
                    event.names == ("pi",) for event in run.owner.events_of(events.LearnersJoined)
                )
            )
        assert [item.name for item in Registry().learners()] == ["jetson", "pi"]


def test_a_revoked_device_leaves_at_once_and_the_others_go_on(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, cycles=100)
    with (
        running(tmp_path, task, learners=2) as run,
        devices(tmp_path, run.join_string, "pi", "jetson") as processes,
    ):
        run.wait_for(lambda: run.owner.events_of(events.UpdatesReceived))
        Registry().revoke("pi")
        run.wait_for(lambda: run.owner.events_of(events.LearnersLeft))
        (left,) = run.owner.events_of(events.LearnersLeft)
        assert left.reason == "pi: revoked by the owner"
        processes[0].wait(10)
        with pytest.raises(RefusedError, match="revoked"):
            join(tmp_path / "pi", run.join_string)
        found = find_running()
        assert found is not None
        status = {item.name: item for item in ask_run(found).learners}
        assert status["pi"].note == "revoked by the owner"
        assert status["jetson"].state in ("training", "waiting")
        count = len(run.owner.events_of(events.UpdatesReceived))
        run.wait_for(lambda: len(run.owner.events_of(events.UpdatesReceived)) > count)


def test_a_revoked_device_at_work_ends_at_once_and_says_why(tmp_path: Path) -> None:
    # A learner that would train until the deadline, without a call but its polls.
    task = msgspec.structs.replace(
        TASK_OF_RUN, deadline_s=60.0, passes=100_000, extension=False, overlap=False
    )
    with (
        running(tmp_path, task, learners=1) as run,
        devices(tmp_path, run.join_string, "pi") as processes,
    ):
        progress = events.ProgressReported
        run.wait_for(lambda: any(each.visits[0] for each in run.owner.events_of(progress)))
        Registry().revoke("pi")
        assert processes[0].wait(20) == 1
        messages, _ = processes[0].communicate()
        assert b"the identity of pi was revoked" in messages


def test_a_run_whose_only_device_was_revoked_waits_for_another_one(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, cycles=100)
    with (
        running(tmp_path, task, learners=1) as run,
        devices(tmp_path, run.join_string, "pi"),
    ):
        run.wait_for(lambda: run.owner.events_of(events.UpdatesReceived))
        found = find_running()
        assert found is not None
        assert ask_run(found).waits_s is None
        Registry().revoke("pi")
        note = "note: no learner answers; the run waits for one until "
        run.wait_for(lambda: any(line.startswith(note) for line in run.owner.lines))
        waits_s = ask_run(found).waits_s
        assert waits_s is not None
        assert 500 < waits_s <= 600
        count = len(run.owner.events_of(events.UpdatesReceived))
        with devices(tmp_path, run.join_string, "jetson"):
            run.wait_for(lambda: len(run.owner.events_of(events.UpdatesReceived)) > count)
            run.wait_for(lambda: "note: a learner answers again" in run.owner.lines)
            assert ask_run(found).waits_s is None


def test_orchestrate_says_the_score_of_each_cycle_and_the_folder_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [(1, 0.3125, 0.912), (2, 0.25, None), (3, None, None)]

    def play(prepared: Any, _: Any, observer: OrchestrationObserver, on_cycle: Any) -> Any:
        for cycle, loss, accuracy in scores:
            event = events.Evaluated(
                at_s=1.0, cycle=cycle, loss=loss, accuracy=accuracy, seconds=0.1
            )
            observer.watch(Step(event, []))
        report = Report("run", TASK_OF_RUN, (), 0.0, 1.0, outcome="finished", reason="cycle 3")
        return replace(report, folder=prepared.folder)

    monkeypatch.setattr(orchestration, "run_orchestrator", play)
    lines = list[str]()
    orchestrate(TASK_OF_RUN, learners=1, folder=tmp_path / "run", say=lines.append)
    assert lines == [
        "cycle 1 of 3: accuracy 91.2%, loss 0.3125",
        "cycle 2 of 3: loss 0.25",
        "cycle 3 of 3: not evaluated",
        f"finished: cycle 3; the results are in {tmp_path / 'run'}",
    ]


def test_the_status_tells_the_lobby_from_the_run(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, cycles=100)
    with running(tmp_path, task, learners=2) as run, devices(tmp_path, run.join_string, "pi"):
        run.wait_for(lambda: any("pi: ready" in line for line in run.owner.lines))
        (ready,) = [line for line in run.owner.lines if "pi: ready" in line]
        assert re.fullmatch(r"pi: ready, [\d,]+ samples/s; 1 of 2", ready)
        found = find_running()
        assert found is not None
        status = ask_run(found)
        assert (status.learners[0].samples_per_s or 0.0) > 0
        assert (status.state, status.starts) == ("waiting", "when 2 learners are ready")
        (learner,) = status.learners
        assert (learner.name, learner.state, learner.host) == ("pi", "ready", "127.0.0.1")
        assert not run.owner.steps
        with devices(tmp_path, run.join_string, "jetson"):
            run.wait_for(lambda: run.owner.events_of(events.Evaluated))
            status = ask_run(found)
    assert status.state == "running"
    assert status.cycle >= 1
    assert status.accuracy is not None


def test_the_owner_decides_about_each_device(tmp_path: Path) -> None:
    asked = []

    def decide(name: str, fingerprint: str, host: str | None) -> bool:
        asked.append((name, fingerprint[:7], host))
        return name == "pi"

    (tmp_path / "stranger").mkdir()
    with running(tmp_path, learners=1, approve=decide) as run:
        with pytest.raises(RefusedError, match="did not accept stranger"):
            join(tmp_path / "stranger", run.join_string)
        with devices(tmp_path, run.join_string, "pi"):
            assert run.result.result(40).outcome == "finished"
    assert asked == [("stranger", "sha256:", "127.0.0.1"), ("pi", "sha256:", "127.0.0.1")]


def test_a_join_string_can_be_for_one_device(tmp_path: Path) -> None:
    for name in ("pi", "jetson"):
        (tmp_path / name).mkdir()
    with running(tmp_path, learners=1, once=True) as run:
        assert join(tmp_path / "pi", run.join_string).name == "pi"
        with pytest.raises(UnauthorizedError, match="no longer valid"):
            join(tmp_path / "jetson", run.join_string)


def test_the_status_notes_an_identity_that_is_used_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "pi").mkdir()
    with running(tmp_path, learners=2) as run:
        settings = join(tmp_path / "pi", run.join_string)
        (address,) = settings.orchestrator
        with axon.connect(address, certificate=settings.certificate) as device:
            for session in ("the-session-of-the-original", "the-session-of-a-copied-disk"):
                request = protocol.RegisterRequest(session)
                device.register(protocol.to_builtins(request))
            with pytest.raises(SupersededError):
                device.poll("the-session-of-the-original")
        run.wait_for(
            lambda: any(
                line.startswith("note: pi: its identity is in use twice, at 127.0.0.1")
                for line in run.owner.lines
            )
        )
        found = find_running()
        assert found is not None
        (learner,) = ask_run(found).learners
    assert learner.note == "its identity is in use elsewhere too (1 calls refused)"


def test_a_copy_of_a_device_is_named_in_the_report(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK_OF_RUN, cycles=100)
    with (
        running(tmp_path, task, learners=1) as run,
        devices(tmp_path, run.join_string, "pi") as (original,),
    ):
        run.wait_for(lambda: run.owner.events_of(events.LearnersJoined))
        with devices(tmp_path, run.join_string, "pi"):
            run.wait_for(lambda: run.owner.events_of(events.IdentitiesShared))
            assert original.wait(20) == 1
        run.cancellation.request()
        report = run.result.result(20)
    (note,) = report.shared_identities
    assert note.startswith("pi: its identity is in use twice, at 127.0.0.1")


def test_only_the_owner_may_ask_for_the_status(tmp_path: Path) -> None:
    (tmp_path / "pi").mkdir()
    with running(tmp_path, learners=2) as run:
        settings = join(tmp_path / "pi", run.join_string)
        (address,) = settings.orchestrator
        with (
            axon.connect(address, certificate=settings.certificate) as device,
            pytest.raises(RefusedError, match="only the owner"),
        ):
            device.status()


def test_an_interrupt_before_the_run_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, learners=1) as run:
        assert run.join_string
        run.cancellation.request()
        with pytest.raises(KeyboardInterrupt):
            run.result.result(20)
    assert not (tmp_path / "run").exists()
    assert find_running() is None


def test_a_device_whose_run_never_began_does_not_say_that_it_succeeded(tmp_path: Path) -> None:
    (tmp_path / "pi").mkdir()
    with running(tmp_path, learners=2) as run:
        settings = join(tmp_path / "pi", run.join_string)
        with start_learner(msgspec.structs.replace(settings, supervised=True)) as process:
            run.wait_for(lambda: any(line.startswith("pi: ready") for line in run.owner.lines))
            run.cancellation.request()
            assert process.stdout is not None
            output = process.stdout.read()
    assert b"the run has ended before this device was given work" in output


def test_two_orchestrators_of_one_user_exclude_each_other(tmp_path: Path) -> None:
    with running(tmp_path, learners=1) as run:
        assert run.join_string
        assert run.owner.invitation is not None
        for port in (0, run.owner.invitation.join_string.port):
            with pytest.raises(SettingError, match=r"another orchestrator .* use another --port"):
                orchestrate(
                    TASK, host="127.0.0.1", port=port, discovery=False, folder=tmp_path / "second"
                )
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "my-laptop"}, "host = 'my-laptop' is not an IP address: use one of this machine"),
        ({"learners": 3, "max_learners": 2}, "use max_learners >= 3"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        orchestrate(TASK, discovery=False, **settings)

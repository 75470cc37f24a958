"""Whole runs: an orchestrator and learners as processes of their own, over real sockets."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from melisma.cycle import commands, events
from melisma.errors import DataError, MelismaWarning, SettingError
from melisma.fleet.emulation import Pace
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_builder import muster
from melisma.fleet.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.learning.loaded_task import gathered
from melisma.live import preparation, processes, training
from melisma.live.learner.device import Device, EmulatedDevice
from melisma.live.training import train
from melisma.runs.interruption import Cancellation
from melisma.runs.report import Report
from melisma.runs.trace import Step, read_trace
from tests.live import tiny_task

FLEET: dict[str, Any] = {
    "learner": [
        {"name": "tortoise", "compute": 0.05, "bandwidth_bps": 20e6, "latency_s": 0.002},
        {"name": "hare", "compute": 0.4, "bandwidth_bps": 80e6, "latency_s": 0.001},
    ]
}
TASK = {
    "name": "blobs",
    "model": "tiny_task:Linear",
    "data": "tiny_task:blobs",
    "scheme": "dab",
    "passes": 2,
    "deadline_s": 6.0,
    "cycles": 3,
    "shard_samples": 50,
    "optimizer": {"name": "sgd", "lr": 0.3},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task and a model of one's own."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def written(said: dict[str, Any], fleet: dict[str, Any]) -> tuple[Task, Fleet]:
    task = msgspec.convert(TASK | said, Task)
    return task, muster(msgspec.convert(FLEET | fleet, FleetTable))


def run(place: Path, fleet: dict[str, Any] | None = None, **said: Any) -> Report:
    watch = said.pop("watch", lambda _: None)
    return train(*written(said, fleet or {}), folder=place / "run", watch=watch)


def received(report: Report, kind: type) -> list[Any]:
    return [step.event for step in report.trace if isinstance(step.event, kind)]


def emitted(report: Report, kind: type) -> list[Any]:
    return [said for step in report.trace for said in step.commands if isinstance(said, kind)]


@pytest.mark.parametrize("scheme", ["dab", "equal", "proportional", "synchronous", "staleness"])
@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_every_scheme_trains_a_good_model(place: Path, scheme: str, mode: str) -> None:
    chosen = scheme in ("synchronous", "staleness")
    # These fill the whole deadline with passes.
    less: dict[str, Any] = {"passes": None, "deadline_s": 2.0, "cycles": 2} if chosen else {}
    report = run(place, scheme=scheme, mode=mode, **less)
    assert report.outcome == "done", report.reason
    assert report.accuracy > 0.9
    assert len(report.cycles) == report.task.cycles
    assert report.model is not None
    assert set(load_file(report.model)) == {"weight", "bias"}


def test_what_is_left_is_the_model_the_picture_and_the_trace(place: Path) -> None:
    report = run(place)
    assert sorted(path.name for path in (place / "run").iterdir()) == [
        "model.safetensors",
        "picture.svg",
        "trace.jsonl",
    ]
    again = Report.of(read_trace(place / "run" / "trace.jsonl"))
    assert again.as_dict()["cycles"] == report.as_dict()["cycles"]
    assert again.plot().svg == report.plot().svg


@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_without_passes_each_learner_makes_those_that_fit(place: Path, scheme: str) -> None:
    report = run(place, scheme=scheme, passes=None, deadline_s=2.0, cycles=2)
    assert report.outcome == "done", report.reason
    assert report.accuracy > 0.9
    first, _ = emitted(report, commands.Dispatch)
    assert (first.learners.tolist(), first.passes.min() >= 1) == ([0, 1], True)
    if scheme == "equal":
        assert first.shards.counts.tolist() == [6, 6]
        assert first.passes[1] > first.passes[0]


def no_picture(*_: object) -> Any:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_costs_neither_model_nor_report(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "plot", no_picture)
    said = r"cannot draw .*picture\.svg: ZeroDivisionError: a scale without a span"
    with pytest.warns(MelismaWarning, match=said):
        report = run(place, cycles=1)
    assert report.outcome == "done"
    assert report.model is not None
    assert report.model.is_file()
    assert report.picture_path is None


def test_weights_follow_what_was_trained(place: Path) -> None:
    report = run(place, cycles=1)
    (aggregate,) = emitted(report, commands.Aggregate)
    assert aggregate.learners.tolist() == [0, 1]
    visits = {
        int(e.learners[0]): int(e.visits[0]) for e in received(report, events.UpdatesReceived)
    }
    (dispatch,) = emitted(report, commands.Dispatch)
    for place_, learner in enumerate(dispatch.learners.tolist()):
        samples = 50 * dispatch.shards[place_].size
        expected = samples * visits[learner] / (samples * dispatch.passes[place_])
        assert aggregate.weights[place_] == pytest.approx(expected)


def test_the_same_seed_gives_the_same_shards(place: Path) -> None:
    first = run(place, scheme="equal", passes=1)
    shutil.rmtree(place / "run")
    second = run(place, scheme="equal", passes=1)
    for one, other in zip(
        emitted(first, commands.Dispatch), emitted(second, commands.Dispatch), strict=True
    ):
        assert [s.tolist() for s in one.shards] == [s.tolist() for s in other.shards]
    assert first.model is not None
    assert second.model is not None
    assert first.accuracy == second.accuracy


def test_there_may_be_more_learners_than_threads_to_spare(place: Path) -> None:
    many = [FLEET["learner"][1] | {"name": f"hare-{number}"} for number in range(12)]
    report = run(place, fleet={"learner": many}, cycles=2)
    assert report.outcome == "done", report.reason
    assert len(report.names) == 12


def test_what_lies_in_a_folder_is_never_touched(place: Path) -> None:
    (place / "run" / "shards").mkdir(parents=True)
    mine = place / "run" / "shards" / "mine"
    mine.write_text("precious")
    with pytest.raises(SettingError, match="is not empty"):
        run(place)
    assert mine.read_text() == "precious"


def test_modules_that_lie_about_are_not_imported(place: Path) -> None:
    """What is installed comes before what lies in the folder of a task."""
    (place / "safetensors.py").write_text("raise SystemExit('imported')")
    report = run(place, cycles=1)
    assert report.outcome == "done", report.reason


@pytest.mark.parametrize("scheme", ["dab", "equal"])
def test_a_learner_that_falls_far_behind_comes_back(place: Path, scheme: str) -> None:
    """Stopped for some cycles and continued, it finds its work withdrawn, and goes on."""
    stopped: list[psutil.Process] = []

    def watch(step: Step) -> None:
        if isinstance(step.event, events.Evaluated) and step.event.cycle == 1:
            child = agents()[0]
            child.suspend()
            stopped.append(child)
        if isinstance(step.event, events.Evaluated) and step.event.cycle == 4:
            stopped[0].resume()

    report = run(place, scheme=scheme, cycles=7, deadline_s=1.0, watch=watch)
    assert report.outcome == "done", report.reason
    assert not received(report, events.LearnersLeft)


def agents() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [
        child
        for child in children
        if "melisma.live.learner.learner_process" in " ".join(child.cmdline())
    ]


def test_an_orchestrator_that_is_killed_leaves_no_learner_and_a_trace(place: Path) -> None:
    code = (
        "from tests.live.test_training import TASK, written; from melisma import train; "
        "train(*written({'cycles': 1000}, {}), folder='run')"
    )
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=place, env=os.environ | {"PYTHONPATH": path}
    )
    trace = place / "run" / "trace.jsonl"
    while not trace.exists() or b"Evaluated" not in trace.read_bytes():
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert len(children) == 2
    assert not alive
    report = Report.of(read_trace(trace))
    assert report.outcome == "running"
    assert report.cycles[0].accuracy > 0.5


def test_processes_end_with_the_run(place: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    run(place)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


def test_a_learner_that_dies_is_not_waited_for(place: Path) -> None:
    killed: list[int] = []

    def watch(step: Step) -> None:
        if not killed and any(isinstance(each, commands.Dispatch) for each in step.commands):
            victim = agents()[0]
            killed.append(victim.pid)
            victim.kill()

    report = run(place, watch=watch)
    assert report.outcome == "done", report.reason
    (left,) = received(report, events.LearnersLeft)
    assert "its process ended with -9" in left.reason
    assert len(report.cycles) == 3


@pytest.mark.parametrize(
    ("broken", "said"), [("nan", "not finite"), ("shape", r"weight is float32\[2\]")]
)
def test_updates_that_are_none_are_refused_by_name(place: Path, broken: str, said: str) -> None:
    report = run(place, model_args={"broken": broken})
    assert report.outcome == "failed"
    assert "3 cycles in a row were empty" in report.reason
    refusals = [each.refused for each in received(report, events.UpdatesReceived)]
    assert all(np.char.find(refusals, "update of") >= 0)
    assert any(said.replace("\\", "") in each for each in refusals)


def test_a_model_that_raises_ends_the_run_with_what_it_said(place: Path) -> None:
    report = run(place, model_args={"broken": "raises"})
    assert report.outcome == "failed"
    assert "this model cannot be trained" in report.reason


def test_a_deadline_that_nobody_can_meet_is_said_before_training(place: Path) -> None:
    report = run(place, deadline_s=0.001)
    assert report.outcome == "failed"
    assert not emitted(report, commands.Dispatch)
    assert "no learner can train one shard 2 times in time; use deadline_s >= " in report.reason
    assert report.model is None


def test_a_port_that_is_taken_is_named(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{port}"):
            train(*written({}, {}), folder=place / "run", port=port)
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"model": "twonn"}, SettingError, "does not fit the data"),
        ({"model": "nowhere:Model"}, SettingError, "nowhere"),
        ({"data": "tiny_task:nothing"}, SettingError, "nothing"),
        ({"scheme": "fastest"}, SettingError, "no scheme is called"),
        # Refused before the data is loaded.
        ({"scheme": "med", "data": "nowhere:load"}, SettingError, "cannot run a cycle of one task"),
        ({"model_args": {"numbers": 2}}, (SettingError, DataError), "fit"),
    ],
)
def test_what_cannot_work_is_said_before_a_learner_starts(
    place: Path, said: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(place, **said)
    assert not (place / "run").exists()


def test_a_run_can_be_cancelled_and_keeps_its_model(place: Path) -> None:
    """As Ctrl-C does it, from the thread that waits."""
    prepared = preparation.prepare(*written({"cycles": 1000}, {}), None, place / "run")
    reached = threading.Event()
    cancellation = Cancellation()
    reports: list[Report] = []

    def watch(step: Step) -> None:
        if isinstance(step.event, events.Evaluated):
            reached.set()

    def work() -> None:
        reports.append(training.run(prepared, watch=watch, cancellation=cancellation))

    thread = threading.Thread(target=work)
    thread.start()
    assert reached.wait(30)
    cancellation.request()
    thread.join(20)
    (report,) = reports
    assert report.outcome == "cancelled"
    assert report.model is not None


def test_with_dab_only_a_number_of_shards_leaves_a_learner_before_its_update(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that learners send is listened to, on the wire's own terms."""
    from melisma.live.orchestrator.learner_service import METHODS, LearnerService

    calls: list[tuple[str, tuple[Any, ...]]] = []
    for name in METHODS:
        told = getattr(LearnerService, name)

        async def listening(
            self: LearnerService, *args: Any, name: str = name, told: Any = told
        ) -> Any:
            calls.append((name, args))
            return await told(self, *args)

        monkeypatch.setattr(LearnerService, name, listening)
    report = run(place, scheme="dab")
    assert report.outcome == "done"
    said = {name for name, _ in calls}
    assert said == {"register", "join", "poll", "report_bound", "upload_update"}
    for name, args in calls:
        if name == "report_bound":
            number, cycle, deadline_s, shards = args
            assert deadline_s == 6.0
            assert {type(number), type(cycle), type(shards)} == {int}
        elif name == "poll":
            assert args[1:] in ((), (None,))
        elif name == "join":
            assert args[0] == {
                "learner": args[0]["learner"],
                "discloses": "costs",
                "local_samples": (),
            }
        elif name == "upload_update":
            assert args[0]["costs"] is None


def test_what_learners_tell_follows_the_scheme(place: Path) -> None:
    report = run(place, scheme="proportional")
    assert len(received(report, events.EstimatesReported)) >= 2 + 2 * 3
    assert received(report, events.ProgressReported)
    shutil.rmtree(place / "run")
    assert not received(run(place, scheme="equal"), events.EstimatesReported)


def test_a_folder_with_a_run_in_it_is_left_alone(place: Path) -> None:
    run(place, cycles=1)
    before = (place / "run" / "trace.jsonl").read_bytes()
    with pytest.raises(SettingError, match="is not empty"):
        run(place, cycles=1)
    assert (place / "run" / "trace.jsonl").read_bytes() == before


def test_without_data_of_its_own_the_orchestrator_asks_learners_how_good_the_model_is(
    place: Path,
) -> None:
    report = run(place, mode="federated", data_args={"test": 0})
    assert report.outcome == "done", report.reason
    assert report.accuracy > 0.9
    # One sample in ten is held back, and not trained on.
    joined = [sum(each.local_data[0].tolist()) for each in received(report, events.LearnersJoined)]
    assert joined == [270, 270]


def test_data_without_a_test_part_is_for_federated_learning_only(place: Path) -> None:
    with pytest.raises(SettingError, match="no test samples"):
        run(place, data_args={"test": 0})


def test_a_scheme_that_needs_what_a_learner_does_not_tell_is_refused(place: Path) -> None:
    private = FLEET["learner"][0] | {"discloses": "bounds"}
    report = run(place, fleet={"learner": [private, FLEET["learner"][1]]}, scheme="proportional")
    assert report.outcome == "failed"
    assert 'tortoise has discloses = "bounds"' in report.reason


def device_of(said: dict[str, Any], states: Any, seed: int) -> EmulatedDevice:
    return EmulatedDevice(**said | {"states": states, "seed": seed})


def slower_from_the_first_cycle_on(**said: Any) -> Any:
    """By the seed that draws the quick state for cycle 0, and the slow one after it."""
    states = ((0.5, 1.0, 1.0), (0.5, 0.1, 1.0))
    for seed in range(1000):
        rates = []
        for cycle in range(4):
            device = Device(device_of(said, states, seed), 0)
            device.start_cycle(cycle)
            assert isinstance(device._pace, Pace)
            rates.append(device._pace.share)
        if rates[0] > rates[1] == rates[2] == rates[3]:
            return device_of(said, states, seed)
    raise AssertionError("no seed does it")


def test_estimates_follow_a_device_that_slows_down(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one state for the benchmark, at a tenth of its speed in every cycle."""
    monkeypatch.setattr(training, "EmulatedDevice", slower_from_the_first_cycle_on)
    report = run(place, scheme="proportional", cycles=3)
    reported = [e for e in received(report, events.EstimatesReported) if e.learners[0] == 0]
    train_s = [float(each.costs[0, 0, 0]) for each in reported]
    assert train_s[-1] > 1.5 * train_s[0]


def test_no_process_outlives_its_parent(place: Path) -> None:
    from melisma.live.learner.agent import LearnerSettings

    setting = LearnerSettings(name="x", orchestrator="http://127.0.0.1:9", cache=str(place / "c"))
    process = processes._start("melisma.live.learner.learner_process", setting, place / "x.log")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 1


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_samples_limits_a_run_to_the_same_data_live_and_simulated(place: Path, mode: str) -> None:
    task, fleet = written({"sizes": {"samples": 240}, "mode": mode}, {})
    live = preparation.prepare(task, fleet, None, place / "run")
    simulated = gathered(task)
    assert live.task.samples == len(live.train) == 240
    assert live.task == simulated.task
    assert live.train.samples.tolist() == simulated.data.train.samples.tolist()


def test_more_samples_than_the_data_has_are_refused(place: Path) -> None:
    with pytest.raises(
        SettingError, match=r"sizes.samples is 601, but data tiny_task:blobs has 600"
    ):
        run(place, sizes={"samples": 601})

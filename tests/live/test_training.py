"""Whole runs: orchestrator and learners as processes, over real sockets."""

import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from melisma.cycle import commands, events
from melisma.errors import MelismaWarning, SettingError
from melisma.live import preparation, training
from melisma.live.orchestrator.orchestrator import ENDING_S
from melisma.live.training import train
from melisma.runs.interruption import Cancellation
from melisma.runs.report import Report
from melisma.runs.trace import Step, read_trace
from tests.live.short_run import DEFAULT_RULES, FLEET, build, issued, received, run_task


@pytest.mark.parametrize("scheme", ["dab", "equal", "proportional", "synchronous", "staleness"])
@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_every_scheme_trains_a_good_model(work_folder: Path, scheme: str, mode: str) -> None:
    settings: dict[str, Any] = DEFAULT_RULES | {"deadline_s": 2.0, "cycles": 2}
    if scheme in ("synchronous", "staleness"):
        settings["passes"] = None
    report = run_task(work_folder, scheme=scheme, mode=mode, **settings)
    assert report.outcome == "finished", report.reason
    assert report.accuracy > 0.9
    assert len(report.cycles) == report.task.cycles
    assert report.model is not None
    assert set(load_file(report.model)) == {"weight", "bias"}


def test_a_run_follows_noise_and_a_bandwidth_trace(work_folder: Path) -> None:
    (work_folder / "walk.txt").write_text("0 20 5\n1 4 1\n2 20 5\n")
    noise = {"compute": 0.3, "bandwidth": 0.3, "correlation_s": 0.5}
    learners = [
        {"name": "pi", "compute": 0.2, "bandwidth_trace": str(work_folder / "walk.txt")},
        {"name": "phone", "samples_per_s": 2000, "downlink_bps": 30e6, "uplink_bps": 5e6},
    ]
    report = run_task(work_folder, {"learner": learners, "noise": noise}, scheme="equal", cycles=2)
    assert report.outcome == "finished", report.reason
    assert [len(cycle.assignments) for cycle in report.cycles] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "neither a fleet nor devices: pass fleet=FILE .* or devices=N"),
        ({"fleet": "fleet.toml", "devices": 2}, "a fleet and devices = 2: leave out the fleet"),
        ({"fleet": "fleet.toml", "until_ready": 9}, "a fleet and until_ready = 9: leave out"),
        ({"devices": 0}, "devices = 0 is too small: use devices >= 1"),
    ],
)
def test_a_fleet_is_emulated_or_devices_join(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        train("task.toml", **settings)


@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_without_passes_each_learner_makes_those_that_fit(work_folder: Path, scheme: str) -> None:
    # Fixed speeds: the first makes at most 3 passes over 6 shards of 50 samples, on any machine.
    learners = [
        {"name": "tortoise", "samples_per_s": 500, "bandwidth_bps": 20e6, "latency_s": 0.002},
        {"name": "hare", "samples_per_s": 20_000, "bandwidth_bps": 80e6, "latency_s": 0.001},
    ]
    settings: dict[str, Any] = {"passes": None, "deadline_s": 2.0, "cycles": 2}
    report = run_task(work_folder, {"learner": learners}, scheme=scheme, **settings)
    assert report.outcome == "finished", report.reason
    assert report.accuracy > 0.9
    first, _ = issued(report, commands.Dispatch)
    assert (first.learners.tolist(), first.passes.min() >= 1) == ([0, 1], True)
    if scheme == "equal":
        assert first.shards.counts.tolist() == [6, 6]
        assert first.passes[1] > 3 >= first.passes[0]


def test_a_run_leaves_its_model_picture_and_trace(work_folder: Path) -> None:
    report = run_task(work_folder)
    assert sorted(path.name for path in (work_folder / "run").iterdir()) == [
        "journal.db",
        "journal.db-synced",
        "model.safetensors",
        "parameters",
        "picture.svg",
        "trace.jsonl",
    ]
    again = Report.from_trace(read_trace(work_folder / "run" / "trace.jsonl"))
    assert again.as_dict()["cycles"] == report.as_dict()["cycles"]
    assert again.plot().svg == report.plot().svg


def fail_to_plot(*_: object) -> Any:
    raise ZeroDivisionError("a scale without a span")


def test_a_picture_that_cannot_be_drawn_costs_neither_model_nor_report(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "plot", fail_to_plot)
    message = r"cannot draw .*picture\.svg: ZeroDivisionError: a scale without a span"
    with pytest.warns(MelismaWarning, match=message):
        report = run_task(work_folder, cycles=1)
    assert report.outcome == "finished"
    assert report.model is not None
    assert report.model.is_file()
    assert report.picture_path is None


def test_weights_follow_the_visits(work_folder: Path) -> None:
    report = run_task(work_folder, cycles=1)
    (aggregate,) = issued(report, commands.Aggregate)
    assert aggregate.learners.tolist() == [0, 1]
    visits = {
        int(e.learners[0]): int(e.visits[0]) for e in received(report, events.UpdatesReceived)
    }
    (dispatch,) = issued(report, commands.Dispatch)
    for row, learner in enumerate(dispatch.learners.tolist()):
        samples = 50 * dispatch.shards[row].size
        expected = samples * visits[learner] / (samples * dispatch.passes[row])
        assert aggregate.weights[row] == pytest.approx(expected)


def test_the_same_seed_gives_the_same_shards(work_folder: Path) -> None:
    first = run_task(work_folder, scheme="equal", passes=1)
    shutil.rmtree(work_folder / "run")
    second = run_task(work_folder, scheme="equal", passes=1)
    for one, other in zip(
        issued(first, commands.Dispatch), issued(second, commands.Dispatch), strict=True
    ):
        assert [s.tolist() for s in one.shards] == [s.tolist() for s in other.shards]
    assert first.model is not None
    assert second.model is not None
    assert first.accuracy == second.accuracy


def test_a_run_may_have_more_learners_than_pool_threads(work_folder: Path) -> None:
    many = [FLEET["learner"][1] | {"name": f"hare-{number}"} for number in range(12)]
    report = run_task(work_folder, fleet={"learner": many}, cycles=2)
    assert report.outcome == "finished", report.reason
    assert len(report.names) == 12


def test_installed_modules_come_before_those_in_the_task_folder(work_folder: Path) -> None:
    """The folder of a task has a module with the name of an installed one."""
    (work_folder / "safetensors.py").write_text("raise SystemExit('imported')")
    report = run_task(work_folder, cycles=1)
    assert report.outcome == "finished", report.reason


@pytest.mark.parametrize(
    ("broken", "expected"), [("nan", "not finite"), ("shape", r"weight is float32\[2\]")]
)
def test_invalid_updates_are_refused_with_the_reason(
    work_folder: Path, broken: str, expected: str
) -> None:
    report = run_task(work_folder, model_args={"broken": broken})
    assert report.outcome == "failed"
    assert "3 cycles in a row were empty" in report.reason
    refusals = [item.refused for item in received(report, events.UpdatesReceived)]
    assert all(np.char.find(refusals, "update of") >= 0)
    assert any(expected.replace("\\", "") in item for item in refusals)


def test_a_model_that_raises_ends_the_run_with_its_message(work_folder: Path) -> None:
    report = run_task(work_folder, model_args={"broken": "raises"})
    assert report.outcome == "failed"
    assert "this model cannot be trained" in report.reason


def test_a_deadline_that_no_learner_can_meet_ends_the_run_before_training(
    work_folder: Path,
) -> None:
    report = run_task(work_folder, deadline_s=0.001)
    assert report.outcome == "failed"
    assert not issued(report, commands.Dispatch)
    assert "no learner can train one shard 2 times in time; use deadline_s >= " in report.reason
    assert report.model is None


def test_a_port_in_use_is_named(work_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{port}"):
            train(*build({}, {}), folder=work_folder / "run", port=port)
    assert not (work_folder / "run").exists()


def test_a_run_can_be_cancelled_and_keeps_its_model(work_folder: Path) -> None:
    """Cancel from another thread, as Ctrl-C does."""
    prepared = preparation.prepare(*build({"cycles": 1000}, {}), None, work_folder / "run")
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


def test_without_test_data_learners_evaluate_the_model(work_folder: Path) -> None:
    report = run_task(work_folder, mode="federated", data_args={"test": 0})
    assert report.outcome == "finished", report.reason
    assert report.accuracy > 0.9
    # One sample in ten is held back from training.
    joined = [
        sum(item.local_shard_samples[0].tolist())
        for item in received(report, events.LearnersJoined)
    ]
    assert joined == [270, 270]


def test_a_run_with_a_total_time_chooses_its_cycles_and_ends_in_time(work_folder: Path) -> None:
    task, fleet = build({**DEFAULT_RULES, "passes": 1}, {})
    report = train(task, fleet, folder=work_folder / "run", total_s=20)
    assert report.reason == "no time is left for another cycle"
    assert report.due_s is not None
    assert report.ended_s <= report.due_s + ENDING_S
    assert len(report.cycles) >= 3
    assert len({cycle.deadline_s for cycle in report.cycles}) > 1
    assert report.model is not None


def test_all_ways_to_aggregate_work_together_from_a_start(work_folder: Path) -> None:
    """One learner a cycle, normalised, by an own function and a server optimiser, with checkpoints.

    The second run starts where the first one ended.
    """
    (work_folder / "first_of_all.py").write_text(
        "def choose(updates, weights):\n"
        "    assert len(weights) == 1\n"
        "    return {name: array[0] for name, array in updates.items()}\n"
    )
    settings: dict[str, Any] = {
        "scheme": "equal",
        "sample": 1,
        "normalize": True,
        "aggregation": "first_of_all:choose",
        "server": {"name": "momentum", "momentum": 0.5},
        "checkpoints": "all",
        "cycles": 2,
    }
    report = run_task(work_folder, **settings)
    assert report.outcome == "finished", report.reason
    assert [len(cycle.assignments) for cycle in report.cycles] == [1, 1]
    assert report.model is not None
    assert report.best_model is not None
    checkpoints = sorted((work_folder / "run" / "checkpoints").iterdir())
    first, second = (load_file(path)["weight"] for path in checkpoints)
    np.testing.assert_array_equal(second, load_file(report.model)["weight"])
    (dispatch, *_) = issued(report, commands.Dispatch)
    assert dispatch.drawn.tolist() == dispatch.learners.tolist()
    (aggregate, _) = issued(report, commands.Aggregate)
    assert aggregate.steps.tolist() == [-(-600 // 32) * 2]
    started = train(
        *build(settings | {"cycles": 1}, {}), folder=work_folder / "b", start=report.model
    )
    assert started.model is not None
    assert load_file(started.model).keys() == {"weight", "bias"}
    assert started.cycles[0].loss < report.cycles[0].loss
    assert not np.array_equal(first, second)

"""Agents in whole runs: what they report, and what they disclose."""

import shutil
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from melisma.cycle import events
from melisma.errors import SettingError, SupersededError
from melisma.fleet.emulation import ComputePacer
from melisma.live import emulated_learners, protocol
from melisma.live.learner.active_assignment import ActiveAssignment
from melisma.live.learner.agent import Agent
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device
from melisma.live.learner.learner_settings import (
    DEFAULT_CACHE_BYTES,
    EmulatedDevice,
    LearnerSettings,
)
from melisma.live.orchestrator.learner_service import METHODS, LearnerService
from tests.live.orchestrator.served_run import TASK
from tests.live.short_run import DEFAULT_RULES, FLEET, received, run_task

TINY = "tests.live.tiny_task"


def test_with_dab_only_a_number_of_shards_leaves_a_learner_before_its_update(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record all calls of the learners at the service."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for name in METHODS:
        method = getattr(LearnerService, name)

        async def record(
            self: LearnerService, *args: Any, name: str = name, method: Any = method
        ) -> Any:
            calls.append((name, args))
            return await method(self, *args)

        monkeypatch.setattr(LearnerService, name, record)
    report = run_task(work_folder, **DEFAULT_RULES, scheme="dab", deadline_s=2.0)
    assert report.outcome == "finished"
    assert {name for name, _ in calls} - {"release_shards"} == {
        "register",
        "join",
        "poll",
        "probe_uplink",
        "report_bound",
        "request_shards",
        "upload_update",
    }
    for name, args in calls:
        if name == "report_bound":
            _, cycle, deadline_s, shards = args
            assert deadline_s == 2.0
            assert {type(cycle), type(shards)} == {int}
        elif name == "request_shards":
            assert list(map(type, args[1:])) == [int, int]
        elif name == "poll":
            assert args[1:] in ((), (None, ""))
        elif name == "probe_uplink":
            assert not args[1]["bytes"].any()
        elif name == "join":
            request = {"discloses": "costs", "local_shard_samples": (), "samples_per_s": None}
            assert args[1] == request
        elif name == "upload_update":
            assert args[1]["costs"] is None


def test_reports_of_learners_follow_the_scheme(work_folder: Path) -> None:
    seen: list[type] = []
    report = run_task(
        work_folder, scheme="proportional", watch=lambda step: seen.append(type(step.event))
    )
    assert len(received(report, events.CostsReported)) >= 2 + 2 * 3
    # Progress is shown and not recorded.
    assert events.ProgressReported in seen
    shutil.rmtree(work_folder / "run")
    assert not received(run_task(work_folder, scheme="equal"), events.CostsReported)


def test_a_scheme_that_needs_more_than_a_learner_discloses_is_refused(work_folder: Path) -> None:
    private = FLEET["learner"][0] | {"discloses": "bounds"}
    report = run_task(
        work_folder, fleet={"learner": [private, FLEET["learner"][1]]}, scheme="proportional"
    )
    assert report.outcome == "failed"
    assert 'tortoise has discloses = "bounds"' in report.reason


def emulate(settings: dict[str, Any], states: Any, seed: int) -> EmulatedDevice:
    return EmulatedDevice(**settings | {"states": states, "seed": seed})


def slow_down_after_the_benchmark(**settings: Any) -> EmulatedDevice:
    """Return a device with a seed that draws the fast state for cycle 0 and the slow one then."""
    states = ((0.5, 1.0, 1.0), (0.5, 0.1, 1.0))
    for seed in range(1000):
        rates = []
        for cycle in range(4):
            device = Device(emulate(settings, states, seed), 0)
            device.start_cycle(cycle)
            assert isinstance(device._pace, ComputePacer)
            rates.append(device._pace.share)
        if rates[0] > rates[1] == rates[2] == rates[3]:
            return emulate(settings, states, seed)
    raise AssertionError("no seed draws these states")


def test_reported_costs_follow_a_device_that_slows_down(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device runs at a tenth of its benchmarked speed in every cycle."""
    monkeypatch.setattr(emulated_learners, "EmulatedDevice", slow_down_after_the_benchmark)
    report = run_task(work_folder, scheme="proportional", cycles=3)
    reported = [e for e in received(report, events.CostsReported) if e.learners[0] == 0]
    train_s = [float(item.costs[0, 0, 0]) for item in reported]
    assert train_s[-1] > 1.5 * train_s[0]


class BrokenOrchestrator:
    """Lets a learner join, and answers its polls with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def call(self, method: str, *_: Any) -> Any:
        if method == "poll":
            raise self.error


def make_agent(folder: Path, orchestrator: Any = None) -> Agent:
    settings = LearnerSettings(
        name="a", orchestrator=(), cache=str(folder), allowed_modules=(TINY,)
    )
    registered = protocol.RegisterResponse(0, "r", TASK, ())
    return Agent(settings, cast(Connection, orchestrator), registered, "session")


def test_an_agent_whose_identity_is_in_use_elsewhere_ends_with_the_reason(tmp_path: Path) -> None:
    agent = make_agent(tmp_path, BrokenOrchestrator(SupersededError("in use elsewhere")))
    with pytest.raises(SupersededError, match="in use elsewhere"):
        agent.run()


@pytest.mark.parametrize("failing", ["poll", "fetch"])
def test_an_unexpected_error_in_another_thread_ends_the_agent(tmp_path: Path, failing: str) -> None:
    error = OSError("No space left on device")
    agent = make_agent(tmp_path, BrokenOrchestrator(error))
    if failing == "fetch":
        agent._poll = lambda: agent._fetcher._on_error(error)  # type: ignore[method-assign]
    raised: SimpleQueue[BaseException] = SimpleQueue()

    def run() -> None:
        try:
            agent.run()
        except OSError as caught:
            raised.put(caught)

    threading.Thread(target=run, daemon=True).start()
    assert raised.get(timeout=20.0) is error


def test_an_assignment_larger_than_the_cache_is_refused_and_an_extension_left(
    tmp_path: Path,
) -> None:
    agent = make_agent(tmp_path)
    half, whole = (
        protocol.ShardRef(0, "0" * 64, size_bytes, 1)
        for size_bytes in (DEFAULT_CACHE_BYTES // 2 + 1, DEFAULT_CACHE_BYTES + 1)
    )
    refused = ActiveAssignment(protocol.Train(1, 1, "model", 1, 10.0, (whole,)), 0.0)
    with pytest.raises(SettingError, match="--cache-bytes"):
        agent._train(refused)
    assignment = ActiveAssignment(protocol.Train(1, 1, "model", 1, 10.0, (half,)), 0.0)
    agent._assignments = {(1, 1): assignment}
    agent._start_feed(assignment)
    agent._receive(protocol.ExtendTraining(1, 2, 1, (half,)), 0.0)
    assert assignment.attempts == [1]
    agent._receive(protocol.ExtendTraining(1, 3, 1), 0.0)
    assert assignment.attempts == [1, 3]


def test_work_may_end_while_it_is_withdrawn(tmp_path: Path) -> None:
    class EndingAssignments(dict[tuple[int, int], ActiveAssignment]):
        """Assignments that the main thread deletes as soon as their keys are listed."""

        def __iter__(self) -> Any:
            keys = list(super().__iter__())
            self.clear()
            return iter(keys)

    agent = make_agent(tmp_path)
    assignment = ActiveAssignment(protocol.Train(1, 1, "model", 1, 10.0), 0.0)
    agent._assignments = EndingAssignments({(1, 1): assignment})
    agent._receive(protocol.StopTraining(1, 1), 0.0)

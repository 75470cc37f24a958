"""Learners that register before the run begins, and those that come later."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma.cycle import events
from melisma.errors import (
    MalformedError,
    RefusedError,
    SettingError,
    SupersededError,
    TooLargeError,
)
from melisma.live import protocol
from melisma.live.orchestrator import learner_service
from melisma.live.orchestrator.lobby import StartCondition
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.runs.report import Report
from tests.live.orchestrator.served_run import ServedRun, join, poll_until

COSTS = ((0.5, 0.1, 3.0), (0.1, 0.0, 1.0), (0.1, 0.0, 1.0))


@pytest.fixture
async def open_run(tmp_path: Path) -> AsyncIterator[tuple[ServedRun, Any]]:
    """Return a run that has not begun and has room for two learners."""
    run = ServedRun(tmp_path, mailboxes=Mailboxes(max_learners=2))
    async with run.serving() as learners:
        yield run, learners
    run.close()


async def test_learners_are_numbered_as_they_register_and_measure_before_the_run(
    open_run: Any,
) -> None:
    run, remote = open_run
    assert (await remote.register(1)).learner == 0
    registered = await remote.register(0)
    assert registered.learner == 1
    assert registered.benchmark_shards
    assert run.store.path(protocol.INITIAL_MODEL).is_file()
    await remote.report_costs(1, COSTS)
    assert run.mailboxes[0].samples_per_s == 100.0
    assert not run.steps


async def test_a_learner_may_tell_its_speed_before_the_run_begins(open_run: Any) -> None:
    run, remote = open_run
    assert not (await remote.register(0)).begun
    request = protocol.to_builtins(protocol.JoinRequest("costs", (), 5120.0))
    for invalid in (0.0, float("inf"), float("nan")):
        with pytest.raises(MalformedError):
            await remote.join(0, request | {"samples_per_s": invalid})
    await remote.join(0, request)
    assert run.mailboxes[0].samples_per_s == 5120.0
    run.service.begin_run()
    assert (await remote.register(1)).begun


async def test_a_run_begins_with_the_learners_that_are_ready(open_run: Any) -> None:
    run, remote = open_run
    await remote.register(1)
    begin = asyncio.ensure_future(StartCondition(learners=1).wait(run.mailboxes))
    await join_as(remote, 0)
    await begin
    run.service.begin_run()
    (submitted,) = run.of(events.TaskSubmitted)
    (joined,) = run.of(events.LearnersJoined)
    assert submitted.learner_count == 1
    assert submitted.names == ("b", "a")
    assert joined.learners.tolist() == [1]
    train = await poll_until(remote, 0, protocol.Train)
    assert train.cycle == 1
    await remote.join(1, protocol.to_builtins(protocol.JoinRequest("costs")))
    assert [item.names for item in run.of(events.LearnersJoined)] == [("a",), ("b",)]


async def test_a_learner_that_never_joins_has_its_name_in_the_report(open_run: Any) -> None:
    run, remote = open_run
    await join_as(remote, 0)
    run.service.begin_run()
    await remote.register(1)
    assert Report.from_trace(run.steps).names == ("a", "b")
    await remote.report_failure(1, "b: no memory")
    report = Report.from_trace(run.steps)
    assert report.names == ("a", "b")
    assert report.departures == ("b: no memory",)
    assert run.orchestrator._machine.state.learners.names == ["a", "b"]


@pytest.mark.parametrize("begun", [False, True])
async def test_an_identity_in_use_twice_is_in_the_report_once(
    open_run: Any, *, begun: bool
) -> None:
    run, remote = open_run
    await join_as(remote, 0)
    if begun:
        run.service.begin_run()
    await remote.register(1)
    original = remote.sessions[1]
    await remote.register(1, "the-session-of-a-copied-disk")
    for _ in range(2):
        with pytest.raises(SupersededError):
            await remote.remotes[1].aio.poll(original)
    if not begun:
        run.service.begin_run()
    (note,) = Report.from_trace(run.steps).shared_identities
    assert note.startswith("b: its identity is in use twice, at 127.0.0.1; if the disk of a device")


async def join_as(remote: Any, learner: int) -> None:
    await remote.register(learner)
    await remote.join(learner, protocol.to_builtins(protocol.JoinRequest("costs")))


async def test_a_learner_that_is_silent_or_failed_is_not_ready(open_run: Any) -> None:
    run, remote = open_run
    await join_as(remote, 0)
    await join_as(remote, 1)
    run.mailboxes[0].called_s -= 1000.0
    run.service.remove_silent()
    await remote.report_failure(1, "no data")
    assert run.mailboxes.ready == []
    pending = asyncio.ensure_future(remote.poll(0, None))
    await StartCondition(learners=1).wait(run.mailboxes)
    assert run.mailboxes.ready == [0]
    run.service.begin_run()
    await pending
    await remote.register(1, "another-session-of-b")
    await remote.join(1, protocol.to_builtins(protocol.JoinRequest("costs")))
    assert [item.learners.tolist() for item in run.of(events.LearnersJoined)] == [[0], [1]]


async def test_a_run_begins_after_a_time_with_at_least_one_learner(open_run: Any) -> None:
    run, remote = open_run
    begin = asyncio.ensure_future(StartCondition(learners=2, until_ready=0.0).wait(run.mailboxes))
    await remote.register(0)
    assert not begin.done()
    await remote.join(0, protocol.to_builtins(protocol.JoinRequest("costs")))
    await begin


async def test_calls_before_the_run_begins_or_before_joining_change_nothing(open_run: Any) -> None:
    run, remote = open_run
    await join_as(remote, 0)
    await remote.request_shards(0, 1, 1)
    await remote.report_bound(0, 1, 1.0, 5)
    run.service.begin_run()
    await remote.register(1)
    before = len(run.steps)
    for call in (
        remote.request_shards(1, 1, 1),
        remote.report_bound(1, 1, 1.0, 5),
        remote.release_shards(1, 1, [0]),
    ):
        with pytest.raises(RefusedError, match="b has not joined: call join first"):
            await call
    await remote.report_costs(1, COSTS)
    assert len(run.steps) == before
    assert not run.orchestrator.finished.done()


async def test_a_run_has_a_limit_of_learners(tmp_path: Path) -> None:
    run = ServedRun(tmp_path, mailboxes=Mailboxes(max_learners=1))
    async with run.serving() as remote:
        await remote.register(0)
        with pytest.raises(RefusedError, match="has 1 learners, the most that it takes"):
            await remote.register(1)
    run.close()


async def test_the_only_learner_may_restart(open_run: Any) -> None:
    run, remote = open_run
    await join_as(remote, 0)
    run.service.begin_run()
    await poll_until(remote, 0, protocol.Train)
    await remote.register(0, "the-session-after-a-restart")
    assert not run.orchestrator.finished.done()
    await remote.join(0, protocol.to_builtins(protocol.JoinRequest("costs")))
    assert not run.of(events.LearnersLeft)
    assert len(run.of(events.LearnersJoined)) == len(run.of(events.LearnersResumed)) == 1


async def test_a_learner_that_registers_after_the_end_is_told_to_leave(open_run: Any) -> None:
    run, remote = open_run
    await join_as(remote, 0)
    run.service.begin_run()
    run.orchestrator.cancel("interrupted")
    await join_as(remote, 1)
    assert await poll_until(remote, 1, protocol.Leave) == protocol.Leave()


@pytest.mark.parametrize(
    ("method", "bytes_"), [("upload_update", 100_000), ("probe_uplink", 100_000)]
)
async def test_bodies_are_limited_by_what_the_model_needs(
    served: Any, method: str, bytes_: int
) -> None:
    _, remote = served
    await join(remote, "a")
    large = {"weight": np.zeros(bytes_, np.uint8)}
    args = ({}, large) if method == "upload_update" else (large,)
    with pytest.raises(TooLargeError):
        await getattr(remote, method)(0, *args)


async def test_small_methods_take_small_bodies(served: Any) -> None:
    _, remote = served
    await join(remote, "a")
    with pytest.raises(TooLargeError):
        await remote.report_failure(0, "x" * learner_service.SMALL_BYTES)


@pytest.mark.parametrize("settings", [{"learners": 0}, {"until_ready": -1.0}])
def test_invalid_conditions_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"use \w+ >= "):
        StartCondition(**settings)


def test_conditions_are_described() -> None:
    assert str(StartCondition(learners=2)) == "when 2 learners are ready"
    assert str(StartCondition()) == "in 60 s with those that are ready"
    both = str(StartCondition(learners=1, until_ready=30))
    assert both == "when 1 learner is ready, or in 30 s with those that are ready"
    assert str(StartCondition(until_ready="23:00")) == "at 23:00 with those that are ready"


def test_a_run_begins_at_the_next_such_time_of_day() -> None:
    now = datetime.now().astimezone()
    soon = now + timedelta(hours=5)
    left_s = StartCondition(until_ready=f"{soon:%H:%M}").left_s(now)
    assert left_s is not None
    assert 5 * 3600 - 60 <= left_s <= 5 * 3600
    earlier_s = StartCondition(until_ready=f"{now - timedelta(hours=5):%H:%M}").left_s(now)
    assert earlier_s is not None
    assert 18 * 3600 <= earlier_s <= 20 * 3600
    in_days = StartCondition(until_ready=f"{now + timedelta(days=3):%Y-%m-%d %H:%M}").left_s(now)
    assert in_days is not None
    assert in_days > 2 * 24 * 3600


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("25:00", "until_ready is '25:00'; expected a time such as \"23:00\""),
        ("tonight", "or a number of seconds"),
        ("2020-01-01 12:00", "which is past: use a later time"),
    ],
)
def test_a_time_that_cannot_be_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        StartCondition(until_ready=text)


async def test_a_run_begins_at_its_time_with_those_that_are_ready(
    open_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, remote = open_run
    condition = StartCondition(learners=2, until_ready="23:00")
    monkeypatch.setattr(StartCondition, "left_s", lambda *_: 0.05)
    begin = asyncio.ensure_future(condition.wait(run.mailboxes))
    await remote.register(0)
    await remote.join(0, protocol.to_builtins(protocol.JoinRequest("costs")))
    await begin
    assert run.mailboxes.ready == [0]

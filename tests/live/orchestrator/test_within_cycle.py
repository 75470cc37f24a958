"""Requests, silence and late updates, with learners that are played by the test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.live import protocol
from melisma.live.orchestrator.mailbox import MAX_POLL_S
from tests.live.orchestrator.served_run import (
    GOOD_UPDATE,
    TASK,
    ServedRun,
    header,
    join,
    poll_until,
    take_assignments,
    wait_until,
)
from tests.live.orchestrator.stored_run import begin_cycle, close, make_store


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[tuple[ServedRun, Any]]:
    """Return a run with cycles of half a second, and a connection to it."""
    run = ServedRun(tmp_path, msgspec.structs.replace(TASK, deadline_s=0.5))
    run.orchestrator.start()
    async with run.serving() as learners:
        yield run, learners
    run.close()


async def test_released_shards_extend_the_assignment_of_a_learner_that_requests_some(
    served: Any,
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    first = await poll_until(remote, 0, protocol.Train)
    released = [shard.number for shard in first.shards[-2:]]
    await remote.request_shards(1, 1, 1)
    await remote.release_shards(0, 1, released)
    extension = await poll_until(remote, 1, protocol.ExtendTraining)
    assert (extension.cycle, extension.attempt, extension.passes) == (1, 2, 1)
    assert [shard.number for shard in extension.shards] == [min(released)]
    await remote.upload_update(1, header(attempt=2), GOOD_UPDATE)
    await remote.upload_update(0, header(), GOOD_UPDATE)
    (aggregate, *_) = run.of(commands.Aggregate)
    assert aggregate.attempts.tolist() == [1, 2]


async def test_shards_of_the_next_cycle_are_announced_when_a_cycle_closes(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    trained = {
        shard.number
        for learner in (0, 1)
        for shard in (await poll_until(remote, learner, protocol.Train)).shards
    }
    for learner in (0, 1):
        # Half of the work was done, so that the other half of the shards is still to be fetched.
        await remote.upload_update(learner, header() | {"visits": 150, "shipped": 3}, GOOD_UPDATE)
    announced = await poll_until(remote, 0, protocol.PrefetchShards)
    (prefetch, *_) = run.of(commands.Prefetch)
    assert [shard.number for shard in announced.shards] == prefetch.shards[0].tolist()
    assert {shard.number for shard in announced.shards} <= trained


async def test_a_learner_at_work_polls_often_enough_to_show_that_it_is_alive(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    limit_s = run.orchestrator._mailboxes[0].silence_limit_s
    began = asyncio.get_running_loop().time()
    assert await asyncio.wait_for(remote.poll(0, None), MAX_POLL_S / 2) == []
    assert asyncio.get_running_loop().time() - began >= limit_s / 5


async def test_a_silent_learner_leaves_and_joins_again_when_it_polls(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    run.service.remove_silent()
    assert not run.of(events.LearnersLeft)
    run.orchestrator._mailboxes[0].called_s -= 10.0
    run.service.remove_silent()
    run.service.remove_silent()
    (left,) = run.of(events.LearnersLeft)
    assert left.reason.startswith("a: no sign of life for 10.")
    assert await poll_until(remote, 0, protocol.StopTraining) == protocol.StopTraining(1, 1)
    assert [item.learners.tolist() for item in run.of(events.LearnersJoined)] == [[0], [1], [0]]
    await remote.upload_update(0, header(), GOOD_UPDATE)
    await remote.upload_update(1, header(), GOOD_UPDATE)
    aggregate = run.of(commands.Aggregate)[0]
    assert aggregate.learners.tolist() == [1]


async def test_a_silent_learner_is_noticed_though_each_cycle_is_shorter_than_its_limit(
    served: Any,
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    mailbox, command = run.orchestrator._mailboxes[0], run.of(commands.Dispatch)[0]
    for cycle in (2, 3):
        run.orchestrator.dispatch(msgspec.structs.replace(command, cycle=cycle))
        run.service.remove_silent()
        assert not run.of(events.LearnersLeft)
        mailbox.called_s -= 0.6 * mailbox.silence_limit_s
        mailbox.heard_s -= 0.6 * mailbox.silence_limit_s
    run.service.remove_silent()
    (left,) = run.of(events.LearnersLeft)
    assert left.learners.tolist() == [0]


async def test_the_last_learner_is_awaited_however_silent_it_is(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    for mailbox in run.orchestrator._mailboxes:
        mailbox.called_s -= 10.0
    run.service.remove_silent()
    assert len(run.of(events.LearnersLeft)) == 1
    assert not run.orchestrator.finished.done()


async def test_a_learner_without_work_may_be_silent_for_several_polls(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    await remote.upload_update(0, header(), GOOD_UPDATE)
    mailbox = run.orchestrator._mailboxes[0]
    mailbox.called_s -= 2 * MAX_POLL_S
    run.service.remove_silent()
    assert not run.of(events.LearnersLeft)
    mailbox.called_s -= 2 * MAX_POLL_S
    run.service.remove_silent()
    (left,) = run.of(events.LearnersLeft)
    assert left.learners.tolist() == [0]


async def test_a_silent_learner_joins_again_with_any_call(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    run.orchestrator._mailboxes[0].called_s -= 100.0
    run.service.remove_silent()
    await remote.request_shards(0, 1, 1)
    assert [item.learners.tolist() for item in run.of(events.LearnersJoined)] == [[0], [1], [0]]


async def test_a_busy_orchestrator_does_not_take_learners_for_dead(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orchestrator was stopped for 10 s, in which it could not take calls."""
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    checked = asyncio.Event()
    monkeypatch.setattr(run.service, "remove_silent", checked.set)
    watch = asyncio.create_task(run.service.watch_silence())
    await asyncio.sleep(0)
    now_s = run.orchestrator.now
    run.orchestrator.now = lambda: now_s() + 10.0
    await checked.wait()
    watch.cancel()
    monkeypatch.undo()
    run.service.remove_silent()
    assert not run.of(events.LearnersLeft)


async def test_a_late_update_joins_the_next_average_once(short: Any) -> None:
    """Its change of 4 - 0 counts half; the other update ends at 2."""
    run, remote = short
    await join(remote, "a", "b")
    await remote.upload_update(0, header(), GOOD_UPDATE)
    await wait_until(lambda: len(run.of(commands.Dispatch)) == 2)
    late = {"weight": np.full(4, 4.0, np.float32), "bias": np.zeros(1, np.float32)}
    for _ in range(2):
        assert await remote.upload_update(1, header(), late) == ""
    await remote.upload_update(0, header(cycle=2), GOOD_UPDATE)
    await wait_until(lambda: len(run.of(events.Aggregated)) == 2)
    first, second = run.of(commands.Aggregate)
    assert not first.late.learners.size
    assert (second.late.learners.tolist(), second.late.cycles.tolist()) == ([1], [1])
    assert second.late.weights.tolist() == [150.0]
    # In parts of 450: the other update, the late one, and what the first cycle changed meanwhile.
    expected = (300 * 2.0 + 150 * (4.0 + 2.0)) / 450
    assert run.store.parameters["weight"].tolist() == pytest.approx([expected] * 4)
    await run.orchestrator.end()
    assert not list((run.store.folder / "updates").iterdir())


def test_parameters_are_kept_as_long_as_late_updates_of_their_cycle_can_come(
    tmp_path: Path,
) -> None:
    asyncio.run(check_kept_parameters(tmp_path))


async def check_kept_parameters(folder: Path) -> None:
    store = make_store(folder, {"weight": np.zeros(4, np.float32), "bias": np.zeros(1, np.float32)})
    for cycle in range(1, 10):
        begin_cycle(store, cycle)
        for began in range(1, cycle + 1):
            served = store.path(f"model-{began - 1}.safetensors")
            assert (served is not None) == (began >= cycle - MAX_LATE_CYCLES - 1 or began == 1)
            assert served is None or served.is_file()
        assignment = 0, cycle, 1
        store.accept(assignment, store.spool(assignment, GOOD_UPDATE))
        command = commands.Aggregate(
            reason="",
            cycle=cycle,
            learners=np.array([0]),
            attempts=np.array([1]),
            weights=np.ones(1),
            visits=np.array([1]),
        )
        await close(store, command)
    assert len(list((folder / "parameters").iterdir())) <= MAX_LATE_CYCLES + 4
    store.close()

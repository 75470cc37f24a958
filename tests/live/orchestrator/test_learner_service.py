"""Methods of the learner service: valid messages become events, others are refused."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from melisma import axon
from melisma.cycle import commands, events
from melisma.cycle.learner import SUBSET_SHARDS
from melisma.errors import AxonError, UnauthorizedError
from melisma.live import protocol
from tests.live.orchestrator.served_run import (
    GOOD_UPDATE,
    TASK,
    header,
    join,
    poll_until,
    start_polls,
    take_assignments,
    wait_until,
)

SUMS = {"learner": 0, "cycle": 1, "samples": 10, "loss_sum": 2.5, "correct": 9, "labels": 10}


async def test_register_returns_the_task_and_the_benchmark_shards(served: Any) -> None:
    run, remote = served
    before_s = run.orchestrator.now()
    registered = protocol.parse(await remote.register("b"), protocol.RegisterResponse)
    assert before_s <= registered.run_s <= run.orchestrator.now()
    assert registered.learner == 1
    assert registered.task == TASK
    assert len(registered.benchmark_shards) == SUBSET_SHARDS
    assert len({shard.sha256 for shard in registered.benchmark_shards}) == SUBSET_SHARDS


async def test_only_shards_and_parameters_can_be_fetched(served: Any) -> None:
    run, remote = served
    registered = protocol.parse(await remote.register("a"), protocol.RegisterResponse)
    address = str(remote._connections.caller.http.address)
    with axon.connect(address) as stranger, pytest.raises(UnauthorizedError):
        await asyncio.to_thread(list, axon.fetch(stranger, registered.benchmark_shards[0].sha256))
    with axon.connect(address, token=run.service.token) as learner:
        shard = registered.benchmark_shards[0]
        pieces = await asyncio.to_thread(list, axon.fetch(learner, shard.sha256))
        assert sum(map(len, pieces)) == shard.size_bytes
        for name in ("trace.jsonl", "../trace.jsonl", "model-7.safetensors"):
            with pytest.raises(AxonError, match="no file"):
                await asyncio.to_thread(list, axon.fetch(learner, name))
    assert run.store.path(protocol.INITIAL_MODEL) is not None


async def test_a_learner_cannot_join_twice(served: Any) -> None:
    run, remote = served
    await join(remote, "a")
    with pytest.raises(AxonError, match="a has already joined"):
        await join(remote, "a")
    assert len(run.of(events.LearnersJoined)) == 1
    await remote.report_failure(0, "no power")
    with pytest.raises(AxonError, match="a has already joined"):
        await join(remote, "a")


async def test_an_update_is_counted_once(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    for _ in range(3):
        assert await remote.upload_update(header(0), GOOD_UPDATE) == ""
    await remote.upload_update(header(1), GOOD_UPDATE)
    aggregate = run.of(commands.Aggregate)[0]
    assert aggregate.learners.tolist() == [0, 1]
    assert aggregate.weights.tolist() == [300.0, 300.0]
    assert len(run.of(commands.Withdraw)) == 2


@pytest.mark.parametrize("corrupt", [False, True])
async def test_a_copy_that_arrives_while_the_first_is_written_is_ignored(
    served: Any, monkeypatch: pytest.MonkeyPatch, corrupt: bool
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    await remote.upload_update(header(0), GOOD_UPDATE)
    spool, copy_answered = run.store.spool, threading.Event()

    def spool_slowly(*args: Any) -> Any:
        copy_answered.wait(10)
        return spool(*args)

    monkeypatch.setattr(run.store, "spool", spool_slowly)
    update = {**GOOD_UPDATE, "weight": np.full(4, np.nan, np.float32)} if corrupt else GOOD_UPDATE
    first = asyncio.ensure_future(remote.upload_update(header(1), update))
    await wait_until(lambda: (1, 1, 1) in run.service._receiving)
    answer = await remote.upload_update(header(1), update)
    assert answer == "the update of b is already being received"
    copy_answered.set()
    assert ("refused" in await first) == corrupt
    assert run.of(commands.Aggregate)[0].learners.tolist() == ([0] if corrupt else [0, 1])


async def test_an_update_still_being_written_when_its_cycle_closes_does_not_count(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    spool, closed = run.store.spool, threading.Event()

    def spool_slowly(*args: Any) -> Any:
        closed.wait(10)
        return spool(*args)

    await remote.upload_update(header(0), GOOD_UPDATE)
    monkeypatch.setattr(run.store, "spool", spool_slowly)
    late = asyncio.ensure_future(remote.upload_update(header(1), GOOD_UPDATE))
    await wait_until(lambda: (1, 1, 1) in run.service._receiving)
    run.orchestrator.handle(events.TimeReached(at_s=1e6))
    second = await poll_until(remote, 0, protocol.Train)
    closed.set()
    await late
    assert second.cycle == 2
    assert [item.learners.tolist() for item in run.of(commands.Aggregate)] == [[0]]


async def test_an_update_of_an_old_cycle_or_attempt_does_not_count(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    for number in (0, 1):
        await remote.upload_update(header(number), GOOD_UPDATE)
    second = await poll_until(remote, 0, protocol.Train)
    assert second.cycle == 2
    outlier = {"weight": np.full(4, 1e6, np.float32), "bias": np.zeros(1, np.float32)}
    for cycle, attempt in ((1, 1), (2, 0), (2, 2), (3, 1)):
        await remote.upload_update(header(0, cycle, attempt), outlier)
    for number in (0, 1):
        await remote.upload_update(header(number, cycle=2), GOOD_UPDATE)
    await run.orchestrator.finished
    assert run.store.parameters["weight"].tolist() == [2.0] * 4
    assert len(run.of(commands.Withdraw)) == 4


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({**GOOD_UPDATE, "weight": np.full(4, np.nan, np.float32)}, "not finite"),
        ({**GOOD_UPDATE, "weight": np.full(4, np.inf, np.float32)}, "not finite"),
        ({**GOOD_UPDATE, "weight": np.zeros(5, np.float32)}, "float32[5]"),
        ({**GOOD_UPDATE, "weight": np.zeros(4, np.float64)}, "float64[4]"),
        ({"weight": GOOD_UPDATE["weight"]}, "bias is missing"),
        ({**GOOD_UPDATE, "extra": np.zeros(1, np.float32)}, "extra is not of this model"),
        ({}, "missing"),
    ],
)
async def test_an_invalid_update_is_refused_and_the_others_count(
    served: Any, update: dict[str, Any], words: str
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    refused = await remote.upload_update(header(0), update)
    assert "the update of a is refused" in refused
    assert words in refused
    await remote.upload_update(header(1), GOOD_UPDATE)
    assert run.of(commands.Aggregate)[0].learners.tolist() == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda remote: remote.register("nobody"),
        lambda remote: remote.join({"learner": 0}),
        lambda remote: remote.join({"learner": 7, "discloses": "costs"}),
        lambda remote: remote.poll(-1, None),
        lambda remote: remote.poll("0", None),
        lambda remote: remote.poll(0, "far"),
        lambda remote: remote.report_costs(0, [[1.0, 2.0]]),
        lambda remote: remote.report_costs(0, [[-1.0, 0.0, 1.0]] * 3),
        lambda remote: remote.report_bound(0, 1, 5.0, -3),
        lambda remote: remote.report_bound(0, 1, 5.0, "many"),
        lambda remote: remote.report_bound(0, "x", 5.0, 1),
        lambda remote: remote.report_bound(0, 1, np.zeros(2), 1),
        lambda remote: remote.request_shards(0, 1, -1),
        lambda remote: remote.request_shards(0, "x", 1),
        lambda remote: remote.request_shards(9, 1, 1),
        lambda remote: remote.release_shards(0, 1, 5),
        lambda remote: remote.release_shards(0, 1, [-1]),
        lambda remote: remote.release_shards(0, -1, [1]),
        lambda remote: remote.watch_silence(),
        lambda remote: remote.poll(0, (1, 2**63)),
        lambda remote: remote.report_costs(0, [[float("inf"), 0.0, 1.0]] * 3),
        lambda remote: remote.report_costs(0, [[1e308, 0.0, 1.0]] * 3),
        lambda remote: remote.report_costs(0, [[0.0, 0.0, 0.0]] * 3),
        lambda remote: remote.report_failure(0, None),
        lambda remote: remote.report_evaluation({"learner": 0}),
        lambda remote: remote.report_evaluation(SUMS | {"correct": 11}),
        lambda remote: remote.report_evaluation(SUMS | {"loss_sum": float("inf")}),
        lambda remote: remote.upload_update({"learner": 0}, GOOD_UPDATE),
        lambda remote: remote.upload_update(header(0) | {"visits": -1}, GOOD_UPDATE),
        lambda remote: remote.upload_update(header(0) | {"phases": (1.0,)}, GOOD_UPDATE),
        lambda remote: remote.upload_update(header(9), GOOD_UPDATE),
        lambda remote: remote.handle({"event": "TaskCancelled"}),
        lambda remote: remote.remove_learner(0, "no"),
    ],
)
async def test_an_invalid_message_is_refused_and_changes_nothing(served: Any, call: Any) -> None:
    run, remote = served
    before = len(run.steps)
    with pytest.raises(AxonError) as caught:
        await call(remote)
    assert not isinstance(caught.value, UnauthorizedError)
    assert len(run.steps) == before


async def test_a_valid_evaluation_is_taken(served: Any) -> None:
    run, remote = served
    await remote.report_evaluation(SUMS | {"cycle": 0})
    assert run.evaluator._scores[0].accuracy == 0.9


async def test_a_failed_learner_leaves_once(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await remote.report_failure(0, "a: out of memory")
    run.service.remove_learner(0, "its process ended")
    assert [item.reason for item in run.of(events.LearnersLeft)] == ["a: out of memory"]


async def test_the_poll_of_a_learner_that_left_does_not_wait(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    dead, alive = await start_polls(run, remote, (0, None), (1, None))
    run.service.remove_learner(0, "its process ended")
    assert protocol.parse_instructions(await asyncio.wait_for(dead, 5)) == [protocol.Leave()]
    assert not alive.done()
    run.orchestrator.cancel("interrupted")
    await asyncio.wait_for(alive, 5)

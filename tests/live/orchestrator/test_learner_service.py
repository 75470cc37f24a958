"""Methods of the learner service: valid messages become events, others are refused."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma import __version__, axon
from melisma.cycle import commands, events
from melisma.cycle.learner import SUBSET_SHARDS
from melisma.disclosure import Disclosure
from melisma.errors import AxonError, BusyError, RefusedError, SupersededError, UnauthorizedError
from melisma.fleet.stressors import stress_matrix
from melisma.live import protocol
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from tests.live.orchestrator.served_run import (
    GOOD_UPDATE,
    TASK,
    ServedRun,
    header,
    join,
    poll_until,
    start_polls,
    take_assignments,
    wait_until,
)

SUMS = {"cycle": 1, "samples": 10, "loss_sum": 2.5, "correct": 9, "labels": 10}


def costs(train_s: float = 1.0, spread_s: float = 0.1, count: float = 1.0) -> Any:
    """Return the message with the three costs of a learner."""
    return [[train_s, spread_s, count], [0.1, 0.01, 1.0], [0.1, 0.01, 1.0]]


REGISTRATION = protocol.RegisterRequest("session-of-another")


async def test_register_returns_the_task_and_the_benchmark_shards(served: Any) -> None:
    run, remote = served
    before_s = run.orchestrator.now()
    registered = await remote.register(1)
    assert before_s <= registered.run_s <= run.orchestrator.now()
    assert registered.learner == 1
    assert registered.task == TASK
    assert len(registered.benchmark_shards) == SUBSET_SHARDS
    assert len({shard.sha256 for shard in registered.benchmark_shards}) == SUBSET_SHARDS


async def test_a_learner_does_not_see_the_path_of_the_model_that_a_run_starts_from(
    tmp_path: Path,
) -> None:
    run = ServedRun(tmp_path, msgspec.structs.replace(TASK, start="/home/somebody/model"))
    async with run.serving() as remote:
        assert (await remote.register(0)).task == TASK
    run.close()


async def test_only_shards_and_parameters_can_be_fetched(served: Any) -> None:
    run, remote = served
    registered = await remote.register(0)
    address = remote.address
    with axon.connect(address) as stranger, pytest.raises(UnauthorizedError):
        await asyncio.to_thread(list, axon.fetch(stranger, registered.benchmark_shards[0].sha256))
    with axon.connect(address, token=run.tokens.token("a")) as learner:
        shard = registered.benchmark_shards[0]
        pieces = await asyncio.to_thread(list, axon.fetch(learner, shard.sha256))
        assert sum(map(len, pieces)) == shard.size_bytes
        for name in ("trace.jsonl", "../trace.jsonl", "model-7.safetensors"):
            with pytest.raises(AxonError, match="no file"):
                await asyncio.to_thread(list, axon.fetch(learner, name))
    assert run.store.path(protocol.INITIAL_MODEL) is not None


async def test_the_matrix_of_the_state_downloading_is_served_to_learners_only(served: Any) -> None:
    run, remote = served
    await remote.register(0)
    with axon.connect(remote.address) as stranger, pytest.raises(UnauthorizedError):
        await asyncio.to_thread(list, axon.fetch(stranger, protocol.STRESS_MATRIX))
    with axon.connect(remote.address, token=run.tokens.token("a")) as learner:
        for _ in range(2):
            pieces = await asyncio.to_thread(list, axon.fetch(learner, protocol.STRESS_MATRIX))
            assert b"".join(pieces) == stress_matrix()


async def test_a_learner_cannot_join_twice(served: Any) -> None:
    run, remote = served
    await join(remote, "a")
    # As if the reply had been lost.
    await join(remote, "a")
    assert len(run.of(events.LearnersJoined)) == 1
    with pytest.raises(AxonError, match="a has already joined"):
        await remote.join(0, protocol.to_builtins(protocol.JoinRequest("nothing")))
    await remote.report_failure(0, "no power")
    with pytest.raises(AxonError, match="a has already joined"):
        await join(remote, "a")


@pytest.mark.parametrize(
    ("discloses", "visits", "known"),
    # Of 100,000 visits, ten times those planned are counted: the learner trained all of them.
    [("costs", 300, 150.0), ("costs", 100_000, 50_000.0), ("bounds", 300, None)],
)
async def test_the_speed_of_a_learner_that_discloses_it_is_that_of_its_latest_update(
    served: Any, discloses: Disclosure, visits: int, known: float | None
) -> None:
    run, remote = served
    for learner in (0, 1):
        await remote.register(learner)
        await remote.join(learner, protocol.to_builtins(protocol.JoinRequest(discloses)))
    await poll_until(remote, 0, protocol.Train)
    trained = header() | {"phases": (0.0, 0.0, 0.0, 0.0, 2.0, 0.0), "visits": visits}
    await remote.upload_update(0, trained, GOOD_UPDATE)
    assert run.mailboxes[0].samples_per_s == known


async def test_the_speed_of_a_learner_that_comes_back_is_not_that_of_its_session_before(
    served: Any,
) -> None:
    run, remote = served
    await remote.register(0)
    await remote.join(0, protocol.to_builtins(protocol.JoinRequest("costs", (), 5120.0)))
    assert run.mailboxes[0].samples_per_s == 5120.0
    await remote.register(0, "session-after-a-restart")
    assert run.mailboxes[0].samples_per_s is None


async def test_a_poll_that_waits_is_refused_when_its_learner_is_revoked(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0)
    (poll,) = await start_polls(run, remote, (0, None))
    run.service.remove_learner(0, "a: revoked by the owner", "the identity of a was revoked")
    with pytest.raises(UnauthorizedError, match="the identity of a was revoked"):
        await poll


async def test_an_update_is_counted_once(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    for _ in range(3):
        assert await remote.upload_update(0, header(), GOOD_UPDATE) == ""
    await remote.upload_update(1, header(), GOOD_UPDATE)
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
    await remote.upload_update(0, header(), GOOD_UPDATE)
    spool, copy_answered = run.store.spool, threading.Event()

    def spool_slowly(*args: Any) -> Any:
        copy_answered.wait(10)
        return spool(*args)

    monkeypatch.setattr(run.store, "spool", spool_slowly)
    update = {**GOOD_UPDATE, "weight": np.full(4, np.nan, np.float32)} if corrupt else GOOD_UPDATE
    first = asyncio.ensure_future(remote.upload_update(1, header(), update))
    await wait_until(lambda: (1, 1, 1) in run.service._receiving)
    with pytest.raises(BusyError, match="the update of b is already being received"):
        await remote.upload_update(1, header(), update)
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

    await remote.upload_update(0, header(), GOOD_UPDATE)
    monkeypatch.setattr(run.store, "spool", spool_slowly)
    late = asyncio.ensure_future(remote.upload_update(1, header(), GOOD_UPDATE))
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
        await remote.upload_update(number, header(), GOOD_UPDATE)
    second = await poll_until(remote, 0, protocol.Train)
    assert second.cycle == 2
    outlier = {"weight": np.full(4, 1e6, np.float32), "bias": np.zeros(1, np.float32)}
    for cycle, attempt in ((1, 1), (2, 0), (2, 2), (3, 1)):
        await remote.upload_update(0, header(cycle, attempt), outlier)
    for number in (0, 1):
        await remote.upload_update(number, header(cycle=2), GOOD_UPDATE)
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
    refused = await remote.upload_update(0, header(), update)
    assert "the update of a is refused" in refused
    assert words in refused
    await remote.upload_update(1, header(), GOOD_UPDATE)
    assert run.of(commands.Aggregate)[0].learners.tolist() == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda remote: remote.register(0, "short"),
        lambda remote: remote.join(0, {"local_shard_samples": []}),
        lambda remote: remote.join(0, {"discloses": "everything"}),
        lambda remote: remote.remotes[0].aio.poll(None),
        lambda remote: remote.remotes[0].aio.poll(0, None),
        lambda remote: remote.poll(0, "far"),
        lambda remote: remote.report_costs(0, [[1.0, 2.0]]),
        lambda remote: remote.report_costs(0, [[-1.0, 0.0, 1.0]] * 3),
        lambda remote: remote.report_bound(0, 1, 5.0, -3),
        lambda remote: remote.report_bound(0, 1, 5.0, "many"),
        lambda remote: remote.report_bound(0, "x", 5.0, 1),
        lambda remote: remote.report_bound(0, 1, np.zeros(2), 1),
        lambda remote: remote.request_shards(0, 1, -1),
        lambda remote: remote.request_shards(0, "x", 1),
        lambda remote: remote.release_shards(0, 1, 5),
        lambda remote: remote.release_shards(0, 1, [-1]),
        lambda remote: remote.release_shards(0, -1, [1]),
        lambda remote: remote.watch_silence(0),
        lambda remote: remote.poll(0, (1, 2**63)),
        lambda remote: remote.report_costs(0, [[float("inf"), 0.0, 1.0]] * 3),
        lambda remote: remote.report_costs(0, [[1e308, 0.0, 1.0]] * 3),
        lambda remote: remote.report_costs(0, [[0.0, 0.0, 0.0]] * 3),
        lambda remote: remote.report_failure(0, None),
        lambda remote: remote.report_evaluation(0, {"samples": 0}),
        lambda remote: remote.report_costs(0, costs(train_s=1e-300)),
        lambda remote: remote.report_costs(0, costs(train_s=1e8)),
        lambda remote: remote.report_costs(0, costs(train_s=float("nan"))),
        lambda remote: remote.report_costs(0, costs(spread_s=1e300)),
        lambda remote: remote.report_costs(0, costs(count=1e9)),
        lambda remote: remote.upload_update(0, header() | {"phases": (1e9,) * 6}, GOOD_UPDATE),
        lambda remote: remote.report_evaluation(0, SUMS | {"correct": 11}),
        lambda remote: remote.report_evaluation(0, SUMS | {"loss_sum": float("inf")}),
        lambda remote: remote.upload_update(0, {"cycle": 1}, GOOD_UPDATE),
        lambda remote: remote.upload_update(0, header() | {"visits": -1}, GOOD_UPDATE),
        lambda remote: remote.upload_update(0, header() | {"phases": (1.0,)}, GOOD_UPDATE),
        lambda remote: remote.handle(0, {"event": "TaskCancelled"}),
        lambda remote: remote.remove_learner(0, "no"),
    ],
)
async def test_an_invalid_message_is_refused_and_changes_nothing(served: Any, call: Any) -> None:
    run, remote = served
    await join(remote, "a")
    before = len(run.steps)
    with pytest.raises(AxonError) as caught:
        await call(remote)
    assert not isinstance(caught.value, UnauthorizedError)
    assert len(run.steps) == before


async def test_a_valid_evaluation_is_taken(served: Any) -> None:
    run, remote = served
    await join(remote, "a")
    evaluation = asyncio.create_task(run.evaluator.evaluate(1, "model", [0], 60.0))
    await asyncio.sleep(0)
    await remote.report_evaluation(0, SUMS)
    await evaluation
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


STATEMENTS: dict[str, tuple[Any, ...]] = {
    "upload_update": (header(), GOOD_UPDATE),
    "report_failure": ("b: gone",),
    "poll": ((1, 300),),
    "report_bound": (1, 5.0, 3),
    "report_costs": ([[1.0, 0.1, 3.0]] * 3,),
    "report_evaluation": (SUMS | {"cycle": 0},),
    "request_shards": (1, 2),
    "release_shards": (1, [0]),
    "join": ({"discloses": "costs"},),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_learner_speaks_for_itself_only(served: Any, name: str) -> None:
    """Learner a sends b's number and even its session: all it says is taken as its own."""
    run, remote = served
    if name == "join":
        await join(remote, "b")
    else:
        await join(remote, "a", "b")
        await take_assignments(remote, 0, 1)
    before, call = len(run.steps), remote.remotes[0].aio[name]
    args = STATEMENTS[name]
    with pytest.raises(AxonError):
        await call(remote.sessions[1], *args)
    with pytest.raises(AxonError):
        await call(1, *args)
    if args and isinstance(args[0], dict):
        # A number in the message is ignored.
        if name == "join":
            await remote.register(0)
        await call(remote.sessions[0], args[0] | {"learner": 1}, *args[1:])
    assert [step.event.learners.tolist() for step in run.steps[before:]] in ([], [[0]])
    assert not run.evaluator._scores.keys() - {0}
    assert not run.orchestrator._mailboxes[1].left


async def test_a_learner_cannot_issue_tokens(served: Any) -> None:
    run, remote = served
    for forged in (axon.issue_token(run.tokens.token("a"), "b"), "b", ""):
        with (
            axon.connect(remote.address, token=forged) as impostor,
            pytest.raises(UnauthorizedError, match="not of a learner of this run"),
        ):
            await impostor.aio.poll(remote.sessions[1])


async def test_only_learners_of_the_run_may_call(served: Any, tmp_path: Path) -> None:
    run, _ = served
    others = LearnerTokens(["c"])
    async with run.service.worker(others).listening() as address:
        with axon.connect(address, token=others.token("c")) as stranger:
            with pytest.raises(RefusedError, match="c is not a learner of this run"):
                await stranger.aio.register(protocol.to_builtins(REGISTRATION))
            with pytest.raises(RefusedError, match="c is not a learner of this run"):
                await asyncio.to_thread(list, axon.fetch(stranger, protocol.INITIAL_MODEL))


@pytest.mark.parametrize(
    "message",
    [
        {"session": "s" * 20, "protocol": protocol.PROTOCOL + 1, "version": "9.9"},
        {"session": "s" * 20, "version": "9.9"},
        {"protocol": [1], "version": "9.9"},
        "a",
    ],
)
async def test_another_protocol_is_refused_with_both_versions(served: Any, message: Any) -> None:
    _, remote = served
    with pytest.raises(RefusedError, match="install the same version on both") as caught:
        await remote.remotes[0].aio.register(message)
    assert f"protocol {protocol.PROTOCOL} (melisma '{__version__}')" in str(caught.value)
    assert isinstance(message, str) or "9.9" in str(caught.value)


async def test_a_learner_registers_before_it_calls(served: Any) -> None:
    _, remote = served
    with pytest.raises(RefusedError, match="a has not registered"):
        await remote.poll(0)


async def test_a_new_session_replaces_the_old_one(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    (old_poll,) = await start_polls(run, remote, (0, None))
    old = remote.sessions[0]
    await remote.register(0, "the-second-session-of-a")
    with pytest.raises(SupersededError, match="a is in use elsewhere"):
        await asyncio.wait_for(old_poll, 5)
    for name, args in STATEMENTS.items():
        with pytest.raises(SupersededError):
            await remote.remotes[0].aio[name](old, *args)
    # A retry of the same registration changes nothing.
    await join(remote, "a")
    await remote.register(0)
    assert [item.learners.tolist() for item in run.of(events.LearnersJoined)] == [[0], [1]]
    (resumed,) = run.of(events.LearnersResumed)
    assert resumed.learners.tolist() == [0]
    assert not run.of(events.LearnersLeft)
    again = await poll_until(remote, 0, protocol.Train)
    assert (again.cycle, again.attempt) == (1, 1)


async def test_a_learner_that_failed_joins_again_in_a_new_session(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await remote.report_failure(0, "a: no power")
    await remote.register(0, "the-second-session-of-a")
    await join(remote, "a")
    assert [item.learners.tolist() for item in run.of(events.LearnersJoined)] == [[0], [1], [0]]
    assert protocol.Leave() not in protocol.parse_instructions(await remote.poll(0, (1, 1)))


async def test_the_end_of_the_run_holds_for_later_sessions(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    run.orchestrator.cancel("interrupted")
    await remote.register(0, "the-second-session-of-a")
    answer = await asyncio.wait_for(remote.poll(0), 5)
    assert protocol.parse_instructions(answer) == [protocol.Leave()]


async def test_an_update_that_is_being_written_ends_with_its_session(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    spool, registered = run.store.spool, threading.Event()

    def spool_slowly(*args: Any) -> Any:
        registered.wait(10)
        return spool(*args)

    monkeypatch.setattr(run.store, "spool", spool_slowly)
    upload = asyncio.ensure_future(remote.upload_update(0, header(), GOOD_UPDATE))
    await wait_until(lambda: (0, 1, 1) in run.service._receiving)
    await remote.register(0, "the-second-session-of-a")
    registered.set()
    with pytest.raises(SupersededError):
        await upload
    assert not run.of(events.UpdatesReceived)
    assert not list((run.store.folder / "updates").rglob("*.update"))


async def test_visits_are_limited_by_the_assignment(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    huge = header() | {"visits": 2**53, "planned_visits": 2**53}
    assert await remote.upload_update(0, huge, GOOD_UPDATE) == ""
    (event,) = run.of(events.UpdatesReceived)
    assert event.visits.tolist() == [10 * 300]


async def test_a_reason_begins_with_the_learners_own_name_and_has_no_escape_codes(
    served: Any,
) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await remote.report_failure(0, "b: \x1b[2J gone \u202e")
    await remote.report_failure(1, "b: no memory")
    left = [event.reason for event in run.of(events.LearnersLeft)]
    assert left == ["a: b: \\x1b[2J gone \\u202e", "b: no memory"]


async def test_one_huge_update_neither_destroys_the_model_nor_is_it_hidden(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    await remote.upload_update(0, header(), GOOD_UPDATE)
    bad = {name: np.full_like(array, 1e30) for name, array in GOOD_UPDATE.items()}
    await remote.upload_update(1, header(), bad)
    await wait_until(lambda: bool(run.of(events.Evaluated)))
    (aggregated,) = run.of(events.Aggregated)[:1]
    assert aggregated.guarded.tolist() == [1]
    assert aggregated.scales.tolist() == [0.0]
    assert run.store.parameters["weight"].tolist() == GOOD_UPDATE["weight"].tolist()


async def test_data_of_a_device_is_ignored_where_data_is_handed_out(served: Any) -> None:
    run, remote = served
    await remote.register(0)
    request = protocol.JoinRequest("costs", (50,) * 1000)
    await remote.join(0, protocol.to_builtins(request))
    await join(remote, "b")
    await take_assignments(remote, 0, 1)
    assert not any(len(joined.local_shard_samples) for joined in run.of(events.LearnersJoined))

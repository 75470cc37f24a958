"""The orchestrator as learners meet it: a hand-made learner says what a real one would not."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma import axon
from melisma.cycle import commands, events
from melisma.cycle.learner import SUBSET_SHARDS
from melisma.errors import AxonError, UnauthorizedError
from melisma.fleet.task import Sizes, Task
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardFolder
from melisma.learning.parameters import Layout
from melisma.live import protocol
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_service import LearnerService
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.orchestrator.orchestrator import Orchestrator
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.runs.trace import Step
from tests.live import tiny_task

TASK = Task(
    name="blobs",
    model="tests.live.tiny_task:Linear",
    data="tests.live.tiny_task:blobs",
    scheme="equal",
    passes=1,
    deadline_s=5.0,
    cycles=2,
    shard_samples=50,
    sizes=Sizes(samples=600),
)
GOOD = {"weight": np.full(4, 2.0, np.float32), "bias": np.zeros(1, np.float32)}


class Run:
    """A run in this process, its learners played by the test."""

    def __init__(
        self, folder: Path, task: Task = TASK, names: tuple[str, ...] = ("a", "b")
    ) -> None:
        (train, labels), (test, test_labels) = tiny_task.blobs()
        trainer = tiny_task.Linear(task)
        parts = [np.arange(start, start + 50) for start in range(0, 600, 50)]
        shards = ShardFolder(folder / "shards", Split(train, labels), parts)
        store = RunStore(folder, Layout.of(trainer.initial()), shards)
        spec = RunSpec("r1", task, trainer, Split(test, test_labels))
        mailboxes = [Mailbox(name) for name in names]
        evaluator = FederatedEvaluator(mailboxes)
        self.steps: list[Step] = []
        self.store = store
        self.orchestrator = Orchestrator(spec, mailboxes, store, evaluator, self.steps.append)
        self.service = LearnerService(spec, mailboxes, store, evaluator, self.orchestrator)

    def of(self, kind: type) -> list[Any]:
        received = [each.event for each in self.steps if isinstance(each.event, kind)]
        said = [c for each in self.steps for c in each.commands if isinstance(c, kind)]
        return received or said


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[tuple[Run, axon.Remote]]:
    made = Run(tmp_path)
    made.orchestrator.start()
    async with made.service.worker().listening() as address:
        with axon.connect(address, token=made.service.token) as remote:
            yield made, remote.aio
    made.store.close()


async def orders(remote: Any, number: int, kind: type) -> Any:
    """The next order of that kind."""
    while True:
        for order in protocol.parse_instructions(await remote.poll(number, None)):
            if isinstance(order, kind):
                return order


async def joined(remote: Any, *names: str) -> None:
    for name in names:
        entry = protocol.parse(await remote.register(name), protocol.RegisterResponse)
        await remote.join(protocol.to_builtins(protocol.JoinRequest(entry.learner, "costs")))


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - what is waited for knows of no event
        await asyncio.sleep(0.001)


def handed(learner: int, cycle: int = 1, attempt: int = 1, **said: Any) -> Any:
    values: dict[str, Any] = {"shipped": 0, "visits": 300, "loss": 0.5, "phases": (0.0,) * 6} | said
    return protocol.to_builtins(
        protocol.UpdateHeader(learner=learner, cycle=cycle, attempt=attempt, **values)
    )


async def test_a_learner_learns_its_task_and_what_to_measure_itself_on(run: Any) -> None:
    _, remote = run
    entry = protocol.parse(await remote.register("b"), protocol.RegisterResponse)
    assert entry.learner == 1
    assert entry.task == TASK
    assert len(entry.benchmark_shards) == SUBSET_SHARDS
    assert len({parcel.sha256 for parcel in entry.benchmark_shards}) == SUBSET_SHARDS


async def test_shards_and_parameters_are_there_to_fetch_and_nothing_else(run: Any) -> None:
    made, remote = run
    entry = protocol.parse(await remote.register("a"), protocol.RegisterResponse)
    address = str(remote._connections.caller.http.address)
    with axon.connect(address) as stranger, pytest.raises(UnauthorizedError):
        await asyncio.to_thread(list, axon.fetch(stranger, entry.benchmark_shards[0].sha256))
    line = axon.connect(address, token=made.service.token)
    with line:
        found = await asyncio.to_thread(
            lambda: b"".join(axon.fetch(line, entry.benchmark_shards[0].sha256))
        )
        assert len(found) == entry.benchmark_shards[0].size_bytes
        for name in ("trace.jsonl", "../trace.jsonl", "model-7.safetensors"):
            with pytest.raises(AxonError, match="no file"):
                await asyncio.to_thread(list, axon.fetch(line, name))
    assert made.store.path(protocol.INITIAL_MODEL) is not None


async def test_an_update_is_counted_once(run: Any) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await orders(remote, 0, protocol.Train)
    for _ in range(3):
        assert await remote.upload_update(handed(0), GOOD) == ""
    await remote.upload_update(handed(1), GOOD)
    aggregate = made.of(commands.Aggregate)[0]
    assert aggregate.learners.tolist() == [0, 1]
    assert aggregate.weights.tolist() == [300.0, 300.0]
    assert len(made.of(commands.Withdraw)) == 2


@pytest.mark.parametrize("wild", [False, True])
async def test_a_copy_that_comes_while_the_first_is_written_is_not_heard(
    run: Any, monkeypatch: pytest.MonkeyPatch, wild: bool
) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await orders(remote, 0, protocol.Train)
    await remote.upload_update(handed(0), GOOD)
    keep, both = made.store.spool, threading.Event()

    def slowly(*args: Any) -> Any:
        both.wait(10)
        return keep(*args)

    monkeypatch.setattr(made.store, "spool", slowly)
    update = {**GOOD, "weight": np.full(4, np.nan, np.float32)} if wild else GOOD
    first = asyncio.ensure_future(remote.upload_update(handed(1), update))
    await until(lambda: (1, 1, 1) in made.service._receiving)
    assert (
        await remote.upload_update(handed(1), update) == "the update of b is already being received"
    )
    both.set()
    assert ("refused" in await first) == wild
    assert made.of(commands.Aggregate)[0].learners.tolist() == ([0] if wild else [0, 1])


async def test_what_is_written_when_its_cycle_is_closed_does_not_count(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await orders(remote, 0, protocol.Train)
    keep, closed = made.store.spool, threading.Event()

    def slowly(*args: Any) -> Any:
        closed.wait(10)
        return keep(*args)

    await remote.upload_update(handed(0), GOOD)
    monkeypatch.setattr(made.store, "spool", slowly)
    late = asyncio.ensure_future(remote.upload_update(handed(1), GOOD))
    await until(lambda: (1, 1, 1) in made.service._receiving)
    made.orchestrator.handle(events.TimeReached(at_s=1e6))
    second = await orders(remote, 0, protocol.Train)
    closed.set()
    await late
    assert second.cycle == 2
    assert [each.learners.tolist() for each in made.of(commands.Aggregate)] == [[0]]


async def test_an_update_of_an_old_cycle_or_attempt_does_not_count(run: Any) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await orders(remote, 0, protocol.Train)
    for number in (0, 1):
        await remote.upload_update(handed(number), GOOD)
    second = await orders(remote, 0, protocol.Train)
    assert second.cycle == 2
    wild = {"weight": np.full(4, 1e6, np.float32), "bias": np.zeros(1, np.float32)}
    for cycle, attempt in ((1, 1), (2, 0), (2, 2), (3, 1)):
        await remote.upload_update(handed(0, cycle, attempt), wild)
    for number in (0, 1):
        await remote.upload_update(handed(number, cycle=2), GOOD)
    await made.orchestrator.finished
    assert made.store.parameters["weight"].tolist() == [2.0] * 4
    assert len(made.of(commands.Withdraw)) == 4


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({**GOOD, "weight": np.full(4, np.nan, np.float32)}, "not finite"),
        ({**GOOD, "weight": np.full(4, np.inf, np.float32)}, "not finite"),
        ({**GOOD, "weight": np.zeros(5, np.float32)}, "float32[5]"),
        ({**GOOD, "weight": np.zeros(4, np.float64)}, "float64[4]"),
        ({"weight": GOOD["weight"]}, "bias is missing"),
        ({**GOOD, "extra": np.zeros(1, np.float32)}, "extra is not of this model"),
        ({}, "missing"),
    ],
)
async def test_an_update_that_is_none_is_refused_and_the_others_count(
    run: Any, update: dict[str, Any], words: str
) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await orders(remote, 0, protocol.Train)
    refused = await remote.upload_update(handed(0), update)
    assert "the update of a is refused" in refused
    assert words in refused
    await remote.upload_update(handed(1), GOOD)
    assert made.of(commands.Aggregate)[0].learners.tolist() == [1]


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
        lambda remote: remote.poll(0, (1, 2**63)),
        lambda remote: remote.report_costs(0, [[float("inf"), 0.0, 1.0]] * 3),
        lambda remote: remote.report_costs(0, [[1e308, 0.0, 1.0]] * 3),
        lambda remote: remote.report_costs(0, [[0.0, 0.0, 0.0]] * 3),
        lambda remote: remote.report_failure(0, None),
        lambda remote: remote.report_evaluation({"learner": 0}),
        lambda remote: remote.upload_update({"learner": 0}, GOOD),
        lambda remote: remote.upload_update(handed(0) | {"visits": -1}, GOOD),
        lambda remote: remote.upload_update(handed(0) | {"phases": (1.0,)}, GOOD),
        lambda remote: remote.upload_update(handed(9), GOOD),
        lambda remote: remote.handle({"event": "TaskCancelled"}),
        lambda remote: remote.remove_learner(0, "no"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(run: Any, call: Any) -> None:
    made, remote = run
    before = len(made.steps)
    with pytest.raises(AxonError) as caught:
        await call(remote)
    assert not isinstance(caught.value, UnauthorizedError)
    assert len(made.steps) == before


async def test_nobody_joins_twice(run: Any) -> None:
    made, remote = run
    await joined(remote, "a")
    with pytest.raises(AxonError, match="a has already joined"):
        await joined(remote, "a")
    assert len(made.of(events.LearnersJoined)) == 1
    await remote.report_failure(0, "no power")
    with pytest.raises(AxonError, match="a has already joined"):
        await joined(remote, "a")


async def test_an_order_says_how_much_time_is_left_when_it_is_asked_for(run: Any) -> None:
    _, remote = run
    await joined(remote, "a", "b")
    prompt = await orders(remote, 0, protocol.Train)
    asked = time.monotonic()
    await until(lambda: time.monotonic() >= asked + 0.2)
    late = await orders(remote, 1, protocol.Train)
    assert late.seconds_left <= prompt.seconds_left - 0.2


async def test_who_fails_is_gone_and_said_so_once(run: Any) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await remote.report_failure(0, "a: out of memory")
    made.service.remove_learner(0, "its process ended")
    assert [each.reason for each in made.of(events.LearnersLeft)] == ["a: out of memory"]


async def test_the_model_is_on_disk_after_each_cycle(run: Any) -> None:
    from safetensors.numpy import load_file

    made, remote = run
    await joined(remote, "a", "b")
    await orders(remote, 0, protocol.Train)
    for number in (0, 1):
        await remote.upload_update(handed(number), GOOD)
    await orders(remote, 0, protocol.Train)
    assert made.store.model is not None
    assert load_file(made.store.model)["weight"].tolist() == [2.0] * 4
    assert not list((made.store.folder / "updates").rglob("*.update"))


async def test_a_watcher_that_fails_ends_the_run_with_its_error(run: Any) -> None:
    made, remote = run

    def broken(_: Step) -> None:
        raise ZeroDivisionError("the watcher broke")

    made.orchestrator._watch = broken
    with pytest.raises(ZeroDivisionError):
        await joined(remote, "a")
    with pytest.raises(ZeroDivisionError):
        await made.orchestrator.finished


async def start_polls(
    run: Run, remote: Any, *polls: tuple[int, Any]
) -> "list[asyncio.Future[Any]]":
    """Start polls that wait at the orchestrator, each with its learner and progress."""
    pending = [asyncio.ensure_future(remote.poll(*poll)) for poll in polls]
    mailboxes = run.orchestrator._mailboxes
    await until(lambda: sum(len(box._arrived._waiters) for box in mailboxes) == len(polls))
    assert not any(poll.done() for poll in pending)
    return pending


async def take_assignments(remote: Any, *learners: int) -> None:
    for learner in learners:
        await orders(remote, learner, protocol.Train)


ENDS: dict[str, Callable[[Run], Any]] = {
    "finished": lambda run: run.orchestrator.finish(
        commands.Finish(reason="cycle 2 was the last", outcome="done")
    ),
    "cancelled": lambda run: run.orchestrator.cancel("interrupted"),
    "failed": lambda run: run.orchestrator.finished.set_exception(ZeroDivisionError("broke")),
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_end_of_a_run_answers_every_pending_poll_at_once_and_logs_nothing(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Run(tmp_path, msgspec.structs.replace(TASK, deadline_s=1000.0))
    made.orchestrator.start()
    with contextlib.ExitStack() as stack:
        async with made.service.worker().listening() as address:
            remote = stack.enter_context(axon.connect(address, token=made.service.token)).aio
            await joined(remote, "a", "b")
            await take_assignments(remote, 0, 1)
            # Two polls of one learner, as when the process that sent the first was killed.
            polls = await start_polls(made, remote, (0, None), (0, (1, 20)), (1, None))
            ENDS[end](made)
        answers = await asyncio.wait_for(asyncio.gather(*polls), 5)
    made.store.close()
    assert all(protocol.parse_instructions(each)[-1] == protocol.Leave() for each in answers)
    with contextlib.suppress(ZeroDivisionError):
        await made.orchestrator.finished
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


async def test_a_poll_after_the_end_is_answered_with_leave_again(run: Any) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    made.orchestrator.cancel("interrupted")
    for progress in (None, (1, 20), None):
        answer = await asyncio.wait_for(remote.poll(0, progress), 5)
        assert protocol.parse_instructions(answer)[-1] == protocol.Leave()


async def test_the_poll_of_a_learner_that_left_does_not_wait(run: Any) -> None:
    made, remote = run
    await joined(remote, "a", "b")
    await take_assignments(remote, 0, 1)
    dead, alive = await start_polls(made, remote, (0, None), (1, None))
    made.service.remove_learner(0, "its process ended")
    assert protocol.parse_instructions(await asyncio.wait_for(dead, 5)) == [protocol.Leave()]
    assert not alive.done()
    made.orchestrator.cancel("interrupted")
    await asyncio.wait_for(alive, 5)


def test_orders_survive_the_way() -> None:
    parcel = protocol.ShardRef(3, "0" * 64, 100, 10)
    sent = [
        protocol.RunBenchmark(2.0),
        protocol.ComputeBound(1, 5.0, 2),
        protocol.Train(1, 1, "model-0.safetensors", 2, 4.5, (parcel,)),
        protocol.StopTraining(1, 1),
        protocol.Leave(),
    ]
    assert (
        protocol.parse_instructions(
            msgspec.json.decode(msgspec.json.encode(protocol.to_builtins(sent)))
        )
        == sent
    )

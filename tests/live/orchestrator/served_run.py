"""A run whose orchestrator is in this process and whose learners are played by the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from melisma import axon
from melisma.fleet.task import Task, TaskSizes
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import ShardFolder
from melisma.learning.parameters import Layout
from melisma.learning.update_guard import UpdateGuard
from melisma.live import protocol
from melisma.live.code_bundle import CodeBundle
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from melisma.live.orchestrator.learner_service import LearnerService
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.orchestrator import Orchestrator
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.runs.journal import Journal
from melisma.runs.trace import Step
from tests.live import tiny_task

TASK = Task(
    name="blobs",
    model="tests.live.tiny_task:Linear",
    data="tests.live.tiny_task:blobs",
    # Learners that train until the deadline leave the processor to other tests.
    model_args={"pause_s": 0.005},
    scheme="equal",
    passes=1,
    deadline_s=5.0,
    cycles=2,
    shard_samples=50,
    sizes=TaskSizes(samples=600),
)
GOOD_UPDATE = {"weight": np.full(4, 2.0, np.float32), "bias": np.zeros(1, np.float32)}


class ServedRun:
    """A run with the learners a and b, by default from the start."""

    def __init__(
        self,
        folder: Path,
        task: Task = TASK,
        mailboxes: Mailboxes | None = None,
        bundle: CodeBundle | None = None,
    ) -> None:
        (train, labels), (test, test_labels) = tiny_task.blobs()
        trainer = tiny_task.Linear(task)
        parts = [np.arange(start, start + 50) for start in range(0, 600, 50)]
        shards = ShardFolder(folder / "shards", Split(train, labels), parts)
        spec = RunSpec(
            "r1", task, trainer, trainer.initial(), Split(test, test_labels), bundle=bundle
        )
        mailboxes = Mailboxes(["a", "b"]) if mailboxes is None else mailboxes
        self.mailboxes = mailboxes
        self.evaluator = evaluator = FederatedEvaluator(mailboxes)
        self.steps: list[Step] = []
        layout, guard = Layout.from_arrays(trainer.initial()), UpdateGuard(task.guard)
        journal = RunJournal(Journal.create(folder))
        self.store = store = RunStore(journal, layout, shards, guard)
        store.save_initial(spec.initial)
        self.orchestrator = Orchestrator(spec, mailboxes, store, evaluator, self.steps.append)
        self.service = LearnerService(spec, mailboxes, store, evaluator, self.orchestrator)
        self.tokens = LearnerTokens(["a", "b"])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Learners"]:
        """Serve the learners, and yield what they call."""
        async with self.service.worker(self.tokens).listening() as address:
            with ExitStack() as stack:
                remotes = [
                    stack.enter_context(axon.connect(address, token=self.tokens.token(name)))
                    for name in ("a", "b")
                ]
                yield Learners(address, remotes)

    def close(self) -> None:
        """Handle no more events, and close the trace."""
        self.orchestrator.finished.cancel()
        self.store.close()

    def of(self, kind: type) -> list[Any]:
        """Return the events or commands of a type so far."""
        received = [step.event for step in self.steps if isinstance(step.event, kind)]
        issued = [c for step in self.steps for c in step.commands if isinstance(c, kind)]
        return received or issued


class Learners:
    """The learners a and b: the first argument of each call is the number of the one that calls.

    Each calls with its own credential, and with the session with which it registered last.
    """

    def __init__(self, address: str, remotes: list[axon.Remote]) -> None:
        self.address, self.remotes = address, remotes
        self.sessions = ["session-of-learner-a", "session-of-learner-b"]

    def __getattr__(self, name: str) -> Any:
        def call(learner: int, *args: Any) -> Any:
            return self.remotes[learner].aio[name](self.sessions[learner], *args)

        return call

    async def register(self, learner: int, session: str | None = None) -> Any:
        """Register a learner, with a new session if one is given."""
        self.sessions[learner] = session or self.sessions[learner]
        request = protocol.RegisterRequest(self.sessions[learner])
        reply = await self.remotes[learner].aio.register(protocol.to_builtins(request))
        return protocol.parse(reply, protocol.RegisterResponse)


async def poll_until(remote: Any, learner: int, kind: type) -> Any:
    """Poll until there is an instruction of that type, and return it."""
    while True:
        for instruction in protocol.parse_instructions(await remote.poll(learner, None)):
            if isinstance(instruction, kind):
                return instruction


async def join(remote: Any, *names: str) -> None:
    """Register and join learners."""
    for name in names:
        registered = await remote.register("ab".index(name))
        request = protocol.JoinRequest("costs")
        await remote.join(registered.learner, protocol.to_builtins(request))


async def take_assignments(remote: Any, *learners: int) -> None:
    """Poll until each learner has its assignment."""
    for learner in learners:
        await poll_until(remote, learner, protocol.Train)


async def start_polls(
    run: ServedRun, remote: Any, *polls: tuple[int, Any]
) -> "list[asyncio.Future[Any]]":
    """Start polls that wait at the orchestrator, each with its learner and progress."""
    pending = [asyncio.ensure_future(remote.poll(*poll)) for poll in polls]
    mailboxes = run.orchestrator._mailboxes
    await wait_until(lambda: sum(len(box._arrived._waiters) for box in mailboxes) == len(polls))
    assert not any(poll.done() for poll in pending)
    return pending


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event announces."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def header(cycle: int = 1, attempt: int = 1) -> Any:
    """Return the header of an update of 300 visits."""
    return protocol.to_builtins(
        protocol.UpdateHeader(
            cycle=cycle,
            attempt=attempt,
            visits=300,
            planned_visits=300,
            shipped=0,
            loss=0.5,
            phases=(0.0,) * 6,
        )
    )

"""An orchestrator that a test plays for one learner: it repeats work after a restart of either."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from melisma import axon
from melisma.atomic import write_atomic
from melisma.errors import SupersededError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import encode_shard
from melisma.live import protocol
from melisma.live.protocol import AnyInstruction, ShardRef
from tests.live.learner import counting_task

TASK = Task(
    name="counting",
    model=f"{counting_task.__name__}:Counting",
    data=f"{counting_task.__name__}:make_data",
    scheme="equal",
    passes=2,
    deadline_s=600.0,
    cycles=1,
    batch=7,
    shard_samples=20,
    overlap=False,
    extension=False,
    optimizer=OptimizerSettings(lr=0.1),
)
ANSWER_S = 60.0
METHODS = ["register", "join", "poll", "upload_update", "probe_uplink", "release_shards"]
METHODS += ["request_shards", "report_costs", "report_bound", "report_failure"]


class PlayedOrchestrator:
    """Serves shards and a model to one learner; the test puts instructions and reads updates."""

    def __init__(self, task: Task = TASK, run: str = "r1") -> None:
        self.task, self.run, self.token = task, run, "secret-of-the-learner"
        (samples, labels), _ = counting_task.make_data()
        self.splits = [
            Split(samples[start : start + 20], labels[start : start + 20])
            for start in range(0, len(labels), 20)
        ]
        contents = [encode_shard(split) for split in self.splits]
        self.shards = [
            ShardRef(number, hashlib.sha256(content).hexdigest(), len(content), 20)
            for number, content in enumerate(contents)
        ]
        model = counting_task.Counting(task).initial()
        self.files = {
            shard.sha256: content for shard, content in zip(self.shards, contents, strict=True)
        }
        self.files["model-1.safetensors"] = save(model)
        self.files[protocol.INITIAL_MODEL] = save(model)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.updates: list[tuple[protocol.UpdateHeader, dict[str, NDArray[Any]]]] = []
        self._changed = threading.Condition(threading.RLock())
        self._pending: list[AnyInstruction] = []
        self.failure: Exception | None = None
        self._session = ""

    def train(self, *numbers: int, seconds_left: float = 600.0, **changes: Any) -> protocol.Train:
        """Return an assignment with these shards."""
        settings = {"cycle": 1, "attempt": 1, "model": "model-1.safetensors", "passes": 2}
        shards = tuple(self.shards[number] for number in numbers)
        return protocol.Train(**settings | changes, seconds_left=seconds_left, shards=shards)  # type: ignore[arg-type]

    def extend(self, attempt: int, *numbers: int) -> protocol.ExtendTraining:
        """Return an extension by these shards."""
        shards = tuple(self.shards[number] for number in numbers)
        return protocol.ExtendTraining(1, attempt, 2, shards)

    def put(self, *instructions: AnyInstruction) -> None:
        """Answer the next poll with these."""
        with self._changed:
            self._pending += instructions
            self._changed.notify_all()

    def wait_for(self, condition: Any) -> None:
        """Wait until a condition on the calls is true."""
        with self._changed:
            assert self._changed.wait_for(condition, ANSWER_S)

    def registered(self) -> protocol.RegisterResponse:
        return protocol.RegisterResponse(0, self.run, self.task, tuple(self.shards[:2]), begun=True)

    def call(self, method: str, *args: Any, body_bytes: int = 0) -> Any:
        """Carry out what a learner calls, as `Connection` does."""
        del body_bytes
        with self._changed:
            self.calls.append((method, args))
            self._changed.notify_all()
            if self.failure is not None and method == "upload_update":
                raise self.failure
            if method == "upload_update":
                header = protocol.parse(args[1], protocol.UpdateHeader)
                arrays = {name: np.array(array) for name, array in args[2].items()}
                self.updates.append((header, arrays))
                return ""
            if method == "join":
                self.start_session(args[0])
            if method == "poll":
                return self._poll(args[0])
            return protocol.to_builtins(self.registered()) if method == "register" else None

    def call_timed(self, method: str, *args: Any, body_bytes: int = 0) -> tuple[Any, float]:
        """Carry out a call at the first attempt."""
        return self.call(method, *args, body_bytes=body_bytes), 0.0

    def start_session(self, session: str) -> None:
        """Answer only this session from now on."""
        with self._changed:
            self._session = session
            self._changed.notify_all()

    def _poll(self, session: str) -> list[Any]:
        self._changed.wait_for(lambda: self._pending or session != self._session, ANSWER_S)
        if session != self._session:
            raise SupersededError("another session")
        taken, self._pending = self._pending, []
        return [protocol.to_builtins(instruction) for instruction in taken]

    def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
        """Yield the bytes of a file, as `Connection` does."""
        yield bytearray(self.files[name][start:])

    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        """Serve a learner process; yield the address."""
        for name, content in self.files.items():
            write_atomic(folder / name, content)
        worker = axon.Worker(port=0, token=self.token, files=lambda name, _caller: folder / name)
        methods = SimpleNamespace(**{name: self._method(name) for name in METHODS})
        worker.expose(methods, METHODS, name="")
        async with worker.listening() as address:
            yield address
            self.start_session("")

    def _method(self, name: str) -> Any:
        async def method(*args: Any) -> Any:
            return await asyncio.to_thread(self.call, name, *args)

        return method

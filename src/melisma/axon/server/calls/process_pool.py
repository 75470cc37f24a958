"""Processes for calls that hold the interpreter lock.

A process serves one call at a time and imports the function by name. Arguments and results are
transferred as messages. Cancelling a call kills its process; a process that dies fails only its
own call.
"""

import asyncio
import importlib
import multiprocessing
import signal
import time
from collections.abc import Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from melisma.axon.codec import records
from melisma.axon.codec.arrays import allocate_frame
from melisma.axon.codec.message import Buffer, Message
from melisma.axon.codec.outcome import Outcome, error_outcome
from melisma.axon.server.calls.context import CallContext, enter
from melisma.axon.server.calls.functions import POOL_PROCESS, ExposedFunction, run_function
from melisma.axon.server.calls.thread_pool import ThreadPool
from melisma.errors import AxonError

_spawn = multiprocessing.get_context("spawn")


class ProcessPool:
    """Processes, started on demand and reused."""

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads
        self._idle: list[_Child] = []
        self._closed = False

    async def run(
        self, exposed: ExposedFunction, message: Message, context: CallContext
    ) -> Outcome:
        """Run one call; cancelling this coroutine kills the process."""
        child = self._idle.pop() if self._idle else await self._threads.run(_Child)
        try:
            result = await self._threads.run(child.call, exposed, message, context)
        except (EOFError, OSError):
            died = (
                f"the process of {exposed.name} died (exit code {child.kill()}); it imports the "
                'script again, so put other work under if __name__ == "__main__":'
            )
            return error_outcome(AxonError(died))
        except asyncio.CancelledError:
            child.kill()
            raise
        if self._closed or not child.alive:
            child.kill()
        else:
            self._idle.append(child)
        return result

    def close(self) -> None:
        """Kill all idle processes; busy ones are killed after their calls."""
        self._closed = True
        while self._idle:
            self._idle.pop().kill()


class _Child:
    """One process and its pipe."""

    def __init__(self) -> None:
        self._pipe, child_pipe = _spawn.Pipe()
        self._process = _spawn.Process(
            target=_serve, args=(child_pipe,), name=POOL_PROCESS, daemon=True
        )
        self._process.start()
        child_pipe.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, exposed: ExposedFunction, message: Message, context: CallContext) -> Outcome:
        function = exposed.function
        import_path = [exposed.name, function.__module__, function.__qualname__]
        call_info = [context.id, context.caller, context.seconds_left]
        head = [import_path, call_info, len(message.frames)]
        _send(self._pipe, [msgspec.msgpack.encode(head), message.tree, *message.frames])
        answer = msgspec.msgpack.decode(self._pipe.recv_bytes())
        status, content_type, label, count = answer
        return Outcome(status, content_type, [_receive(self._pipe) for _ in range(count)], label)

    def kill(self) -> int | None:
        self._process.kill()
        self._process.join(5)
        return self._process.exitcode


def _serve(pipe: Connection) -> None:
    """Serve calls from the pipe; the parent handles Ctrl-C and lets calls end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            head = pipe.recv_bytes()
            import_path, (call_id, caller, left_s), frame_count = msgspec.msgpack.decode(head)
            tree, *frames = [_receive(pipe) for _ in range(frame_count + 1)]
        except EOFError:
            return
        exposed = _import_function(*import_path)
        deadline_at = None if left_s is None else time.monotonic() + left_s
        enter(CallContext(call_id, exposed.name, caller, deadline_at))
        outcome = run_function(exposed, Message(tree, frames))
        answer = [outcome.status, outcome.content_type, outcome.label, len(outcome.buffers)]
        _send(pipe, [msgspec.msgpack.encode(answer), *outcome.buffers])


@lru_cache
def _import_function(name: str, module: str, qualname: str) -> ExposedFunction:
    function = getattr(importlib.import_module(module), qualname)
    types = records.record_types(records.type_hints(function).values())
    return ExposedFunction(name, function, "function", "simplex", "process", types)


def _send(pipe: "Connection[Any, Any]", buffers: Sequence[Buffer]) -> None:
    """Send the first buffer as it is and each further one after its size."""
    for number, buffer in enumerate(buffers):
        if number:
            pipe.send_bytes(memoryview(buffer).nbytes.to_bytes(8, "little"))
        pipe.send_bytes(buffer)


def _receive(pipe: "Connection[Any, Any]") -> memoryview:
    buffer = allocate_frame(int.from_bytes(pipe.recv_bytes(), "little"))
    if buffer.nbytes:
        pipe.recv_bytes_into(buffer)
    else:
        pipe.recv_bytes()
    return buffer

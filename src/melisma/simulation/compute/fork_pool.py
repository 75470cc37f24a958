"""A pool of forked processes: each shares the memory that this process had when it was forked.

Samples and models need not be sent; only new items are. Arrays in results are passed through shared
memory, as a process that writes to a pipe has to wait until the other end reads. Small training
steps are mostly Python, of which one process runs one thread at a time: processes use cores that
threads would leave idle.
"""

import ctypes
import mmap
import multiprocessing
import os
import pickle  # noqa: TID251 - only between a process and its own forks, as pipes do
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from melisma.errors import MelismaWarning
from melisma.simulation.compute.memory import keep_freed_memory

Common = TypeVar("Common")
Item = TypeVar("Item")
Result = TypeVar("Result")
PR_SET_PDEATHSIG = 1  # of Linux's `prctl`
SIGNALS = {signal.SIGINT, signal.SIGTERM}


def can_fork() -> bool:
    """Return whether forking is safe: no other Python thread can hold a lock for ever.

    Threads of numerical libraries only wait for work, which a forked process does not give them.
    """
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return sys.platform == "linux" and alone


class ForkPool(Generic[Common, Item, Result]):
    """A number of processes that each call `work`; `begin` is called once in each of them.

    Arrays in results go through shared memory of `buffer_bytes`, or the pipe if they do not fit.
    """

    def __init__(
        self,
        work: Callable[[Common, Item], Result],
        size: int,
        begin: Callable[[], object] = lambda: None,
        buffer_bytes: int = 0,
    ) -> None:
        self._work = work
        self._busy: dict[Connection, tuple[int, Item]] = {}
        self._pipes, self._processes = list[Connection](), list[BaseProcess]()
        self._buffers: dict[Connection, SharedBuffer] = {}
        with warnings.catch_warnings():
            # Python warns of forks beside threads; `can_fork` tells which of them are safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Where no more processes can be forked, the pool is smaller.
            with suppress(OSError):
                for _ in range(size):
                    self._fork(begin, SharedBuffer(buffer_bytes))

    def _fork(self, begin: Callable[[], object], buffer: "SharedBuffer") -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        self._buffers[here] = buffer
        arguments = (os.getpid(), there, buffer, self._work, begin, [*self._pipes, here])
        process = context.Process(target=_serve, args=arguments, daemon=True)
        # Block signals until the process has set its own handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self._pipes.append(here)
        self._processes.append(process)

    def map(self, common: Common, items: Iterable[Item]) -> Iterator[Result]:
        """Yield the result of each item, in their order; `common` is sent once to each process.

        An item that fails in a process is tried again in this one when its turn comes, so that
        the first item in order that fails raises its exception. If it succeeds here, the
        processes are at fault, and this one does all further work.
        """
        try:
            yield from self._map(common, items)
        finally:
            # A process that is still busy would send its result to the next call.
            for pipe in [pipe for pipe in self._pipes if pipe in self._busy]:
                self._pipes.remove(pipe)
                pipe.close()
            self._busy = {}

    def _map(self, common: Common, items: Iterable[Item]) -> Iterator[Result]:
        left, results = enumerate(items), dict[int, Result]()
        failures: dict[int, tuple[Item, str]] = {}
        busy = self._busy
        wanted, free, new = 0, [*self._pipes], {*self._pipes}
        while True:
            for pipe in [*free]:
                if (numbered := next(left, None)) is not None:
                    free.remove(pipe)
                    busy[pipe] = numbered
                    # Nothing can be sent to a dead process; `_receive` notices it too.
                    with suppress(OSError):
                        pipe.send((numbered[1], common) if pipe in new else (numbered[1],))
                    new.discard(pipe)
            # Yield only now, with all processes busy.
            while wanted in results or wanted in failures:
                if wanted in failures:
                    results[wanted] = self._retry(common, *failures.pop(wanted))
                yield results.pop(wanted)
                wanted += 1
            if not busy:
                yield from (self._work(common, item) for _, item in left)
                return
            ready = wait([*busy])
            for pipe in [pipe for pipe in busy if pipe in ready]:
                number, item = busy[pipe]
                values, failure = self._receive(pipe)
                del busy[pipe]
                if failure:
                    failures[number] = item, failure
                else:
                    results[number] = values[0]
                    free += [pipe] if pipe in self._pipes else []

    def _receive(self, pipe: Connection) -> tuple[tuple[Result, ...], str]:
        """Return the result of a process and an empty string, or no result and its failure."""
        try:
            received: tuple[tuple[Result, ...], str] = self._buffers[pipe].read(pipe.recv())
        except (EOFError, OSError):
            return (), "a process died"
        return received

    def _retry(self, common: Common, item: Item, failure: str) -> Result:
        """Compute an item here; if it succeeds, use the processes no more."""
        result = self._work(common, item)
        if self._pipes:
            message = f"training in one process, as forked processes fail: {failure}"
            warnings.warn(message, MelismaWarning, stacklevel=2)
        self._pipes = []
        return result

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._pipes, self._processes, self._buffers = [], [], {}


class SharedBuffer:
    """Memory shared by a process and its forks, in which one leaves arrays for the other."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(size_bytes, 1))

    def write(self, value: object) -> tuple[bytes, list[int]]:
        """Store the arrays of a value in place of the previous ones; return the rest.

        If they do not fit, everything is returned.
        """
        buffers = list[pickle.PickleBuffer]()
        rest = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        arrays = [buffer.raw() for buffer in buffers]
        edges = [*accumulate((array.nbytes for array in arrays), initial=0)]
        if edges[-1] > len(self._memory):
            return pickle.dumps(value, protocol=5), [0]
        for array, (start, end) in zip(arrays, pairwise(edges), strict=True):
            self._memory[start:end] = array
        return rest, edges

    def read(self, written: tuple[bytes, list[int]]) -> Any:
        """Return the value, with copies of its arrays."""
        rest, edges = written
        with memoryview(self._memory) as memory:
            arrays = [bytearray(memory[start:end]) for start, end in pairwise(edges)]
        return pickle.loads(rest, buffers=arrays)  # noqa: S301 - a fork of this process wrote it


def _serve(
    parent: int,
    pipe: Connection,
    buffer: SharedBuffer,
    work: Callable[[Common, Item], Result],
    begin: Callable[[], object],
    others: Sequence[Connection],
) -> None:
    # A pipe stays open while any process holds its other end; this one must end with its parent.
    for other in others:
        other.close()
    _end_with(parent)
    # Signals are for the parent; do not wake its event loop.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    keep_freed_memory()
    begin()
    common: list[Common] = []
    # The pipe breaks when the parent ends.
    with suppress(EOFError, OSError):
        while True:
            item, *update = pipe.recv()
            common = update or common
            try:
                written = buffer.write(((work(common[0], item),), ""))
            except Exception as error:  # noqa: BLE001 - the parent tries the item again
                written = buffer.write(((), f"{type(error).__name__}: {error}"))
            pipe.send(written)


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, even during work."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()

"""Processes that share work with this one: each knows all that it knew when they were forked.

Samples and models need not be sent; only what is new is, and arrays that were made are left in
memory that both see, for whoever is written to through a pipe has to wait until the other reads.
Python runs one thread at a time, and small steps are mostly Python: processes use cores that
threads would leave idle.
"""

import ctypes
import mmap
import multiprocessing
import os
import pickle  # noqa: TID251 - between a process and those that it forked itself, as pipes do
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
PR_SET_PDEATHSIG = 1  # of `prctl` in Linux
SIGNALS = {signal.SIGINT, signal.SIGTERM}


def can_fork() -> bool:
    """Whether a fork is safe: no other thread of Python's can hold a lock that is never free then.

    Those of numerical libraries only wait for work, and a process has none for them.
    """
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return sys.platform == "linux" and alone


class ForkPool(Generic[Common, Item, Result]):
    """So many processes; `begin` is called once in each of them.

    Arrays that one makes go through the pipe, unless they find room in memory that both see.
    """

    def __init__(
        self,
        work: Callable[[Common, Item], Result],
        size: int,
        begin: Callable[[], object] = lambda: None,
        room_bytes: int = 0,
    ) -> None:
        self._work = work
        self._busy: dict[Connection, tuple[int, Item]] = {}
        self._lines, self._processes = list[Connection](), list[BaseProcess]()
        self._stores: dict[Connection, SharedBuffer] = {}
        context = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            # Threads of libraries that wait for work are not in the way of a process that has one.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Where no more can be forked, there are fewer.
            with suppress(OSError):
                for _ in range(size):
                    (here, there), store = context.Pipe(), SharedBuffer(room_bytes)
                    self._stores[here] = store
                    given = (os.getpid(), there, store, work, begin, [*self._lines, here])
                    process = context.Process(target=_serve, args=given, daemon=True)
                    # Signals wait until the process has its own way with them.
                    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
                    try:
                        process.start()
                    finally:
                        signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    there.close()
                    self._lines.append(here)
                    self._processes.append(process)

    def map(self, common: Common, given: Iterable[Item]) -> Iterator[Result]:
        """What the work makes of each, in their order; what is common to all is sent once.

        What fails in a process, or with it, is tried once more in this one, and may fail here; if
        it does not, something is wrong with the processes, and all is done here from then on.
        """
        try:
            yield from self._mapped(common, given)
        finally:
            # Who was not waited for would answer next time.
            for line in [each for each in self._lines if each in self._busy]:
                self._lines.remove(line)
                line.close()
            self._busy = {}

    def _mapped(self, common: Common, given: Iterable[Item]) -> Iterator[Result]:
        left, made = enumerate(given), dict[int, Result]()
        busy = self._busy
        wanted, free, new = 0, [*self._lines], {*self._lines}
        while True:
            for line in [*free]:
                if (item := next(left, None)) is not None:
                    free.remove(line)
                    busy[line] = item
                    # To one that is gone nothing can be sent; nothing is heard of it either.
                    with suppress(OSError):
                        line.send((item[1], common) if line in new else (item[1],))
                    new.discard(line)
            # Now that all are at work.
            while wanted in made:
                yield made.pop(wanted)
                wanted += 1
            if not busy:
                yield from (self._work(common, each) for _, each in left)
                return
            ready = wait([*busy])
            for line in [each for each in busy if each in ready]:
                number, each = busy[line]
                made[number] = self._heard(line, common, each)
                del busy[line]
                free += [line] if line in self._lines else []

    def close(self) -> None:
        """End them."""
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._lines, self._processes, self._stores = [], [], {}

    def _heard(self, line: Connection, common: Common, given: Item) -> Result:
        try:
            done, wrong = self._stores[line].read(line.recv())
        except (EOFError, OSError):
            done, wrong = (), "one of them is gone"
        if done:
            found: Result = done[0]
            return found
        made = self._work(common, given)
        if self._lines:
            said = f"trained in one process, as others fail: {wrong}"
            warnings.warn(said, MelismaWarning, stacklevel=2)
        self._lines = []
        return made


class SharedBuffer:
    """Memory that a process and those that it forks see, for what one leaves for another."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(size_bytes, 1))

    def write(self, thing: object) -> tuple[bytes, list[int]]:
        """Leave the arrays of a thing there, instead of what was; the rest is returned.

        Where there is no room for them, all is returned.
        """
        found = list[pickle.PickleBuffer]()
        rest = pickle.dumps(thing, protocol=5, buffer_callback=found.append)
        arrays = [each.raw() for each in found]
        edges = [*accumulate((array.nbytes for array in arrays), initial=0)]
        if edges[-1] > len(self._memory):
            return pickle.dumps(thing, protocol=5), [0]
        for array, (start, end) in zip(arrays, pairwise(edges), strict=True):
            self._memory[start:end] = array
        return rest, edges

    def read(self, written: tuple[bytes, list[int]]) -> Any:
        """The thing, with arrays of its own."""
        rest, edges = written
        with memoryview(self._memory) as memory:
            arrays = [bytearray(memory[start:end]) for start, end in pairwise(edges)]
        return pickle.loads(rest, buffers=arrays)  # noqa: S301 - a process of our own wrote it


def _serve(
    parent: int,
    line: Connection,
    store: SharedBuffer,
    work: Callable[[Common, Item], Result],
    begin: Callable[[], object],
    others: Sequence[Connection],
) -> None:
    # Whoever holds the other end of a line keeps it open; this process is to end with its parent.
    for each in others:
        each.close()
    _end_with(parent)
    # Signals are the parent's: none is passed on to what listens to them there.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    keep_freed_memory()
    begin()
    common: list[Common] = []
    # Until the parent is gone.
    with suppress(EOFError, OSError):
        while True:
            given, *told = line.recv()
            common = told or common
            try:
                made = store.write(((work(common[0], given),), ""))
            except Exception as error:  # noqa: BLE001 - the parent tries it again
                made = store.write(((), f"{type(error).__name__}: {error}"))
            line.send(made)


def _end_with(parent: int) -> None:
    """Be killed when the parent is gone, in the midst of work too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()

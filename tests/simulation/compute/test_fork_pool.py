"""Processes that share work, and simulations that train with them."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from melisma.simulation.compute.fork_pool import ForkPool, SharedBuffer, can_fork


def known(power: int, number: int) -> tuple[int, int]:
    """A number, and who computed it."""
    time.sleep(0.01 * (number % 3))
    return number**power, os.getpid()


def doomed(_: int, number: int) -> int:
    if number == 3:
        raise ValueError("three is too many")
    return number


def killed(_: int, number: int) -> int:
    """It ends the process it is in, unless that is the one that tests."""
    if number == 2 and multiprocessing.current_process().daemon:
        os.kill(os.getpid(), signal.SIGKILL)
    return -number


@pytest.fixture
def crews() -> Iterator[list[ForkPool[int, int, object]]]:
    made: list[ForkPool[int, int, object]] = []
    yield made
    for crew in made:
        crew.close()


def test_work_is_shared_and_comes_back_in_order(crews: list[ForkPool[int, int, object]]) -> None:
    crew = ForkPool(known, 2)
    crews.append(crew)  # type: ignore[arg-type]
    for power, count in ((2, 1), (3, 7), (2, 9)):
        found = list(crew.map(power, range(count)))
        assert [number for number, _ in found] == [number**power for number in range(count)]
    assert os.getpid() not in {who for _, who in found}
    assert len({who for _, who in found}) == 2


def test_what_fails_in_a_process_fails_here_and_leaves_nothing_behind(
    crews: list[ForkPool[int, int, object]],
) -> None:
    crew = ForkPool(doomed, 2)
    crews.append(crew)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="three is too many"):
        list(crew.map(0, range(5)))
    assert list(crew.map(0, [7, 8, 9])) == [7, 8, 9]


def test_who_was_not_waited_for_does_not_answer_next_time(
    crews: list[ForkPool[int, int, object]],
) -> None:
    crew = ForkPool(known, 3)
    crews.append(crew)  # type: ignore[arg-type]
    broken_off = crew.map(5, range(3))
    next(broken_off)
    broken_off.close()  # type: ignore[attr-defined]
    assert [number for number, _ in crew.map(2, range(9))] == [n**2 for n in range(9)]


@pytest.mark.parametrize("size", [1, 2])
def test_what_a_process_takes_with_it_is_done_here_and_so_is_the_rest(
    size: int, crews: list[ForkPool[int, int, object]]
) -> None:
    crew = ForkPool(killed, size)
    crews.append(crew)  # type: ignore[arg-type]
    expected = [-number for number in range(6)]
    with pytest.warns(UserWarning, match="in one process, as others fail: one of them is gone"):
        assert list(crew.map(0, range(6))) == expected
    assert list(crew.map(0, range(6))) == expected


def test_where_nobody_can_be_forked_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", refused)
    crew = ForkPool(known, 2)
    assert [*crew.map(2, range(3))] == [(number**2, os.getpid()) for number in range(3)]


ORPHANED = """
import os, sys, time
from melisma.simulation.compute.fork_pool import ForkPool

def endless(common, given):
    os.write(1, f"{os.getpid()}{os.linesep}".encode())
    time.sleep(600)

next(ForkPool(endless, 2).map(0, range(2)))
"""


def test_nobody_outlives_the_parent_in_the_midst_of_work() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANED], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    children = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert psutil.wait_procs(children, 10)[1] == []


INTERRUPTED = """
import multiprocessing.util, os, signal
from melisma.simulation.compute.fork_pool import ForkPool

multiprocessing.util.register_after_fork(signal, lambda _: os.kill(os.getpid(), signal.SIGINT))
crew = ForkPool(lambda common, given: given, 1)
try:
    print(list(crew.map(0, range(3))))
finally:
    crew.close()
"""


def test_a_signal_just_after_the_fork_is_the_parents() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n", "")


def test_nobody_is_left_when_it_is_closed() -> None:
    before = {child.pid for child in psutil.Process().children()}
    before_that = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        crew = ForkPool(known, 2)
    finally:
        signal.signal(signal.SIGTERM, before_that)
    assert len({child.pid for child in psutil.Process().children()} - before) == 2
    crew.close()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_nobody_forks_beside_another_thread() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        done.set()
        thread.join()


SIMULATED = """
import json

import msgspec

from melisma.fleet.fleet_file import FleetTable
from melisma.fleet.fleet_builder import muster
from melisma.fleet.task import Task
from melisma.simulation import crew, work
from melisma.simulation.simulation import play, stage

forked = []


class Counted(crew.ForkPool):
    def __init__(self, *given):
        forked.append(given[1])
        super().__init__(*given)


def simulated(level, fork, keep=False):
    work.can_fork = lambda: fork and crew.can_fork()
    forked.clear()
    said = {"name": "t", "model": "twonn", "data": "mnist", "mode": "federated", "scheme": "equal",
            "passes": 1, "deadline_s": 60.0, "cycles": 2, "shard_samples": 200, "batch": 100,
            "optimizer": {"lr": 0.1, "keep": keep}, "simulation": {"work": level}}
    report = play(stage(msgspec.convert(said, Task), fleet))
    return [[*forked], report.accuracy, [cycle.loss for cycle in report.cycles]]


work.ForkPool = Counted
group = {"count": 60, "samples_per_s": 1e4, "bandwidth_bps": 1e9, "latency_s": 0.01}
fleet = muster(msgspec.convert({"group": [group]}, FleetTable))
found = {f"{level} {fork}": simulated(level, fork) for level in ("train", "batched")
         for fork in (False, True)}
print(json.dumps(found | {"keep": simulated("train", True, True)}))
"""


def test_a_simulation_trains_the_same_with_others_as_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    )
    assert not done.stderr
    found = json.loads(done.stdout)
    for level in ("train", "batched"):
        (mine, *alone), (theirs, *together) = found[f"{level} False"], found[f"{level} True"]
        assert (mine, theirs) == ([], [2])
        assert together == alone
    # What an optimiser keeps stays in one process.
    assert found["keep"][0] == []


@pytest.mark.parametrize("size_bytes", [0, 479, 480, 10_000])
def test_arrays_are_left_for_others_and_read_once_more(size_bytes: int) -> None:
    store = SharedBuffer(size_bytes)
    for size in (30, 4):
        whole = np.arange(size)
        arrays = [whole / 3, whole.reshape(2, -1), whole[::2], np.empty((0, 3))]
        written = store.write(["arrays", *arrays])
        # Those that do not lie in one piece are told with the rest.
        left_bytes = sum(array.nbytes for array in arrays[:2])
        assert written[1][-1] == (left_bytes if left_bytes <= size_bytes else 0)
        told, *found = store.read(written)
        assert told == "arrays"
        for array, again in zip(arrays, found, strict=True):
            assert (again.dtype, again.shape) == (array.dtype, array.shape)
            assert np.array_equal(again, array)
        found[0][:] = 5.0  # it is the reader's own
        assert np.array_equal(store.read(written)[1], arrays[0])

"""Forked processes, and simulations that train with them."""

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


def raise_to(power: int, number: int) -> tuple[int, int]:
    """Return a power, and the process that computed it."""
    time.sleep(0.01 * (number % 3))
    return number**power, os.getpid()


def fail_on_three(_: int, number: int) -> int:
    if number == 3:
        raise ValueError("three is too many")
    return number


def fail_slowly_on_zero(_: int, number: int) -> int:
    """Fail on every number, on 0 last of all."""
    if number == 0 and multiprocessing.current_process().daemon:
        time.sleep(0.3)
    raise ValueError(f"{number} fails")


def kill_own_process(_: int, number: int) -> int:
    """Kill the process of the pool that runs this."""
    if number == 2 and multiprocessing.current_process().daemon:
        os.kill(os.getpid(), signal.SIGKILL)
    return -number


@pytest.fixture
def pools() -> Iterator[list[ForkPool[int, int, object]]]:
    opened: list[ForkPool[int, int, object]] = []
    yield opened
    for pool in opened:
        pool.close()


def test_work_is_shared_and_comes_back_in_order(pools: list[ForkPool[int, int, object]]) -> None:
    pool = ForkPool(raise_to, 2)
    pools.append(pool)  # type: ignore[arg-type]
    for power, count in ((2, 1), (3, 7), (2, 9)):
        found = list(pool.map(power, range(count)))
        assert [number for number, _ in found] == [number**power for number in range(count)]
    assert os.getpid() not in {process for _, process in found}
    assert len({process for _, process in found}) == 2


def test_an_item_that_fails_raises_here_and_the_pool_stays_usable(
    pools: list[ForkPool[int, int, object]],
) -> None:
    pool = ForkPool(fail_on_three, 2)
    pools.append(pool)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="three is too many"):
        list(pool.map(0, range(5)))
    assert list(pool.map(0, [7, 8, 9])) == [7, 8, 9]


def test_of_several_items_that_fail_the_first_in_order_raises(
    pools: list[ForkPool[int, int, object]],
) -> None:
    pool = ForkPool(fail_slowly_on_zero, 2)
    pools.append(pool)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 fails"):
        list(pool.map(0, range(4)))


def test_results_of_an_abandoned_map_are_not_returned_by_the_next(
    pools: list[ForkPool[int, int, object]],
) -> None:
    pool = ForkPool(raise_to, 3)
    pools.append(pool)  # type: ignore[arg-type]
    abandoned = pool.map(5, range(3))
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]
    assert [number for number, _ in pool.map(2, range(9))] == [n**2 for n in range(9)]


@pytest.mark.parametrize("size", [1, 2])
def test_when_a_process_dies_this_process_does_its_work_and_the_rest(
    size: int, pools: list[ForkPool[int, int, object]]
) -> None:
    pool = ForkPool(kill_own_process, size)
    pools.append(pool)  # type: ignore[arg-type]
    expected = [-number for number in range(6)]
    with pytest.warns(
        UserWarning, match="in one process, as forked processes fail: a process died"
    ):
        assert list(pool.map(0, range(6))) == expected
    assert list(pool.map(0, range(6))) == expected


def test_without_forks_this_process_does_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", refuse)
    pool = ForkPool(raise_to, 2)
    assert [*pool.map(2, range(3))] == [(number**2, os.getpid()) for number in range(3)]


ORPHANED = """
import os, sys, time
from melisma.simulation.compute.fork_pool import ForkPool

def endless(common, item):
    os.write(1, f"{os.getpid()}{os.linesep}".encode())
    time.sleep(600)

next(ForkPool(endless, 2).map(0, range(2)))
"""


def test_no_process_outlives_its_parent_even_during_work() -> None:
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
pool = ForkPool(lambda common, item: item, 1)
try:
    print(list(pool.map(0, range(3))))
finally:
    pool.close()
"""


def test_a_signal_just_after_the_fork_is_for_the_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n", "")


def test_no_process_is_left_after_close() -> None:
    before = {child.pid for child in psutil.Process().children()}
    before_that = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        pool = ForkPool(raise_to, 2)
    finally:
        signal.signal(signal.SIGTERM, before_that)
    assert len({child.pid for child in psutil.Process().children()} - before) == 2
    pool.close()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_forking_beside_another_thread_is_unsafe() -> None:
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

from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.task import Task
from melisma.simulation.compute import fork_pool, real_training
from melisma.simulation.simulation import prepare, run

sizes = []


class CountedPool(fork_pool.ForkPool):
    def __init__(self, *arguments):
        sizes.append(arguments[1])
        super().__init__(*arguments)


def simulate(level, fork, keep=False):
    real_training.can_fork = lambda: fork and fork_pool.can_fork()
    sizes.clear()
    task = {"name": "t", "model": "twonn", "data": "mnist", "mode": "federated", "scheme": "equal",
            "passes": 1, "deadline_s": 60.0, "cycles": 2, "shard_samples": 200, "batch": 100,
            "extension": False,
            "optimizer": {"lr": 0.1, "keep": keep}, "simulation": {"work": level}}
    report = run(prepare(msgspec.convert(task, Task), fleet))
    return [[*sizes], report.accuracy, [cycle.loss for cycle in report.cycles]]


real_training.ForkPool = CountedPool
group = {"count": 60, "samples_per_s": 1e4, "bandwidth_bps": 1e9, "latency_s": 0.01}
fleet = build_fleet(msgspec.convert({"group": [group]}, FleetTable))
results = {f"{level} {fork}": simulate(level, fork) for level in ("train", "batched")
           for fork in (False, True)}
print(json.dumps(results | {"keep": simulate("train", True, True)}))
"""


@pytest.mark.slow
def test_a_simulation_trains_the_same_with_forked_processes_as_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    )
    assert not done.stderr
    results = json.loads(done.stdout)
    for level in ("train", "batched"):
        (no_pool, *alone), (pool, *together) = results[f"{level} False"], results[f"{level} True"]
        assert (no_pool, pool) == ([], [2])
        assert together == alone
    # The state of an optimiser stays in one process.
    assert results["keep"][0] == []


@pytest.mark.parametrize("size_bytes", [0, 479, 480, 10_000])
def test_a_shared_buffer_returns_the_arrays_that_were_written(size_bytes: int) -> None:
    buffer = SharedBuffer(size_bytes)
    for size in (30, 4):
        whole = np.arange(size)
        arrays = [whole / 3, whole.reshape(2, -1), whole[::2], np.empty((0, 3))]
        written = buffer.write(["arrays", *arrays])
        # Arrays that are not contiguous stay in the pickle.
        buffer_bytes = sum(array.nbytes for array in arrays[:2])
        assert written[1][-1] == (buffer_bytes if buffer_bytes <= size_bytes else 0)
        label, *copies = buffer.read(written)
        assert label == "arrays"
        for array, copy in zip(arrays, copies, strict=True):
            assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
            assert np.array_equal(copy, array)
        copies[0][:] = 5.0
        assert np.array_equal(buffer.read(written)[1], arrays[0])

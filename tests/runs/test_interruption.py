import os
import signal
import threading

import pytest

from melisma.runs.interruption import interruptible
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.fault_search import search_faults
from tests.simulation.scenarios import make_scenario


def lost(number: signal.Signals) -> None:
    """A signal that is taken for something else."""
    try:
        os.kill(os.getpid(), number)
        threading.Event().wait(5)
    except KeyboardInterrupt:
        pass


def test_a_run_ends_by_a_signal_that_was_lost_on_the_way() -> None:
    steps = list[object]()

    def watch(step: object) -> None:
        steps.append(step)
        if len(steps) == 3:
            lost(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Driver(make_scenario(), TimingOnly(), watch).run()
    assert len(steps) < 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_fault_search_ends_between_two_schedules() -> None:
    tried = search_faults(lambda _: make_scenario(), range(100))
    next(tried)
    lost(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(tried)


def test_who_listens_to_signals_in_another_way_is_left_alone() -> None:
    before, heard = signal.getsignal(signal.SIGTERM), list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with interruptible() as check:
            signal.raise_signal(signal.SIGTERM)
            check()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_beside_the_main_thread_nothing_is_listened_to() -> None:
    found = list[object]()

    def listen() -> None:
        with interruptible() as check:
            check()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]

import os
import signal
import threading
from sys import _current_frames
from time import sleep
from traceback import walk_stack

import pytest

from melisma.runs.interruption import CallerThread, Cancellation, interruptible, run_in_thread
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.fault_search import search_faults
from tests.simulation.scenarios import make_scenario


def swallow_signal(number: signal.Signals) -> None:
    """Send a signal to this process and swallow the `KeyboardInterrupt`, as C code may do."""
    try:
        os.kill(os.getpid(), number)
        threading.Event().wait(5)
    except KeyboardInterrupt:
        pass


def test_a_swallowed_signal_still_ends_a_run() -> None:
    steps = list[object]()

    def watch(step: object) -> None:
        steps.append(step)
        if len(steps) == 3:
            swallow_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Driver(make_scenario(), TimingOnly(), watch).run()
    assert len(steps) < 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_fault_search_ends_between_two_schedules() -> None:
    tried = search_faults(lambda _: make_scenario(), range(100))
    next(tried)
    swallow_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(tried)


def test_signal_handlers_of_the_caller_are_not_replaced() -> None:
    before, received = signal.getsignal(signal.SIGTERM), list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with interruptible() as check:
            signal.raise_signal(signal.SIGTERM)
            check()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


def test_outside_the_main_thread_no_handler_is_replaced() -> None:
    handlers = list[object]()

    def record_handler() -> None:
        with interruptible() as check:
            check()
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=record_handler)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def interrupt_main_thread() -> None:
    """Send SIGINT once the main thread waits for the result of `run_in_thread`."""
    main = threading.main_thread().ident
    assert main is not None
    while not any(
        frame.f_code is CallerThread.serve.__code__
        for frame, _ in walk_stack(_current_frames()[main])
    ):
        sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_cancels_a_run_in_a_thread_and_keeps_its_result() -> None:
    cancelled, cancellation = threading.Event(), Cancellation()
    cancellation.on_request(cancelled.set)

    def work() -> str:
        interrupt_main_thread()
        assert cancelled.wait(5)
        return "result"

    assert run_in_thread(work, cancellation, "test") == "result"


def test_a_second_ctrl_c_does_not_wait_for_the_result() -> None:
    cancellation, release = Cancellation(), threading.Event()
    again = threading.Thread(target=interrupt_main_thread)
    cancellation.on_request(again.start)

    def work() -> None:
        interrupt_main_thread()
        release.wait(5)

    with pytest.raises(KeyboardInterrupt):
        run_in_thread(work, cancellation, "test")
    release.set()
    again.join()


@pytest.mark.parametrize("moment", ["before the thread starts", "after the thread starts"])
def test_ctrl_c_during_the_start_of_the_thread_cancels_and_runs_the_work_once(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    cancelled, cancellation = threading.Event(), Cancellation()
    cancellation.on_request(cancelled.set)
    starts, calls = list[str](), list[str]()
    start = threading.Thread.start

    def interrupt_first_start(thread: threading.Thread) -> None:
        starts.append(thread.name)
        if len(starts) == 1:
            if moment == "after the thread starts":
                start(thread)
            raise KeyboardInterrupt
        start(thread)

    def work() -> str:
        calls.append("work")
        assert cancelled.wait(5)
        return "result"

    monkeypatch.setattr(threading.Thread, "start", interrupt_first_start)
    assert run_in_thread(work, cancellation, "test") == "result"
    assert calls == ["work"]


def test_cancellation_requested_before_the_run_can_be_cancelled_is_not_lost() -> None:
    cancellation, calls = Cancellation(), list[str]()
    cancellation.request()
    cancellation.on_request(lambda: calls.append("cancelled"))
    assert calls == ["cancelled"]


def test_an_error_in_the_thread_is_raised_in_the_caller() -> None:
    def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_in_thread(work, Cancellation(), "test")

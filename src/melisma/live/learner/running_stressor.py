"""Stressors: work that competes with training while a learner works, in a thread of its process.

A stressor is a function that is called with `stop`, and calls that between small pieces of its work
until it returns True; if it returns earlier, it is called again. On an emulated device `stop` paces
the thread, and counts its processor time as taken from training. That of a download does not count,
like that of other transfers.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

from melisma.errors import (
    SettingError,
    SupersededError,
    UnauthorizedError,
    UnreachableError,
    UnregisteredError,
)
from melisma.fleet.stressors import DOWNLOADING, MATRIX_SIDE, TRAINING
from melisma.live.learner.device import Device
from melisma.live.learner.trusted_code import Files, import_allowed
from melisma.live.protocol import STRESS_MATRIX
from melisma.user_code import describe_error

Stop = Callable[[], bool]
Stress = Callable[[Stop], object]
ROWS_AT_ONCE: Final = 10
"""A part of a product takes about a millisecond, so that a slow device is paced evenly."""
END_S: Final = 5.0
"""Time in which a function of the user has to end."""
ENDS_SESSION: Final = (UnreachableError, UnregisteredError, SupersededError, UnauthorizedError)
"""Errors of a download that say nothing about the stressor: the run may have ended."""


class Stressors:
    """The stressors of a device; a function of the user has to be in one of `allowed` modules."""

    def __init__(self, device: Device, orchestrator: Files, allowed: Iterable[str]) -> None:
        self._device = device
        self._functions: dict[str, Stress] = {}
        modules = tuple(allowed)
        for name in {state.stress for state in device.states} - {""}:
            if name == TRAINING:
                self._functions[name] = MatrixProducts()
            elif name == DOWNLOADING:
                self._functions[name] = partial(download_matrix, orchestrator, device)
            else:
                self._functions[name] = import_allowed("stress", name, modules)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the stressor of the device's present state meanwhile, if it has one.

        Raise `SettingError` at the end if it failed, or does not end.
        """
        name = self._device.stress
        if not name:
            yield
            return
        stressor = RunningStressor(name, self._functions[name], self._device)
        try:
            yield
        except BaseException:
            stressor.stop()
            raise
        stressor.stop()
        stressor.check()


class RunningStressor:
    """A stressor in a thread of its own, from now on."""

    def __init__(self, name: str, function: Stress, device: Device) -> None:
        self._name, self._function, self._device = name, function, device
        self._ended, self._error = threading.Event(), ""
        self._thread = threading.Thread(target=self._run, name="stress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell it to end, and wait for that, up to `END_S`."""
        self._ended.set()
        self._thread.join(END_S)

    def check(self) -> None:
        """Raise `SettingError` if it failed, or runs on."""
        if self._error:
            raise SettingError(f"stress {self._name}: {self._error}")
        # A download ends with its line, which may be lost for now.
        if self._thread.is_alive() and self._name != DOWNLOADING:
            raise SettingError(
                f"stress {self._name} did not end within {END_S:g} s; it has to call stop() often, "
                "and to return when that is True"
            )

    def _run(self) -> None:
        stop = self._stop_signal()
        try:
            while not stop():
                self._function(stop)
        except ENDS_SESSION:
            # The next call of the learner meets the same.
            return
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self._error = describe_error(error)

    def _stop_signal(self) -> Stop:
        """Return the function that is called between pieces of work, by this thread."""
        if self._name == DOWNLOADING:
            return self._ended.is_set
        contention, pacer = self._device.contention, self._device.stress_pacer(self._sleep)
        before_s = contention.used_s - time.thread_time()

        def stop() -> bool:
            if pacer is not None and not self._ended.is_set():
                contention.used_s = before_s + time.thread_time()
                pacer.throttle()
            return self._ended.is_set()

        return stop

    def _sleep(self, seconds: float) -> None:
        self._ended.wait(seconds)


class MatrixProducts:
    """Multiplies two random matrices; they are made before, which is no work of the stressor."""

    def __init__(self) -> None:
        self._left, self._right = np.random.default_rng(0).random((2, MATRIX_SIDE, MATRIX_SIDE))
        self._product = np.zeros_like(self._left)

    def __call__(self, stop: Stop) -> None:
        """Multiply once."""
        for start in range(0, MATRIX_SIDE, ROWS_AT_ONCE):
            if stop():
                return
            rows = slice(start, start + ROWS_AT_ONCE)
            np.matmul(self._left[rows], self._right, out=self._product[rows])


def download_matrix(orchestrator: Files, device: Device, stop: Stop) -> None:
    """Download the matrix of the orchestrator once, over the link of the device."""
    device.start_download()
    for piece in orchestrator.fetch(STRESS_MATRIX):
        device.add_downloaded(len(piece), stop)
        if stop():
            return

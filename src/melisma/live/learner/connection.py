"""The connection of a learner to its orchestrator, which survives lost lines and busy moments.

A call that gets no answer is repeated, with growing pauses, at each address of the orchestrator in
turn, until `give_up_s` have passed without any answer. A repeated call has the same id, so that the
orchestrator runs it once. A call is refused for good only by the orchestrator itself.
"""

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from melisma import axon
from melisma.errors import (
    AxonError,
    BusyError,
    CallCancelledError,
    DeadlineError,
    LostError,
    TooSlowError,
    UnreachableError,
)

FIRST_PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 5.0
PAUSE_SPREAD: Final = 0.25
"""Random part of a pause, so that learners do not all call at once."""
GIVE_UP_S: Final = 600.0
"""Time without any answer after which the orchestrator is taken to be gone."""
ANSWER_S: Final = 40.0
"""Time in which a small call is answered; a poll waits up to 20 s at the orchestrator."""
MIN_UPLOAD_BYTES_PER_S: Final = 2048.0
SAME_CALL_S: Final = 45.0
"""Time in which a call is repeated under its id; the orchestrator remembers ended calls longer."""
UNANSWERED: Final = (UnreachableError, BusyError, TooSlowError)
"""Errors after which the orchestrator has not run the call, or still knows its result."""
FORGOTTEN: Final = (DeadlineError, CallCancelledError, LostError)
"""Errors after which it will not run the call under the same id."""
OnRetry = Callable[[str, float], None]
"""Receives the reason, with the address, and the pause before the next attempt in seconds."""


class Connection:
    """The methods and files of one orchestrator; threads may share it.

    `addresses` all belong to the same orchestrator. `token` or `certificate` prove who calls. An
    orchestrator of several tasks has methods and files for each `task`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str | None = None,
        certificate: str | Path | None = None,
        task: str = "",
        give_up_s: float = GIVE_UP_S,
        on_retry: OnRetry = lambda _reason, _pause_s: None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._remotes = [axon.connect(a, token=token, certificate=certificate) for a in addresses]
        self._methods, self._files = (f"{task}.", f"{task}/") if task else ("", "")
        self._give_up_s, self._on_retry = give_up_s, on_retry
        self._reported_until: dict[int, float] = {}  # by address
        self._lock = threading.Lock()
        self._current = 0
        self._answered_at = time.monotonic()
        self._random = random.Random()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        for remote in self._remotes:
            remote.__exit__()

    def call(self, method: str, *args: Any, body_bytes: int = 0) -> Any:
        """Call a method and return its result; repeat the call until it is answered.

        Raises `UnreachableError` if there was no answer at all for `give_up_s`.
        """
        result, _ = self.call_timed(method, *args, body_bytes=body_bytes)
        return result

    def call_timed(self, method: str, *args: Any, body_bytes: int = 0) -> tuple[Any, float]:
        """Call a method as by `call`; return its result and the seconds of earlier attempts."""
        first_at, name = time.monotonic(), self._methods + method
        began_at, failures, call_id = time.monotonic(), 0, secrets.token_hex(16)
        deadline_s = ANSWER_S + body_bytes / MIN_UPLOAD_BYTES_PER_S
        while True:
            number, remote = self._remote()
            if time.monotonic() - began_at > SAME_CALL_S:
                # The orchestrator may have forgotten the id. Methods may be called twice.
                began_at, call_id = time.monotonic(), secrets.token_hex(16)
            attempt_at = time.monotonic()
            try:
                result = remote(call_id=call_id, deadline_s=deadline_s, retries=1)[name](*args)
            except (*UNANSWERED, *FORGOTTEN) as error:
                if isinstance(error, FORGOTTEN):
                    call_id = secrets.token_hex(16)
                failures += 1
                self._pause(number, failures, error)
            except AxonError:
                self._note_answer()
                raise
            else:
                self._note_answer()
                return result, attempt_at - first_at

    def fetch(self, name: str, start: int = 0) -> Iterator[bytearray]:
        """Yield the bytes of a file from `start` on; go on after a lost line where it was cut."""
        received, failures = start, 0
        while True:
            number, remote = self._remote()
            try:
                for piece in axon.fetch(remote, self._files + name, received):
                    received, failures = received + len(piece), 0
                    self._note_answer()
                    yield piece
            except (OSError, *UNANSWERED) as error:
                failures += 1
                self._pause(number, failures, error)
            else:
                return

    def _remote(self) -> tuple[int, axon.Remote]:
        with self._lock:
            return self._current, self._remotes[self._current]

    def _note_answer(self) -> None:
        self._answered_at = time.monotonic()

    def _pause(self, number: int, failures: int, error: Exception) -> None:
        """Wait, then let the next attempt use another address; `UnreachableError` to give up."""
        silent_s = time.monotonic() - self._answered_at
        if isinstance(error, BusyError | TooSlowError):
            self._note_answer()
        elif silent_s > self._give_up_s:
            raise UnreachableError(
                f"the orchestrator has not answered for {silent_s:.0f} s ({error}); "
                "start this learner again when it can be reached"
            ) from error
        else:
            with self._lock:
                if self._current == number:
                    self._current = (number + 1) % len(self._remotes)
        # Each address is tried once without a long pause between.
        rounds = (failures - 1) // len(self._remotes)
        spread = self._random.uniform(1.0 - PAUSE_SPREAD, 1.0 + PAUSE_SPREAD)
        pause_s = min(FIRST_PAUSE_S * 2.0**rounds, MAX_PAUSE_S) * spread
        reason = str(error).partition("\n")[0]
        if isinstance(error, OSError):
            reason = f"no answer from {self._addresses[number]} ({error.strerror or reason})"
        self._report_retry(number, reason, pause_s)
        time.sleep(pause_s)

    def _report_retry(self, number: int, reason: str, pause_s: float) -> None:
        """Report an attempt that failed, unless another thread reports it for this address."""
        now = time.monotonic()
        with self._lock:
            if now < self._reported_until.get(number, 0.0):
                return
            self._reported_until[number] = now + pause_s
        self._on_retry(reason, pause_s)

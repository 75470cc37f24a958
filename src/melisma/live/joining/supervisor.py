"""The supervisor of a device: runs the learner process while the owner's limits allow it.

===========================  =====================================================
the learner process          the supervisor
===========================  =====================================================
ends because the run ended   ends; with `stay` it waits for the next run
meets another run            starts it again, to join that run
is refused, needs a change   ends with the reason; with `stay` a refused one waits
gives up on the orchestrator ends with the reason; with `stay` it waits
fails or is killed           starts it again, at once and then after growing pauses
===========================  =====================================================

Outside of the owner's limits the learner leaves the run, and is started again within them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from melisma.axon import Address
from melisma.errors import MelismaError, UnreachableError
from melisma.live.joining.learner_child import LearnerChild
from melisma.live.joining.throttling import find_throttling
from melisma.live.joining.use_limits import UseLimits
from melisma.live.learner.device_reports import (
    AwaitingRun,
    CycleTrained,
    Ended,
    LearnerStarted,
    LeftRun,
    OnReport,
    Paused,
    Restarting,
    Resumed,
    Slowed,
)
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.reach import reach

CHECK_S: Final = 5.0
"""Time between checks of limits and throttling."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
MAX_FAILURES: Final = 6
"""Failures in a row, without an update between them, after which the supervisor gives up."""
NEXT_RUN_PAUSE_S: Final = 15.0
MAX_NEXT_RUN_PAUSE_S: Final = 120.0


@dataclass(frozen=True)
class SupervisedLearner:
    """The settings of a learner process, and the file for its messages."""

    settings: LearnerSettings
    log: Path
    start: Callable[[LearnerSettings, Path, UseLimits], LearnerChild] = LearnerChild


@dataclass
class Supervisor:
    """Runs one learner on this device until the run ends, or for ever with `stay`."""

    learner: SupervisedLearner
    limits: UseLimits
    report: OnReport
    stay: bool = False
    find_throttling: Callable[[], tuple[str, ...]] = find_throttling
    sleep: Callable[[float], None] = time.sleep
    check_s: float = CHECK_S
    _failures: int = field(default=0, init=False)
    _runs: int = field(default=0, init=False)
    _throttling: tuple[str, ...] = field(default=(), init=False)

    def run(self) -> None:
        """Supervise the learner; raise `MelismaError` with the reason if it cannot continue."""
        while True:
            self._wait_until_allowed()
            ended = self._run_learner()
            if ended is None:
                continue
            if ended.kind == "another run":
                self.sleep(FIRST_PAUSE_S)
            elif ended.kind == "failed":
                self._pause_after_failure(ended.reason)
            elif not self.stay or ended.kind == "settings":
                if ended.kind == "run ended":
                    return
                raise MelismaError(ended.reason)
            else:
                self._wait_for_next_run(ended.reason or "the run has ended")

    def _wait_until_allowed(self) -> None:
        """Wait while a limit of the owner forbids work."""
        reason = self.limits.find_reason_to_pause()
        if reason is None:
            return
        self.report(Paused(reason))
        while self.limits.find_reason_to_pause() is not None:
            self.sleep(self.check_s)
        self.report(Resumed())

    def _run_learner(self) -> Ended | None:
        """Run a learner process to its end; None if a limit of the owner ended it."""
        child = self.learner.start(self.learner.settings, self.learner.log, self.limits)
        try:
            self.report(LearnerStarted(child.pid, str(self.learner.log)))
            return self._watch(child)
        except KeyboardInterrupt:
            child.stop()
            self.report(LeftRun())
            raise
        finally:
            child.stop()

    def _watch(self, child: LearnerChild) -> Ended | None:
        checked_at = time.monotonic()
        child.note_slowness(self._throttling)
        while True:
            report = child.next_report(self.check_s)
            if isinstance(report, CycleTrained):
                self._failures = self._runs = 0
            if report is not None:
                self.report(report)
            if isinstance(report, Ended):
                return report
            if time.monotonic() - checked_at >= self.check_s:
                checked_at = time.monotonic()
                self._check_throttling(child)
                if self.limits.find_reason_to_pause() is not None:
                    return None

    def _check_throttling(self, child: LearnerChild) -> None:
        """Report signs of throttling when they change, also to the orchestrator."""
        reasons = self.find_throttling()
        # Temperatures in the text differ each time: only new or vanished signs count.
        if len(reasons) != len(self._throttling):
            self.report(Slowed(reasons))
            child.note_slowness(reasons)
        self._throttling = reasons

    def _pause_after_failure(self, reason: str) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise MelismaError(
                f"the learner process failed {self._failures} times in a row ({reason}): see "
                f"{self.learner.log}"
            )
        # The orchestrator keeps the work of a learner that is back in a few seconds.
        pause_s = 0.0
        if self._failures > 1:
            pause_s = min(FIRST_PAUSE_S * 2.0 ** (self._failures - 2), MAX_PAUSE_S)
        self.report(Restarting(reason, pause_s))
        self.sleep(pause_s)

    def _wait_for_next_run(self, reason: str) -> None:
        """Pause, then wait until the orchestrator can be reached."""
        while True:
            pause_s = min(NEXT_RUN_PAUSE_S * 2.0**self._runs, MAX_NEXT_RUN_PAUSE_S)
            self._runs += 1
            self.report(AwaitingRun(reason))
            self.sleep(pause_s)
            try:
                reach_any(self.learner.settings.orchestrator)
            except UnreachableError as error:
                reason = str(error).partition("\n")[0]
            else:
                return


def reach_any(addresses: Sequence[str]) -> None:
    """Raise `UnreachableError` unless the orchestrator answers at one of its addresses."""
    parsed = [Address.parse(address) for address in addresses]
    fingerprint = parsed[0].fingerprint
    assert fingerprint is not None
    reach([address.host for address in parsed], parsed[0].port, fingerprint)

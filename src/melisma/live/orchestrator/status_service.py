"""The status of a running orchestrator, for its owner alone: `melisma status` asks for it."""

from collections.abc import Callable
from math import isnan
from typing import Any, Literal

import msgspec

from melisma.axon import Worker
from melisma.live import protocol
from melisma.live.orchestrator.learner_authentication import check_owner
from melisma.live.orchestrator.lobby import StartCondition
from melisma.live.orchestrator.mailbox import Mailbox, Mailboxes
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.strict_methods import StrictMethods
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step

MAX_BODY_BYTES = 4096
LearnerState = Literal["preparing", "ready", "waiting", "training", "silent", "left"]


class LearnerStatus(msgspec.Struct, frozen=True):
    """The state of one learner; `last_seen_s` is the time since its last call.

    `samples_per_s` is None unless the learner has disclosed it.
    """

    name: str
    state: LearnerState
    host: str | None
    last_seen_s: float
    samples_per_s: float | None
    note: str


class OrchestratorStatus(msgspec.Struct, frozen=True, tag="run"):
    """The state of a run; figures are None until they are known.

    `state` is "waiting" before the run begins, then "running", at last the outcome of the run.
    `starts` says when a run begins that is waiting. `capacity_used` and scores are of the cycle
    that was evaluated last. `waits_s` is how much longer the run waits for a learner, if none
    answers.
    """

    run: str
    task: str
    scheme: str
    state: str
    starts: str
    cycle: int
    cycles: int | None
    accuracy: float | None
    loss: float | None
    capacity_used: float | None
    waits_s: float | None
    learners: tuple[LearnerStatus, ...]


class StatusService:
    """Follows a run by its steps, and serves `status` to the owner."""

    def __init__(
        self,
        spec: RunSpec,
        mailboxes: Mailboxes,
        start: StartCondition,
        now: Callable[[], float],
    ) -> None:
        self._spec, self._mailboxes, self._start, self._now = spec, mailboxes, start, now
        self._progress = RunProgress()
        self._began = False

    def expose(self, worker: Worker) -> None:
        """Let the owner call `status`."""
        worker.expose(
            StrictMethods(self),
            ["status"],
            name="",
            max_body_bytes=MAX_BODY_BYTES,
            check_caller=check_owner,
        )

    def apply(self, step: Step) -> None:
        """Follow one step of the run."""
        self._began = True
        self._progress.apply(step)

    async def status(self) -> Any:
        """Return an `OrchestratorStatus` as built-in types."""
        task, progress = self._spec.task, self._progress
        scored = progress.evaluated_cycle if self._began else None
        current = progress.current_cycle if self._began else None
        return protocol.to_builtins(
            OrchestratorStatus(
                run=self._spec.run,
                task=task.name,
                scheme=task.scheme,
                state=progress.outcome if self._began else "waiting",
                starts="" if self._began else str(self._start),
                cycle=current.number if current else 0,
                cycles=task.cycles,
                accuracy=_finite_or_none(scored.accuracy) if scored else None,
                loss=_finite_or_none(scored.loss) if scored else None,
                capacity_used=_finite_or_none(scored.capacity_used) if scored else None,
                waits_s=self._waits_s(),
                learners=tuple(map(self._learner, self._mailboxes)),
            )
        )

    def _waits_s(self) -> float | None:
        if not self._began or self._progress.outcome != "running":
            return None
        now_s = self._now()
        until_s = self._mailboxes.awaited_until_s(now_s)
        return None if until_s is None else max(0.0, until_s - now_s)

    def _learner(self, mailbox: Mailbox) -> LearnerStatus:
        state = learner_state(mailbox, self._now() - mailbox.called_s)
        notes = []
        if mailbox.superseded_calls:
            notes.append(
                f"its identity is in use elsewhere too ({mailbox.superseded_calls} calls refused)"
            )
        if mailbox.slowness:
            notes.append(f"slower: {mailbox.slowness}")
        if mailbox.left or mailbox.silent:
            notes.append(mailbox.departure.removeprefix(f"{mailbox.name}: "))
        return LearnerStatus(
            name=mailbox.name,
            state=state,
            host=mailbox.host,
            last_seen_s=max(0.0, self._now() - mailbox.called_s),
            samples_per_s=mailbox.samples_per_s,
            note="; ".join(notes),
        )


def learner_state(mailbox: Mailbox, silence_s: float) -> LearnerState:
    """Return the state of a learner that has registered, and last called `silence_s` ago.

    The last learner of a run may be silent without having left it.
    """
    if mailbox.left:
        return "left"
    if mailbox.silent or (mailbox.joined and mailbox.is_overdue(silence_s)):
        return "silent"
    if mailbox.request is None:
        return "preparing"
    if not mailbox.joined:
        return "ready"
    return "waiting" if mailbox.open_work is None else "training"


def _finite_or_none(value: float) -> float | None:
    return None if isnan(value) else value

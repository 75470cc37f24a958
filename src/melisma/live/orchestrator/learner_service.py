"""The methods that learners call: their messages are validated and become events.

Every call is attributed to the learner whose credential it carries, whatever the message says, and
belongs to one session of that learner, which begins with `register`. An update is on disk before
it counts; one that does not fit the model is refused with the reason. A reply on which a learner
relies waits until the events before it are on disk.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.allocation.schemes import get_scheme
from melisma.axon import Authenticator, Worker, current_call
from melisma.axon.server.authentication import OnRefused
from melisma.axon.server.calls.functions import CheckCaller
from melisma.cycle import events
from melisma.cycle.learner import subset_shards
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.cycle.restarts import restart_limit_s
from melisma.disclosure import DISCLOSURE, Disclosure
from melisma.errors import (
    BusyError,
    DataError,
    RefusedError,
    SupersededError,
    UnauthorizedError,
    UnregisteredError,
)
from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_authentication import check_learner
from melisma.live.orchestrator.learner_worker import learner_worker
from melisma.live.orchestrator.mailbox import MAX_POLL_S, Mailbox, Mailboxes
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.orchestrator.session_records import put_session
from melisma.live.orchestrator.strict_methods import StrictMethods
from melisma.live.orchestrator.update_verifier import ReceivedUpdate, UpdateVerifier
from melisma.live.plausible import (
    check_commitment,
    check_costs,
    check_evaluation,
    check_local_shard_samples,
    check_phases,
)
from melisma.live.run_resumption import RunResumption
from melisma.runs.recovery import RecoveredRun
from melisma.text import visible

POLLS_PER_SILENCE_LIMIT: Final = 4
SILENCE_CHECK_S: Final = 0.25
PROGRESS_REPORTS_PER_CYCLE: Final = 20
MAX_BOUND_SHARDS: Final = 2**40
SMALL_METHODS: Final = (
    "poll",
    "report_costs",
    "report_bound",
    "request_shards",
    "report_evaluation",
    "report_failure",
)
SMALL_BYTES: Final = 16 << 10
LIST_METHODS: Final = ("join", "release_shards", "commit_update")
"""Methods whose requests have a number for each of many shards."""
LIST_BYTES: Final = 1 << 20
UPLOAD_METHODS: Final = ("upload_update", "probe_uplink")
FIELD_BYTES: Final = 1 << 10
"""The most that an update needs for an array beside its elements: name, shape, alignment."""
RELIED_ON: Final = (protocol.Train, protocol.ExtendTraining, protocol.StopTraining)
"""Instructions that a learner follows even if the orchestrator forgets them in a power cut."""
REVEALED_FACTOR: Final = 8
"""The size of an upload with two states of an optimizer, in that of one without them."""
METHODS: Final = ("register", *SMALL_METHODS, *LIST_METHODS, *UPLOAD_METHODS)


LearnerChange = Literal["registered", "ready", "left", "copied"]
OnChange = Callable[[Mailbox, LearnerChange], None]
"""Receives the mailbox of a learner that registered, became ready or left, or that was copied."""


class EventHandler(Protocol):
    """The receiver of the events that learners cause."""

    started: bool
    """Whether the run has begun; events before are ignored."""
    verifier: UpdateVerifier | None
    """Checks updates, if the task says so."""

    def start(self, learner_count: int | None = None) -> None:
        """Begin the run with this number of learners."""

    def now(self) -> float:
        """Return the seconds on the orchestrator's clock."""

    def handle(self, event: events.AnyEvent) -> None:
        """Handle an event."""

    def resume(self, run: RecoveredRun, downtime_s: float) -> None:
        """Go on with a run that an earlier process began."""

    def continue_run(self, run: RecoveredRun, goal: events.TaskContinued) -> None:
        """Go on after the end of a run."""

    async def synced(self) -> None:
        """Return when all events before are on disk."""

    def fail(self, error: Exception) -> None:
        """End the run with an error."""

    def expects(self, learner: int, cycle: int, attempt: int) -> bool:
        """Return whether an update of that assignment would count now."""

    def most_visits(self, learner: int, cycle: int) -> int:
        """Return the most visits that are believed of an assignment of that cycle."""

    def challenged_segment(self, learner: int, cycle: int) -> int | None:
        """Return the segment that a learner has to reveal; None without a challenge."""


class LearnerService:
    """Serves the learners of one run, which are numbered in the order of their mailboxes.

    Learners register and get ready before the run begins or at any time after. The first argument
    of each method but `register` is the session of the caller.
    """

    def __init__(
        self,
        spec: RunSpec,
        mailboxes: Mailboxes,
        store: RunStore,
        evaluator: FederatedEvaluator,
        handler: EventHandler,
        on_change: OnChange = lambda _mailbox, _change: None,
    ) -> None:
        self._spec, self._task, self._mailboxes = spec, spec.task, mailboxes
        self._store, self._evaluator, self._handler = store, evaluator, handler
        self._on_change = on_change
        self._receiving: set[tuple[int, int, int]] = set()
        self._verifier = handler.verifier

    def worker(
        self,
        authenticator: Authenticator,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool | Path = False,
        on_refused: OnRefused = lambda _host, _reason: None,
    ) -> Worker:
        """Return the worker that serves these methods, shards and parameters.

        `authenticator` names the caller of each request; those that are no learners of this run
        are refused. `on_refused` receives those whose TLS handshake fails.
        """
        files, max_learners = self.find_file, self._mailboxes.max_learners
        worker = learner_worker(
            authenticator,
            files,
            max_learners,
            host=host,
            port=port,
            tls=tls,
            on_refused=on_refused,
        )
        self.expose(worker)
        return worker

    def expose(
        self, worker: Worker, task: str = "", check_caller: CheckCaller = check_learner
    ) -> None:
        """Let learners call these methods, by the name of the task if the worker has several.

        `check_caller` refuses those that may not register.
        """
        layout = self._store.layout
        upload_bytes = layout.size_bytes + FIELD_BYTES * len(layout.fields) + SMALL_BYTES
        if self._task.verify == "audit":
            upload_bytes *= REVEALED_FACTOR
        expose = partial(worker.expose, StrictMethods(self), name=task)
        expose(["register"], max_body_bytes=SMALL_BYTES, check_caller=check_caller)
        expose = partial(expose, check_caller=self._mailboxes.number)
        expose(SMALL_METHODS, max_body_bytes=SMALL_BYTES)
        expose(LIST_METHODS, max_body_bytes=LIST_BYTES)
        expose(UPLOAD_METHODS, max_body_bytes=upload_bytes, spool=True)

    def find_file(self, name: str, caller: str) -> Path | None:
        """Return the file that a learner may download by this name."""
        self._mailboxes.on_fetch(self._mailboxes.number(caller))
        if self._spec.bundle is not None and name == self._spec.bundle.file_name:
            return self._store.bundle_path(self._spec.bundle)
        if name == protocol.STRESS_MATRIX:
            return self._store.stress_path()
        return self._store.path(name)

    async def register(self, message: Any) -> Any:
        """Start a session of the learner that calls, the first call of each session.

        Return its number, the task and its benchmark shards. An earlier session of the learner
        ends: its further calls raise `SupersededError`. Its work goes on when the learner has
        joined again.
        """
        request, call = protocol.parse_registration(message), current_call()
        known = len(self._mailboxes)
        learner, numbers = self._mailboxes.open(call.caller), list[int]()
        if learner >= known:
            self._emit(events.LearnersRegistered, learner, names=(call.caller,))
        self._start_session(learner, request.session)
        await self._handler.synced()
        if self._store.samples:
            numbers = subset_shards(self._task, np.array([learner])).values.tolist()
        shards, hold_back = self._store.shard_refs(numbers), not len(self._spec.test)
        bundle = self._spec.bundle
        return protocol.to_builtins(
            protocol.RegisterResponse(
                learner,
                self._spec.run,
                # A learner does not need the path of a file on this machine.
                msgspec.structs.replace(self._task, start=None),
                shards,
                hold_back,
                self._handler.now(),
                None if bundle is None else protocol.BundleRef(bundle.sha256, len(bundle.content)),
                self._handler.started,
            )
        )

    def _start_session(self, learner: int, session: str) -> None:
        mailbox, call = self._mailboxes[learner], current_call()
        if mailbox.session == session:
            return
        mailbox.start_session(session)
        mailbox.called_s = mailbox.heard_s = self._handler.now()
        mailbox.fingerprint, mailbox.host = call.fingerprint, call.host
        self._on_change(mailbox, "registered")
        put_session(self._store.journal, learner, mailbox)
        self._flush()

    def _flush(self) -> None:
        """Write the records of sessions, without any step."""
        try:
            self._store.journal.flush()
        except OSError as error:
            raise BusyError(f"the orchestrator cannot write: {error.strerror}") from error

    async def join(self, session: str, message: Any) -> None:
        """Add a learner that is ready to the run, or to those with which it will begin."""
        learner, mailbox = self._caller(session)
        request = protocol.parse(message, protocol.JoinRequest)
        if self._task.mode != "federated":
            # A device may have data of its own that this run does not use.
            request = msgspec.structs.replace(request, local_shard_samples=())
        samples = request.local_shard_samples
        if mailbox.request == request and not mailbox.left:
            # A restart of the orchestrator, or a lost line, hid the reply to the first call.
            await self._handler.synced()
            return
        if mailbox.request is not None or mailbox.left:
            raise RefusedError(f"{mailbox.name} has already joined; a learner joins a run once")
        if self._task.mode == "federated" and not samples:
            raise RefusedError(
                f"{mailbox.name} has no local data, which federated learning needs: use melisma "
                "join with --data FOLDER or --data MODULE:FUNCTION on the device"
            )
        check_local_shard_samples(self._task, samples)
        if self._mailboxes.grows:
            self._check_disclosure(mailbox.name, request.discloses)
        if request.samples_per_s is not None:
            mailbox.samples_per_s = request.samples_per_s
        mailbox.clear()
        mailbox.request, mailbox.open_work = request, None
        self._on_change(mailbox, "ready")
        if mailbox.joined and resumes(request, mailbox.earlier_request):
            self._resume([learner])
        elif mailbox.joined:
            self._leave(mailbox, learner, f"{mailbox.name}: joined again with other data")
            self._join([learner])
        else:
            self._join([learner])
        await self._handler.synced()

    def _check_disclosure(self, name: str, discloses: Disclosure) -> None:
        """Refuse a learner with which the scheme cannot plan: its owner is not that of the run.

        In a fleet of one owner, the run ends with that problem before it begins.
        """
        levels, task = list(DISCLOSURE), self._task
        needed = get_scheme(task.scheme).needs_with(task.passes)
        if levels.index(discloses) < levels.index(needed):
            raise RefusedError(
                f"scheme {task.scheme} needs from each learner: {DISCLOSURE[needed]}; {name} has "
                f'discloses = "{discloses}": use --discloses {needed} on the device, or ask the '
                "owner of the orchestrator for another scheme"
            )

    def begin_run(self) -> None:
        """Begin the run with the learners that are ready."""
        ready = self._mailboxes.ready
        self._handler.start(len(ready))
        for learner, mailbox in enumerate(self._mailboxes):
            if mailbox.conflict:
                self._emit(events.IdentitiesShared, learner, reason=mailbox.conflict)
        self._join(ready)

    def resume_run(self, resumption: RunResumption) -> None:
        """Go on with a run that an earlier process began, and with the learners that are there.

        Those whose session was restored go on by themselves. Of the others, those that the run
        knows resume their work, and those that it does not know join. All join a run that had
        ended.
        """
        goal = resumption.continued(len(self._mailboxes.ready))
        if goal is not None:
            self._handler.continue_run(resumption.run, goal)
            self._join(self._mailboxes.ready)
            return
        learners = resumption.run.machine.state.learners
        present = set(np.flatnonzero(learners.present).tolist())
        downtime_s = 0.0 if resumption.stands_still else self._store.journal.downtime_s()
        self._handler.resume(resumption.run, downtime_s)
        restored = {n for n, mailbox in enumerate(self._mailboxes) if mailbox.joined}
        ready = set(self._mailboxes.ready) - restored
        for learner in sorted(present - ready - restored):
            name = self._mailboxes[learner].name
            self._emit(events.LearnersLeft, learner, reason=f"{name}: did not come back")
        if back := sorted(ready & present):
            self._resume(back)
        if new := sorted(ready - present):
            self._join(new)

    def _resume(self, learners: Sequence[int]) -> None:
        """Let learners that restarted go on with their work."""
        for learner in learners:
            mailbox = self._mailboxes[learner]
            mailbox.clear()
            mailbox.joined, mailbox.earlier_request = True, None
            put_session(self._store.journal, learner, mailbox)
        event = events.LearnersResumed(at_s=self._handler.now(), learners=np.array(learners))
        self._handler.handle(event)

    def _join(self, learners: Sequence[int]) -> None:
        """Let learners that are ready join, if the run has begun."""
        mailboxes = [self._mailboxes[learner] for learner in learners]
        for mailbox in mailboxes:
            mailbox.joined, mailbox.silent = self._handler.started, False
            mailbox.earlier_request = None
        for learner in learners:
            put_session(self._store.journal, learner, self._mailboxes[learner])
        if not self._handler.started:
            self._flush()
        self._mailboxes.became_ready.set()
        requests = [mailbox.request for mailbox in mailboxes if mailbox.request is not None]
        samples = [np.array(request.local_shard_samples, np.int64) for request in requests]
        self._handler.handle(
            events.LearnersJoined(
                at_s=self._handler.now(),
                learners=np.array(learners),
                names=tuple(mailbox.name for mailbox in mailboxes),
                discloses=tuple(request.discloses for request in requests),
                local_shard_samples=RaggedArray.from_rows(samples)
                if any(row.size for row in samples)
                else NO_ROWS,
            )
        )

    async def poll(self, session: str, progress: Any = None, slowness: str = "") -> Any:
        """Record the learner's progress; return its instructions, waiting for the first one.

        A learner at work polls several times before its silence would be taken for its death.
        `slowness` is why its device runs slower than it could.
        """
        (learner, mailbox), timeout_s = self._caller(session), MAX_POLL_S
        mailbox.slowness = visible(protocol.parse(slowness, protocol.ShortText))
        if mailbox.open_work is not None:
            timeout_s = min(timeout_s, mailbox.silence_limit_s / POLLS_PER_SILENCE_LIMIT)
        if progress is not None and mailbox.request is not None:
            pair = tuple[protocol.NonNegativeInt, protocol.NonNegativeInt]
            cycle, visits = protocol.parse(progress, pair)
            self._emit(events.ProgressReported, learner, cycle=cycle, visits=np.array([visits]))
            timeout_s = min(timeout_s, self._task.deadline_s / PROGRESS_REPORTS_PER_CYCLE)
        instructions = await mailbox.get(timeout_s)
        if any(isinstance(item, RELIED_ON) for item in instructions):
            await self._handler.synced()
        self._check_session(session)
        if mailbox.refusal:
            raise UnauthorizedError(mailbox.refusal)
        return [protocol.to_builtins(item) for item in instructions]

    async def probe_uplink(self, session: str, body: dict[str, NDArray[Any]]) -> None:  # noqa: ARG002 - discarded
        """Discard the bytes that a learner uploads to measure its link."""
        self._caller(session)

    async def report_costs(self, session: str, costs: Any) -> None:
        """Record the costs that a learner measured; before it has joined, for the status only."""
        learner, _ = self._caller(session)
        self._report_costs(learner, costs, self._handler.now())

    async def report_bound(self, session: str, cycle: int, deadline_s: float, shards: int) -> None:
        """Record the number of shards that a learner can train by the deadline."""
        learner, _ = self._member(session)
        bound = min(protocol.parse(shards, protocol.NonNegativeInt), MAX_BOUND_SHARDS)
        self._emit(
            events.BoundsReported,
            learner,
            cycle=protocol.parse(cycle, protocol.NonNegativeInt),
            deadline_s=protocol.parse(deadline_s, protocol.Seconds),
            shards=np.array([bound]),
        )

    async def request_shards(self, session: str, cycle: int, shards: int) -> None:
        """Record that a learner at work will be done early and can train further shards."""
        learner, _ = self._member(session)
        wanted = min(protocol.parse(shards, protocol.NonNegativeInt), MAX_BOUND_SHARDS)
        number = protocol.parse(cycle, protocol.NonNegativeInt)
        self._emit(events.ShardsRequested, learner, cycle=number, shards=np.array([wanted]))

    async def release_shards(self, session: str, cycle: int, shards: Any) -> None:
        """Record the numbers of shards that a learner at work will not get to."""
        learner, _ = self._member(session)
        numbers = protocol.parse(shards, tuple[protocol.NonNegativeInt, ...])
        released = RaggedArray.from_rows([np.array(numbers, dtype=np.int64)])
        number = protocol.parse(cycle, protocol.NonNegativeInt)
        self._emit(events.ShardsReleased, learner, cycle=number, shards=released)
        await self._handler.synced()

    async def commit_update(self, session: str, message: Any) -> int | None:
        """Record a commitment to an update; return the segment to reveal, None for none."""
        learner, mailbox = self._member(session)
        commitment = protocol.parse(message, protocol.UpdateCommitment)
        if self._verifier is None or self._task.verify != "audit":
            raise RefusedError("the updates of this task are not audited: upload them at once")
        check_commitment(commitment)
        assignment = learner, commitment.cycle, commitment.attempt
        if not self._handler.expects(*assignment):
            return None
        known = self._verifier.commitments.get(assignment)
        if known is not None and known != commitment:
            raise RefusedError(f"{mailbox.name} has committed to another training before")
        if known is None:
            self._verifier.commitments[assignment] = commitment
            self._verifier.segments[assignment] = None
            self._emit(
                events.UpdatesCommitted,
                learner,
                cycle=commitment.cycle,
                attempts=np.array([commitment.attempt]),
                segments=np.array([len(commitment.digests)]),
                environments=(visible(commitment.environment),),
            )
            segment = self._handler.challenged_segment(learner, commitment.cycle)
            self._verifier.segments[assignment] = segment
        await self._handler.synced()
        return self._verifier.segments.get(assignment)

    async def upload_update(
        self,
        session: str,
        message: Any,
        parameters: dict[str, NDArray[Any]],
        revealed: dict[str, NDArray[Any]] | None = None,
    ) -> str:
        """Spool an update, then count it once; return why it is refused, or an empty string.

        `revealed` are the states of the segment that `commit_update` has returned.
        """
        learner, mailbox = self._member(session)
        at_s, header = self._handler.now(), protocol.parse(message, protocol.UpdateHeader)
        assignment = learner, header.cycle, header.attempt
        if assignment in self._receiving:
            raise BusyError(f"the update of {mailbox.name} is already being received")
        phases = check_phases(header.phases)
        visits = min(header.visits, self._handler.most_visits(learner, header.cycle))
        if visits and self._lacks_commitment(assignment, header):
            return protocol.COMMIT_FIRST
        refused = await self._spool(assignment, parameters, session) if visits else ""
        if visits and not refused:
            self._verify(assignment, visits, revealed)
        if header.costs and not refused:
            self._report_costs(learner, header.costs, at_s)
        # The learner cannot know how long its upload takes until it has ended.
        dispatched_s = mailbox.dispatched_s.get(header.cycle, at_s)
        upload_s = max(0.0, at_s - dispatched_s - sum(phases[:-1]))
        mailbox.end_work(header.cycle)
        train_s = phases[events.PHASES.index("train")]
        discloses_speed = mailbox.request is not None and mailbox.request.discloses == "costs"
        if discloses_speed and visits and train_s > 0:
            # The speed is only shown: visits beyond those that are counted took time, too.
            mailbox.samples_per_s = header.visits / train_s
        self._handler.handle(
            events.UpdatesReceived(
                at_s=at_s,
                learners=np.array([learner]),
                cycle=header.cycle,
                attempts=np.array([header.attempt]),
                visits=np.array([visits]),
                planned_visits=np.array([min(visits, header.planned_visits)]),
                shipped=np.array([header.shipped]),
                loss=np.array([header.loss]),
                phases=np.array([[*phases[:-1], upload_s]]),
                refused=refused,
            )
        )
        await self._handler.synced()
        return refused

    def _lacks_commitment(
        self, assignment: tuple[int, int, int], header: protocol.UpdateHeader
    ) -> bool:
        """Return whether an update that counts was not committed to, if it had to be."""
        if self._verifier is None or self._task.verify != "audit":
            return False
        if not self._handler.expects(*assignment):
            return False
        commitment = self._verifier.commitments.get(assignment)
        if commitment is not None and commitment.visits != header.visits:
            raise RefusedError(
                f"the update has {header.visits} visits, its commitment {commitment.visits}"
            )
        return commitment is None

    def _verify(
        self,
        assignment: tuple[int, int, int],
        visits: int,
        revealed: dict[str, NDArray[Any]] | None,
    ) -> None:
        """Check an update that was accepted, in the background."""
        verifier = self._verifier
        if verifier is None or not self._store.has_accepted(assignment):
            return
        challenged = verifier.segments.get(assignment) is not None
        states, store = (revealed or {}) if challenged else None, self._store
        read_start = partial(store.find_start, assignment[1])
        read = partial(store.read_update, assignment)
        verifier.receive(ReceivedUpdate(assignment, visits, read, read_start, states))

    async def report_evaluation(self, session: str, message: Any) -> None:
        """Record a learner's evaluation of the model."""
        learner, _ = self._member(session)
        sums = protocol.parse(message, protocol.EvaluationSums)
        check_evaluation(sums)
        loss_sum = sums.loss_sum if sums.finite else nan
        score = Score(sums.samples, loss_sum, sums.correct, sums.labels)
        self._evaluator.add(learner, sums.cycle, score)

    async def report_failure(self, session: str, reason: str) -> None:
        """Remove a learner that cannot continue, for this session."""
        self._note_if_replaced(session)
        learner, mailbox = self._check_session(session)
        problem = visible(protocol.parse(reason, protocol.ShortText))
        # Reasons are shown as they are: each begins with the name of the learner that left.
        own_name = f"{mailbox.name}: "
        self.remove_learner(learner, own_name + problem.removeprefix(own_name))

    def remove_learner(self, learner: int, reason: str, refusal: str = "") -> None:
        """Record that a learner has left; only the first reason counts.

        With a `refusal` its polls are refused instead of told to leave.
        """
        mailbox = self._mailboxes[learner]
        mailbox.refusal = refusal
        if mailbox.left:
            return
        # Its process may have ended while it polled.
        mailbox.leave()
        if not mailbox.silent:
            self._leave(mailbox, learner, reason)

    async def watch_silence(self) -> None:
        """Remove silent learners until cancelled."""
        while True:
            began_s = self._handler.now()
            await asyncio.sleep(SILENCE_CHECK_S)
            delay_s = self._handler.now() - began_s - SILENCE_CHECK_S
            if delay_s > SILENCE_CHECK_S:
                # This process was busy or stopped: calls may have arrived that it has not handled.
                for mailbox in self._mailboxes:
                    mailbox.called_s += delay_s
                    mailbox.heard_s += delay_s
            self.remove_silent()

    def remove_silent(self) -> None:
        """Record that learners have left that have not called for too long.

        Each joins again with its next call. The last learner of a run is awaited: no other could
        do its work.
        """
        now_s = self._handler.now()
        for learner, mailbox in enumerate(self._mailboxes):
            silence_s = now_s - mailbox.called_s
            is_last = mailbox.joined and self._joined_count() == 1
            if mailbox.ready and mailbox.is_overdue(silence_s) and not is_last:
                self._set_silent(learner, f"{mailbox.name}: no sign of life for {silence_s:.1f} s")
            if mailbox.restarts and silence_s > self._restart_s and not is_last:
                problem = f"not ready {silence_s:.1f} s after it registered again"
                self._leave(mailbox, learner, f"{mailbox.name}: {problem}")

    @property
    def _restart_s(self) -> float:
        """The time in which a learner that has registered again has to be ready."""
        return restart_limit_s(self._task.deadline_s)

    def _set_silent(self, learner: int, reason: str) -> None:
        mailbox = self._mailboxes[learner]
        mailbox.clear()
        if mailbox.open_work is not None:
            mailbox.put(protocol.StopTraining(*mailbox.open_work))
        mailbox.silent = True
        self._leave(mailbox, learner, reason)

    def _joined_count(self) -> int:
        return sum(mailbox.joined for mailbox in self._mailboxes)

    def _leave(self, mailbox: Mailbox, learner: int, reason: str) -> None:
        mailbox.joined, mailbox.open_work, mailbox.departure = False, None, reason
        mailbox.earlier_request = None
        put_session(self._store.journal, learner, mailbox)
        if not self._handler.started:
            # The next record of a session writes this one, too.
            with suppress(BusyError):
                self._flush()
        self._on_change(mailbox, "left")
        self._evaluator.recheck()
        self._emit(events.LearnersLeft, learner, reason=reason)

    async def _spool(
        self,
        assignment: tuple[int, int, int],
        parameters: dict[str, NDArray[Any]],
        session: str,
    ) -> str:
        """Spool and accept an update if it would count; return why it is refused.

        Raise `SupersededError` if another session of the learner has started meanwhile.
        """
        if not self._handler.expects(*assignment):
            return ""
        self._receiving.add(assignment)
        spool = self._store.spool
        try:
            stored = await asyncio.to_thread(spool, assignment, parameters)
        except DataError as error:
            name, problem = self._mailboxes[assignment[0]].name, visible(str(error))
            return f"the update of {name} is refused: {problem}"
        except OSError as error:
            # The disk is full, for example: no other update can be kept either.
            self._handler.fail(error)
            raise BusyError("the disk of the orchestrator failed: call again later") from error
        finally:
            self._receiving.discard(assignment)
        try:
            self._check_session(session)
        except SupersededError:
            self._store.discard(assignment)
            raise
        # The update may have become too late, or its learner silent, while it was written.
        if self._handler.expects(*assignment):
            self._store.accept(assignment, stored)
        else:
            self._store.discard(assignment)
        return ""

    def _report_costs(self, learner: int, costs: Any, at_s: float) -> None:
        table = np.array(protocol.parse(costs, protocol.CostTable), dtype=np.float64)[:, :, None]
        check_costs(table)
        mailbox = self._mailboxes[learner]
        mailbox.samples_per_s = self._task.shard_samples / float(table[0, 0, 0])
        if mailbox.request is not None:
            self._handler.handle(
                events.CostsReported(at_s=at_s, learners=np.array([learner]), costs=table)
            )

    def _emit(self, kind: Callable[..., events.AnyEvent], learner: int, **fields: Any) -> None:
        at_s = self._handler.now()
        self._handler.handle(kind(at_s=at_s, learners=np.array([learner]), **fields))

    def _caller(self, session: str) -> tuple[int, Mailbox]:
        """Return number and mailbox of the learner whose call is served.

        One that was silent for too long joins again. Raise `SupersededError` if another session of
        the learner has started since.
        """
        learner = self._mailboxes.number(current_call().caller)
        mailbox = self._mailboxes[learner]
        self._note_if_replaced(session)
        self._check_session(session)
        mailbox.called_s = mailbox.heard_s = self._handler.now()
        if mailbox.silent and not mailbox.left and mailbox.request is not None:
            self._on_change(mailbox, "ready")
            self._join([learner])
        return learner, mailbox

    def _note_if_replaced(self, session: str) -> None:
        """Note a call of a session that was replaced: its process still runs, as that of a copy."""
        learner = self._mailboxes.number(current_call().caller)
        mailbox = self._mailboxes[learner]
        if protocol.parse(session, protocol.ShortText) not in mailbox.replaced_sessions:
            return
        mailbox.superseded_calls += 1
        if mailbox.conflict:
            return
        hosts = " and ".join(dict.fromkeys([str(mailbox.host), str(current_call().host)]))
        mailbox.conflict = (
            f"{mailbox.name}: its identity is in use twice, at {hosts}; if the disk of a device "
            "was copied, run melisma join --new-identity on the copy"
        )
        put_session(self._store.journal, learner, mailbox)
        self._on_change(mailbox, "copied")
        self._emit(events.IdentitiesShared, learner, reason=mailbox.conflict)

    def _member(self, session: str) -> tuple[int, Mailbox]:
        """Return number and mailbox of the caller, if it has asked to join in this session."""
        learner, mailbox = self._caller(session)
        if mailbox.request is None:
            raise RefusedError(f"{mailbox.name} has not joined: call join first")
        return learner, mailbox

    def _check_session(self, session: str) -> tuple[int, Mailbox]:
        """Return number and mailbox of the caller, if the session is its latest one."""
        protocol.parse(session, protocol.ShortText)
        learner = self._mailboxes.number(current_call().caller)
        mailbox = self._mailboxes[learner]
        if mailbox.session is None:
            raise UnregisteredError(f"{mailbox.name} has not registered: call register first")
        if session != mailbox.session:
            raise SupersededError(
                f"the identity of {mailbox.name} is in use elsewhere, in a session that started "
                "later: stop one of them; if the disk of a device was copied, run "
                "melisma join --new-identity on the copy"
            )
        return learner, mailbox


def resumes(request: protocol.JoinRequest, earlier: protocol.JoinRequest | None) -> bool:
    """Return whether a learner that joins again has the data and the privacy that it had before."""
    if earlier is None:
        return False
    names = ("discloses", "local_shard_samples")
    return all(getattr(request, name) == getattr(earlier, name) for name in names)

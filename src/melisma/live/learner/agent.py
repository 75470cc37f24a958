"""The agent of a learner: polls the orchestrator and carries out its instructions.

One thread polls, so that work can be withdrawn or extended while it runs. One fetches shards, and
one sends requests for further shards. The main thread carries out instructions one at a time: it
trains batches of the shards that have arrived. A learner stops training early enough to upload its
update by the deadline.
"""

import threading
import time
from collections.abc import Callable
from math import isfinite, nan
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.allocation import get_scheme
from melisma.cycle.events import PHASES
from melisma.cycle.learner import CostHistory, benchmark_s, reserve_s, shard_bound
from melisma.disclosure import DISCLOSURE, Disclosure
from melisma.errors import DataError, SettingError
from melisma.fleet.rng import generator
from melisma.learning.batches import BatchStream
from melisma.learning.data.shards import ShardCache
from melisma.learning.parameters import Layout
from melisma.learning.stream_log import ReportedChange
from melisma.learning.trainer import Score, TrainingResult
from melisma.learning.verification.update_check import describe_environment, make_recorder
from melisma.live import protocol
from melisma.live.learner.active_assignment import ActiveAssignment, WithdrawnError, seconds_per
from melisma.live.learner.connection import Connection
from melisma.live.learner.device import Device, read_own_states
from melisma.live.learner.device_reports import (
    CycleTrained,
    Joined,
    Measured,
    OnReport,
    ignore_report,
)
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.fetcher import Fetcher, ShardFeed
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.local_data import check_local_data, read_local_data
from melisma.live.learner.running_stressor import Stressors
from melisma.live.learner.saved_training import SpoolOwner
from melisma.live.learner.shard_requests import ShardRequests
from melisma.live.learner.state_reports import StateReports
from melisma.live.learner.subset_benchmark import measure_speed, run_subset_benchmark
from melisma.live.learner.trainer_setup import prepare_trainers, require_64_bit
from melisma.live.learner.training_saver import TrainingSaver
from melisma.live.learner.training_spool import TrainingSpool, note
from melisma.live.learner.turns import Turns
from melisma.user_code import describe_error

PROBE_S = 2.0
"""Time to measure the speed before the run begins; the benchmark of the run is more precise."""


class Agent:
    """One learner of one run, after it has registered."""

    def __init__(
        self,
        settings: LearnerSettings,
        orchestrator: Connection,
        registered: protocol.RegisterResponse,
        session: str,
        report: OnReport = ignore_report,
        *,
        slowness: Callable[[], str] = str,
    ) -> None:
        # Before the imports, which take seconds.
        began_at = time.monotonic() - registered.run_s
        require_64_bit()
        self._settings, self._orchestrator, self._registered = settings, orchestrator, registered
        self._learner, self._task = registered.learner, registered.task
        self._session, self._report, self._slowness = session, report, slowness
        self._turns = Turns(settings.turns)
        self._scheme = get_scheme(self._task.scheme)
        self._needs = self._scheme.needs_with(self._task.passes)
        is_federated = self._task.mode == "federated"
        if is_federated and settings.local_data is None:
            raise SettingError(
                f"task {self._task.name} is federated learning, and this device has no data for it:"
                " use melisma join with --data FOLDER or --data MODULE:FUNCTION"
            )
        own = None if settings.states is None else read_own_states(settings.states)
        self._device = Device(settings.device, self._learner, began_at, own)
        self._stressors = Stressors(self._device, orchestrator, settings.allowed_modules)
        self._build_trainer = prepare_trainers(settings, registered, orchestrator)
        self._trainer = self._build_trainer()
        layout = Layout.from_arrays(self._trainer.initial())
        cache = ShardCache(Path(settings.cache), settings.cache_bytes)
        self._downloader = Downloader(orchestrator, cache, layout)
        self._local_shards, self._held_back = read_local_data(
            settings.local_data, self._task, self._learner, hold_back=registered.hold_back
        )
        if is_federated and settings.local_data is not None:
            samples = [*self._local_shards, *self._held_back]
            check_local_data(settings.local_data, self._trainer, samples)
        # An exception is an error of another thread, which ends the agent.
        self._instructions: SimpleQueue[tuple[float, protocol.AnyInstruction | Exception]]
        self._instructions = SimpleQueue()
        self._assignments: dict[tuple[int, int], ActiveAssignment] = {}
        self._received: set[tuple[int, int]] = set()  # the keys of all assignments
        self._extending = threading.Lock()
        self._fetcher = Fetcher(self._downloader, self._device, self._end_with)
        self._requests = ShardRequests(self._task, session, orchestrator, self._fetcher)
        owner = SpoolOwner.of(registered.run, self._learner, self._task)
        self._spool = TrainingSpool(settings.spool, owner)
        self._saver = TrainingSaver(
            self._spool, owner, self._trainer, self._fetcher, self._downloader, self._local_shards
        )
        if self._task.optimizer.keep:
            self._saver.restore_optimizer()
        self._costs, self._reports = self._spool.costs, self._prepare_reports()
        if self._reports is not None and not self._reports.histories:
            self._costs = None
        self._costs_reported = self._costs is None  # not those of an earlier process
        self._round = 0  # the latest one, or cycle
        self._probed = False  # the speed was measured before the run began, and not since

    def _prepare_reports(self) -> StateReports | None:
        """Return the costs in each state, if the scheme plans several tasks with them."""
        scheme, device = self._scheme, self._device
        if scheme.problem != "shared":
            return None
        if scheme.costs_in == "present" and not device.knows_next_state:
            raise SettingError(
                f"scheme {scheme.name} plans with the state that a device is going to be in, which "
                "only devices know whose states are drawn (emulated ones, and those of melisma "
                "join --states); use scheme med for others"
            )
        return StateReports(device, scheme.costs_in, self._spool.states)

    def run(self) -> bool:
        """Join the run and carry out instructions until the orchestrator ends it.

        Return whether there were any but that to leave.
        """
        was_instructed = False
        samples = tuple(len(shard) for shard in self._local_shards)
        request = protocol.JoinRequest(self._settings.discloses, samples, self._probe_speed())
        self._orchestrator.call("join", self._session, protocol.to_builtins(request))
        self._report(Joined(self._registered.begun))
        threading.Thread(target=self._poll, name="poll", daemon=True).start()
        self._fetcher.start()
        self._requests.start()
        while True:
            received_at, instruction = self._instructions.get()
            match instruction:
                case Exception():
                    raise instruction
                case protocol.RunBenchmark():
                    with self._turns.take() as waited_s:
                        self._run_benchmark(instruction, received_at + waited_s)
                case protocol.ComputeBound():
                    self._compute_bound(instruction, received_at)
                case protocol.Train():
                    with self._turns.take():
                        self._carry_out(self._assignments[instruction.cycle, instruction.attempt])
                case protocol.EvaluateModel():
                    with self._turns.take():
                        self._evaluate_model(instruction)
                case protocol.Leave():
                    self._spool.clear()
                    return was_instructed
            was_instructed = True

    def _probe_speed(self) -> float | None:
        """Measure the speed before the run begins; return it if the owner discloses it.

        A learner of a run that has begun is measured as soon as it has joined.
        """
        has_samples = self._local_shards or self._registered.benchmark_shards
        if self._registered.begun or not has_samples:
            return None
        with self._turns.take(), self._stressors.running():
            speed = measure_speed(
                self._registered,
                self._build_trainer,
                self._downloader,
                self._local_shards,
                self._device,
                min(benchmark_s(self._task), PROBE_S),
            )
        self._report(Measured(speed))
        self._probed = True
        return speed if self._settings.discloses == "costs" else None

    def _poll(self) -> None:
        """Poll until the run ends; an error ends the agent."""
        try:
            self._poll_until_end()
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            # No update would be accepted: the main thread need not train until the deadline.
            for assignment in list(self._assignments.values()):
                assignment.withdraw()
            self._end_with(error)

    def _end_with(self, error: Exception) -> None:
        """Raise an error in the main thread, from any thread, after what runs now."""
        self._instructions.put((time.monotonic(), error))

    def _poll_until_end(self) -> None:
        """Queue instructions, unless they concern what runs now."""
        while True:
            reply = self._orchestrator.call(
                "poll", self._session, self._progress(), self._slowness()
            )
            received_at = time.monotonic()
            instructions = protocol.parse_instructions(reply)
            # Extensions that come with an assignment are known before it is begun.
            queued = [item for item in instructions if self._receive(item, received_at)]
            for instruction in queued:
                self._instructions.put((received_at, instruction))
            if any(isinstance(instruction, protocol.Leave) for instruction in instructions):
                return

    def _receive(self, instruction: protocol.AnyInstruction, received_at: float) -> bool:
        """Carry out what concerns the work of now; return whether the main thread does the rest.

        An orchestrator that was restarted repeats assignments and extensions; these are ignored.
        """
        match instruction:
            case protocol.StopTraining():
                self._withdraw(instruction)
                return False
            case protocol.ExtendTraining():
                self._extend(instruction)
                return False
            case protocol.PrefetchShards():
                self._fetcher.fetch_ahead(instruction.shards)
                return False
            case protocol.Train():
                assignment = ActiveAssignment(instruction, received_at)
                if assignment.key in self._received:
                    return False
                self._received.add(assignment.key)
                self._assignments[assignment.key] = assignment
        if not isinstance(instruction, protocol.ComputeBound):
            # The downlink is needed, or measured.
            self._fetcher.fetch_ahead(())
        return True

    def _progress(self) -> tuple[int, int] | None:
        """Return cycle and visits of the latest assignment, if the scheme discloses progress."""
        assignments = list(self._assignments.values())
        if not assignments or not self._scheme.reports_progress:
            return None
        return assignments[-1].train.cycle, assignments[-1].visits

    def _withdraw(self, instruction: protocol.StopTraining) -> None:
        """Withdraw the assignment; the attempt may be that of its latest extension."""
        for cycle, attempt in list(self._assignments):
            # The main thread may have ended the assignment since.
            assignment = self._assignments.get((cycle, attempt))
            if assignment and cycle == instruction.cycle and attempt <= instruction.attempt:
                assignment.withdraw()
        self._spool.withdraw(instruction.cycle, instruction.attempt)

    def _extend(self, extension: protocol.ExtendTraining) -> None:
        """Add further shards to the assignment that is being trained, or will be."""
        with self._extending:
            for assignment in list(self._assignments.values()):
                train = assignment.train
                # An assignment has an earlier attempt than its extensions.
                if train.cycle != extension.cycle or train.attempt >= extension.attempt:
                    continue
                if assignment.knows(extension):
                    continue
                if assignment.feed is None:
                    assignment.early.append(extension)
                elif not assignment.feed.ended:
                    self._add_extension(assignment, assignment.feed, extension)

    def _add_extension(
        self,
        assignment: ActiveAssignment,
        feed: ShardFeed,
        extension: protocol.ExtendTraining,
    ) -> None:
        # One that the cache does not take is left, as if it had come after the training.
        if self._downloader.fits([*assignment.shards, *extension.shards]):
            assignment.add_extension(extension)
            self._fetcher.add(feed, self._saver.sources(extension), extension.passes)

    def _run_benchmark(self, instruction: protocol.RunBenchmark, received_at: float) -> None:
        """Measure this device and report its costs; once those of an earlier process, if known."""
        self._require_disclosure("costs")
        if self._costs_reported and (self._reports is None or self._reports.needs_benchmark):
            again = "" if self._costs is None else "for the next plan"
            self._measure(received_at + instruction.seconds, again)
        self._costs_reported = True
        table = self._cost_table(instruction.round)
        self._orchestrator.call("report_costs", self._session, table)

    def _set_length(self, deadline_s: float) -> None:
        """Set the length of this cycle, in a run that chooses it."""
        if self._task.total_s is not None and deadline_s > 0:
            self._task = msgspec.structs.replace(self._task, deadline_s=deadline_s)
            self._requests.task = self._task

    def _compute_bound(self, instruction: protocol.ComputeBound, received_at: float) -> None:
        """Report how many shards this device can train by the deadline."""
        self._set_length(instruction.deadline_s)
        self._require_disclosure("bounds")
        if self._costs is None:
            self._measure(received_at + benchmark_s(self._task))
        assert self._costs is not None
        cycle, deadline_s = instruction.cycle, instruction.deadline_s
        held = min(instruction.held, self._downloader.count_cached())
        shards = int(shard_bound(self._costs, self._task, deadline_s, held))
        self._orchestrator.call("report_bound", self._session, cycle, deadline_s, shards)
        if not shards and deadline_s == self._task.deadline_s:
            # Without an assignment no cycle corrects the costs: the device may be faster by now.
            self._measure(
                time.monotonic() + benchmark_s(self._task), "as no shard fits into a cycle"
            )

    def _require_disclosure(self, needed: Disclosure) -> None:
        levels = list(DISCLOSURE)
        if levels.index(self._settings.discloses) < levels.index(needed):
            raise SettingError(
                f"the orchestrator asked for {needed}; this learner discloses only "
                f"{self._settings.discloses}"
            )

    def _measure(self, until_at: float, again: str = "") -> None:
        """Run the benchmark; its costs replace those known before, corrected by its known bias.

        If the scheme needs the costs in several states, these share the time. `again` is the
        reason, if the device has been measured in this run.
        """
        if self._reports is None:
            self._costs = self._measure_present_state(until_at, self._costs)
        else:
            self._costs = self._measure_states(self._reports, until_at)
        self._save_costs()
        self._costs_reported = True
        speed = self._task.shard_samples / float(self._costs.train_s.mean)
        self._report(Measured(speed, "as the run begins" if self._probed else again))
        self._probed = False

    def _measure_states(self, reports: StateReports, until_at: float) -> CostHistory:
        """Measure each state that the scheme needs; return the costs in the present one."""
        present, began, states = self._device.state, time.monotonic(), reports.states_to_measure()
        for number, state in enumerate(states, 1):
            self._enter(state)
            share_at = began + (until_at - began) * number / len(states)
            before = reports.histories.get(state)
            reports.record_benchmark(self._measure_present_state(share_at, before))
        self._enter(present)
        return reports.histories.get(present, reports.histories[state])

    def _measure_present_state(self, until_at: float, before: CostHistory | None) -> CostHistory:
        with self._fetcher.downlink, self._stressors.running():
            return run_subset_benchmark(
                self._registered,
                self._build_trainer,
                self._downloader,
                self._local_shards,
                self._device,
                until_at,
                upload=self._probe_uplink,
                before=before,
            )

    def _enter(self, state: int) -> None:
        with self._fetcher.downlink:
            self._device.enter(state)

    def _save_costs(self) -> None:
        if self._costs is not None:
            states = None if self._reports is None else self._reports.save()
            self._spool.save_costs(self._costs, states)

    def _probe_uplink(self, size_bytes: int) -> None:
        """Upload zeros, to measure the link."""
        self._device.delay_upload(size_bytes)
        self._orchestrator.call(
            "probe_uplink", self._session, {"bytes": np.zeros(size_bytes, np.uint8)}
        )

    def _carry_out(self, assignment: ActiveAssignment) -> None:
        """Train an assignment and upload its update, unless it is withdrawn."""
        self._set_length(assignment.train.seconds_left)
        self._round = assignment.train.round or assignment.train.cycle
        self._enter(self._device.state_in(self._round))
        if self._reports is not None:
            self._reports.enter(self._round)
        assignment.lap("wait")
        try:
            with self._stressors.running():
                self._upload(assignment, self._train(assignment))
        except WithdrawnError:
            pass
        finally:
            del self._assignments[assignment.key]
        self._spool.delete()

    def _train(self, assignment: ActiveAssignment) -> TrainingResult | None:
        """Train until the deadline, from where a former process was; None if no time is left."""
        self._downloader.require_room(assignment.train.shards)
        resumed = self._resume(assignment)
        if resumed is not None:
            feed, model = resumed
        elif (fetched := self._fetch_model(assignment)) is not None:
            feed, model = self._start_feed(assignment), fetched
        else:
            return None
        try:
            waits = resumed is None and not self._task.overlap
            if waits and not self._wait_for_shards(assignment, feed):
                return None
            return self._train_until_deadline(assignment, feed, model)
        finally:
            self._fetcher.end(feed)
            self._update_costs(ship_s=feed.observed_ship_s())

    def _fetch_model(self, assignment: ActiveAssignment) -> dict[str, NDArray[Any]] | None:
        """Fetch the model of an assignment; None if no time is left to train."""
        try:
            with self._fetcher.downlink:
                model = self._downloader.fetch_model(
                    assignment.train.model, self._device, lambda: assignment.time_is_up(0.0)
                )
        finally:
            down_s = assignment.lap("fetch model")
            self._update_costs(down_s=down_s)
        assignment.upload_s = float(reserve_s(self._costs, self._task, down_s))
        return model

    def _start_feed(self, assignment: ActiveAssignment) -> ShardFeed:
        """Announce the work of an assignment to a stream of batches, and start fetching it."""
        train, feed = assignment.train, self._create_feed(assignment)
        self._fetcher.begin(feed, self._saver.sources(train), train.passes)
        self._open_feed(assignment, feed)
        return feed

    def _resume(
        self, assignment: ActiveAssignment
    ) -> tuple[ShardFeed, dict[str, NDArray[Any]]] | None:
        """Go on with what a former process saved; None if there is nothing, or it does not fit."""
        saved = self._spool.take(assignment.key)
        # Of a training that is audited, another process does not know the states so far.
        if saved is None or self._task.verify == "audit":
            return None
        assignment.upload_s = saved.header.upload_s
        feed = self._create_feed(assignment)
        # Its first shards had arrived before the first batch.
        feed.hold_back = False
        try:
            rest, model = self._saver.restore(saved, assignment.train, assignment.early, feed)
        except Exception as error:  # noqa: BLE001 - the trainer may be the user's
            reason = str(error) if isinstance(error, DataError) else describe_error(error)
            note(f"cycle {assignment.train.cycle} begins anew: its saved training: {reason}")
            return None
        assignment.resume(saved.header, rest)
        feed.shipped, as_sources = saved.header.shipped, self._saver.as_sources
        self._fetcher.resume(feed, [*map(as_sources, rest.works)], as_sources(rest.missing))
        self._open_feed(assignment, feed)
        if rest.released:
            self._requests.release(assignment.train.cycle, rest.released)
        return feed, model

    def _open_feed(self, assignment: ActiveAssignment, feed: ShardFeed) -> None:
        """Add the extensions that have been received, and from now on further ones."""
        with self._extending:
            early, assignment.early = assignment.early, []
            for extension in early:
                if extension.attempt not in assignment.attempts:
                    self._add_extension(assignment, feed, extension)
            assignment.feed = feed
        if not self._task.extension:
            feed.stream.close()
        self._spool.begin(assignment.visits)

    def _create_feed(self, assignment: ActiveAssignment) -> ShardFeed:
        """Return a feed with a stream of batches that stops in time for the upload."""
        train = assignment.train
        rng = generator(self._task.seed, "train", train.cycle, self._learner)
        stop = assignment.stop_signal(self._device, assignment.upload_s)
        recorder = assignment.recorder = make_recorder(self._task, self._trainer)
        waited_s = 0.0

        def stop_training() -> bool:
            nonlocal waited_s
            feed.check()
            self._device.skip(stream.waited_s - waited_s)
            waited_s = stream.waited_s
            if recorder is not None:
                recorder.record(stream.batches, self._trainer)  # type: ignore[arg-type] # resumable
            else:
                self._saver.save_if_due(assignment, feed)
            if self._task.extension:
                self._requests.send_if_due(assignment, feed, self._costs)
            return stop()

        stream = BatchStream(self._task.batch, rng, stop_training, repeat=self._task.extension)
        feed = ShardFeed(
            stream=stream,
            time_is_up=lambda: assignment.time_is_up(assignment.upload_s),
            hold_back=not self._task.overlap,
        )
        return feed

    def _wait_for_shards(self, assignment: ActiveAssignment, feed: ShardFeed) -> bool:
        """Wait until all shards are fetched and loaded; return whether there was time for them."""
        feed.all_fetched.wait()
        assignment.lap("fetch shards")
        feed.all_loaded.wait()
        assignment.lap("load")
        feed.check()
        return not feed.ended

    def _train_until_deadline(
        self, assignment: ActiveAssignment, feed: ShardFeed, model: dict[str, NDArray[Any]]
    ) -> TrainingResult:
        """Train the batches of a feed, beginning with these parameters."""
        assignment.lap("load")
        batches = assignment.time_batches(feed.stream, self._device)
        trained = self._trainer.train(model, batches, feed.stream.rng)
        self._device.finish_compute()
        self._learn_costs(assignment, feed, trained)
        if self._task.optimizer.keep:
            self._saver.save_optimizer()
        return trained

    def _learn_costs(
        self, assignment: ActiveAssignment, feed: ShardFeed, trained: TrainingResult
    ) -> None:
        """Correct the costs by the time of a training, as far as it was done in this process."""
        train_s = assignment.lap("train") - feed.stream.waited_s - assignment.setup_s
        assignment.charge(feed.stream.waited_s, "fetch shards", instead_of="train")
        visits, rest_s = trained.visits - assignment.resumed_visits, nan
        if not assignment.resumed_visits:
            rest_s = assignment.seconds["wait"] + assignment.seconds["load"] + assignment.setup_s
        self._update_costs(
            train_s=seconds_per(train_s, visits / self._task.shard_samples), rest_s=rest_s
        )

    def _upload(self, assignment: ActiveAssignment, trained: TrainingResult | None) -> None:
        """Upload the update; without parameters if no sample was trained."""
        trained = trained if trained is not None and trained.visits else None
        arrays: dict[str, NDArray[Any]] = trained.parameters if trained else {}
        reports_costs = self._needs == "costs" and self._costs is not None
        if self._reports is not None:
            # Otherwise the costs of a cycle tell nothing that the scheme plans with.
            reports_costs = reports_costs and self._scheme.costs_in == "expected"
        header = protocol.UpdateHeader(
            cycle=assignment.train.cycle,
            attempt=assignment.attempt,
            visits=trained.visits if trained else 0,
            planned_visits=assignment.planned_visits,
            shipped=assignment.feed.shipped if assignment.feed is not None else 0,
            loss=trained.loss if trained else 0.0,
            phases=tuple(assignment.seconds[phase] for phase in PHASES),
            costs=self._cost_table() if reports_costs else None,
        )
        size_bytes = sum(array.nbytes for array in arrays.values())
        self._device.delay_upload(size_bytes)
        message = protocol.to_builtins(header)
        revealed = self._commit(assignment, header, arrays)
        refused, unanswered_s = self._orchestrator.call_timed(
            "upload_update", self._session, message, arrays, *revealed, body_bytes=size_bytes
        )
        if refused == protocol.COMMIT_FIRST:
            # The orchestrator restarted since the commitment.
            revealed = self._commit(assignment, header, arrays)
            refused = self._orchestrator.call(
                "upload_update", self._session, message, arrays, *revealed, body_bytes=size_bytes
            )
        if refused:
            note(refused)
        # A restart of the orchestrator says nothing about the link.
        up_s = assignment.lap("upload") - unanswered_s
        if trained:
            self._update_costs(up_s=up_s)
            self._fetcher.mark_reported(assignment.shards)
        self._save_costs()
        self._report(
            CycleTrained(
                cycle=header.cycle,
                visits=header.visits,
                train_s=assignment.seconds["train"],
                loss=float(header.loss),
                refused=refused,
            )
        )

    def _commit(
        self,
        assignment: ActiveAssignment,
        header: protocol.UpdateHeader,
        arrays: dict[str, NDArray[Any]],
    ) -> list[dict[str, NDArray[Any]]]:
        """Commit to a training that may be checked; return the states to reveal, if any."""
        feed, recorder = assignment.feed, assignment.recorder
        if recorder is None or feed is None or not arrays:
            return []
        batches = feed.stream.batches
        commitment = protocol.UpdateCommitment(
            cycle=header.cycle,
            attempt=header.attempt,
            visits=header.visits,
            batches=batches,
            attempts=tuple(assignment.attempts),
            changes=tuple(
                ReportedChange(c.batches, c.announced, c.arrived) for c in feed.stream.changes
            ),
            digests=recorder.digests(batches, arrays),
            environment=describe_environment(self._trainer),
        )
        segment = self._orchestrator.call(
            "commit_update", self._session, protocol.to_builtins(commitment)
        )
        return [] if segment is None else [recorder.states(batches, segment).to_arrays()]

    def _evaluate_model(self, instruction: protocol.EvaluateModel) -> None:
        """Evaluate a model on the samples held back and report the sums."""
        with self._fetcher.downlink:
            model = self._downloader.fetch_model(instruction.model, self._device)
        if model is None:
            # The learner was busy for several cycles: this model has been replaced since.
            return
        scores = (self._trainer.score(model, samples) for samples in self._held_back)
        total = sum(scores, Score(0, 0.0, 0, 0))
        finite = isfinite(total.loss_sum)
        sums = protocol.EvaluationSums(
            instruction.cycle,
            total.samples,
            total.loss_sum if finite else 0.0,
            total.correct,
            total.label_count,
            finite,
        )
        self._orchestrator.call("report_evaluation", self._session, protocol.to_builtins(sums))

    def _update_costs(self, **seconds: float) -> None:
        """Correct the estimates by measured seconds, if a benchmark has made any."""
        if self._costs is not None:
            self._costs = self._costs.after(**seconds)
        if self._reports is not None:
            self._reports.update(**seconds)

    def _cost_table(self, next_round: int = 0) -> tuple[tuple[float, ...], ...]:
        """Return the costs to report, before the next round or cycle."""
        assert self._costs is not None
        if self._reports is None:
            return tuple(tuple(row) for row in self._costs.costs().tolist())
        table = self._reports.costs(next_round or self._round + 1)
        return tuple(tuple(row) for row in table.tolist())

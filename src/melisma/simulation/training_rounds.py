"""The training of a cycle in virtual time: work travels to learners, requests and updates back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.ragged import RaggedArray, concatenate_ranges
from melisma.cycle.state import CycleState
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.learning.verification.segments import segment_edges
from melisma.simulation.compute.work_record import WorkRecords
from melisma.simulation.energy_use import EnergyUse
from melisma.simulation.faults import Corruption, Greed
from melisma.simulation.kernel import EventQueue
from melisma.simulation.learners.simulated_learners import SimulatedLearners
from melisma.simulation.learners.simulated_training import Assignment, extend, prefetch, train
from melisma.simulation.learners.simulated_updates import SimulatedUpdates
from melisma.simulation.network import InFlight, SimulatedNetwork

# Requests for further shards arrive at this many instants of a cycle.
REQUEST_TICKS = 64
ASKED_FACTOR = 2  # shards that a greedy learner asks for, in those that it would train
SIMULATED_ENVIRONMENT = "simulated, cpu"
CORRUPT = "the update is refused: it holds numbers that are not finite"


class SimulatedOrchestrator(Protocol):
    """The driver of a run, as its training uses it."""

    queue: EventQueue
    network: SimulatedNetwork
    learners: SimulatedLearners
    work_records: WorkRecords
    energy: EnergyUse

    @property
    def repeats_instructions(self) -> bool:
        """Whether the orchestrator may send an instruction again after a restart."""

    @property
    def state(self) -> CycleState:
        """The state of the cycle machine."""

    def handle(self, event: Any) -> None:
        """Give an event to the cycle machine."""

    def select_present(self, learners: Ints, indices: Ints) -> Ints:
        """Return the indices of learners that are up now."""


@dataclass(frozen=True, eq=False)
class TrainingRound:
    """Learners that train, with the updates that they will send."""

    cycle: int
    updates: SimulatedUpdates
    in_flight: list[InFlight]
    extended: set[tuple[int, int]] = field(default_factory=set)  # learner and attempt

    def add_extended(self, learners: Ints, attempts: Ints) -> Bools:
        """Record extensions; return which of them are new."""
        keys = list(zip(learners.tolist(), attempts.tolist(), strict=True))
        new = np.array([key not in self.extended for key in keys], np.bool_)
        self.extended.update(keys)
        return new

    @property
    def is_done(self) -> bool:
        """Whether every update has arrived or was lost."""
        return all(reports.is_done for reports in self.in_flight)


class TrainingRounds:
    """All training that is under way; several cycles are, if updates are late."""

    def __init__(
        self,
        orchestrator: SimulatedOrchestrator,
        corrupt: Corruption,
        greedy: Mapping[int, Greed] = MappingProxyType({}),
    ) -> None:
        self._orchestrator, self._corrupt = orchestrator, corrupt
        self._demanding = [learner for learner, greed in greedy.items() if greed == "ask"]
        self._rounds: list[TrainingRound] = []

    def dispatch(self, command: commands.Dispatch) -> None:
        """Send assignments to learners, which train and send their updates."""
        samples = self._orchestrator.state.learners.samples[command.learners]
        self._orchestrator.work_records.add(command)
        self._orchestrator.learners.devices.share_link(command.learners)
        follow = partial(self._train, command, samples)
        self._orchestrator.network.send_instruction(command.learners, follow)

    def resend(self, command: commands.Resend) -> None:
        """Send assignments and extensions again to learners that may not have them."""
        run, (assigned,) = self._orchestrator, np.nonzero(command.attempts == 1)
        run.work_records.add(command)
        samples = self._samples(command)
        (extended,) = np.nonzero(command.attempts > 1)
        for rows, follow in (
            (assigned, partial(self._train, command, samples)),
            (extended, partial(self._extend, command)),
        ):
            if rows.size:
                chosen = partial(_follow_rows, rows, follow)
                run.network.send_instruction(command.learners[rows], chosen)

    def _samples(self, command: commands.Resend) -> Ints:
        """Return the samples in the shards of each assignment that is sent again."""
        state, shards = self._orchestrator.state, command.shards
        if state.federated:
            return state.learners.local_shards.samples_in(command.learners, shards)
        return shards.row_sums(state.shard_samples[shards.values])

    def _train(self, command: Assignment, samples: Ints, indices: Ints) -> None:
        """Let the learners at these indices of a command train."""
        run = self._orchestrator
        indices = run.select_present(command.learners, indices)
        updates = train(run.learners, command, indices, samples[indices], run.queue.now_s)
        self._send_requests(command, updates)
        deliver = partial(self._report_updates, command.cycle, updates)
        in_flight = run.network.send_reports(updates.learners, updates.arrives_s, deliver)
        _lose(in_flight, run.energy.draw(updates))
        unfinished = [each for each in self._rounds if not each.is_done]
        self._rounds = [*unfinished, TrainingRound(command.cycle, updates, in_flight)]

    def _send_requests(self, command: Assignment, updates: SimulatedUpdates) -> None:
        """Send the requests for further shards, and shards that learners will not get to."""
        # Requests of many learners arrive together, as messages to a busy orchestrator do.
        tick_s = self._orchestrator.state.task.deadline_s / REQUEST_TICKS
        ask_s = np.ceil(updates.ask_s / tick_s) * tick_s
        # A learner that stops before the tick does not ask any more, and a restarted one not again.
        active = (ask_s < updates.stops_s) & (ask_s >= self._orchestrator.queue.now_s)
        for counts, deliver in (
            (updates.wanted, self._report_requests),
            (updates.released, self._report_releases),
        ):
            rows = np.flatnonzero((counts > 0) & active)
            report = partial(deliver, command, updates, rows)
            self._orchestrator.network.send_reports(updates.learners[rows], ask_s[rows], report)

    def _report_requests(
        self,
        command: Assignment,
        updates: SimulatedUpdates,
        asking: Ints,
        arrived: Ints,
        came_s: Floats,
    ) -> None:
        """Report that learners want further shards."""
        rows = asking[arrived]
        greedy = np.isin(updates.learners[rows], self._demanding)
        self._orchestrator.handle(
            events.ShardsRequested(
                at_s=float(came_s[-1]),
                learners=updates.learners[rows],
                cycle=command.cycle,
                shards=updates.wanted[rows] * np.where(greedy, ASKED_FACTOR, 1),
            )
        )

    def _report_releases(
        self,
        command: Assignment,
        updates: SimulatedUpdates,
        releasing: Ints,
        arrived: Ints,
        came_s: Floats,
    ) -> None:
        """Report the last shards of learners, which will not get to them."""
        rows = releasing[arrived]
        learners, counts = updates.learners[rows], updates.released[rows]
        shards = command.shards.take(updates.indices[rows])
        first = shards.starts + shards.counts - counts
        numbers = shards.values[concatenate_ranges(first, counts)]
        # Learners do not train shards that the machine takes back.
        state = self._orchestrator.state
        expected = state.expects_in_cycle(learners, command.cycle, updates.attempts[rows])
        taken = np.repeat(expected, counts)
        owners = np.repeat(learners, counts)
        self._orchestrator.work_records.release(command.cycle, owners[taken], numbers[taken])
        self._orchestrator.handle(
            events.ShardsReleased(
                at_s=float(came_s[-1]),
                learners=learners,
                cycle=command.cycle,
                shards=RaggedArray(counts, numbers),
            )
        )

    def extend(self, command: commands.Extend) -> None:
        """Send further shards to learners that train."""
        self._orchestrator.work_records.add(command)
        follow = partial(self._extend, command)
        self._orchestrator.network.send_instruction(command.learners, follow)

    def _extend(self, command: commands.Extend | commands.Resend, indices: Ints) -> None:
        """Give the learners at these indices of a command further shards; each once if repeated."""
        run = self._orchestrator
        indices = run.select_present(command.learners, indices)
        # Of a learner that restarted, only the latest training goes on.
        for each in reversed(self._rounds):
            if each.cycle != command.cycle:
                continue
            both, rows, places = np.intersect1d(
                each.updates.learners, command.learners[indices], return_indices=True
            )
            chosen, indices = indices[places], np.delete(indices, places)
            if run.repeats_instructions and both.size:
                new = each.add_extended(both, command.attempts[chosen])
                both, rows, chosen = both[new], rows[new], chosen[new]
            if both.size:
                attempts, shards = command.attempts[chosen], command.shards.take(chosen)
                updates, before = each.updates, each.updates.shipped[rows]
                extend(run.learners, updates, rows, attempts, shards, run.queue.now_s)
                fetched, stops_s = updates.shipped[rows] - before, updates.stops_s[rows]
                _lose(each.in_flight, run.energy.draw_for_shards(both, fetched, stops_s))

    def _report_updates(
        self, cycle: int, updates: SimulatedUpdates, indices: Ints, came_s: Floats
    ) -> None:
        """Report updates that arrive, those that are corrupt by themselves."""
        arrived = updates.take(indices)
        self._record_batches(cycle, arrived)
        corrupt, at_s = self._corrupt(arrived.learners, arrived.visits), float(came_s[-1])
        for rows, refused in ((np.flatnonzero(~corrupt), ""), (np.flatnonzero(corrupt), CORRUPT)):
            if not rows.size:
                continue
            subset = arrived.take(rows)
            if not refused:
                self._report_costs(subset, at_s)
                self._report_commitments(cycle, subset, at_s)
            self._orchestrator.handle(
                events.UpdatesReceived(
                    at_s=at_s,
                    learners=subset.learners,
                    cycle=cycle,
                    attempts=subset.attempts.copy(),
                    visits=subset.visits,
                    planned_visits=np.minimum(subset.visits, subset.arrived_visits),
                    shipped=subset.shipped,
                    loss=np.full(rows.size, np.nan),
                    phases=subset.phases,
                    arrivals_s=came_s[rows],
                    refused=refused,
                )
            )

    def _record_batches(self, cycle: int, updates: SimulatedUpdates) -> None:
        """Record the batches of updates that the machine accepts: the first of each assignment."""
        accepted = self._orchestrator.state.expects(updates.learners, cycle, updates.attempts)
        learners, batches = updates.learners[accepted], updates.batches[accepted]
        self._orchestrator.work_records.set_batches(cycle, learners, batches)

    def _report_commitments(self, cycle: int, updates: SimulatedUpdates, at_s: float) -> None:
        """Report that learners committed to their updates, if these are checked."""
        rows = np.flatnonzero(updates.batches)
        if self._orchestrator.state.task.verify != "audit" or not rows.size:
            return
        segments = [len(segment_edges(batches)) for batches in updates.batches[rows].tolist()]
        self._orchestrator.handle(
            events.UpdatesCommitted(
                at_s=at_s,
                learners=updates.learners[rows],
                cycle=cycle,
                attempts=updates.attempts[rows].copy(),
                segments=np.array(segments, np.int64),
                environments=(SIMULATED_ENVIRONMENT,) * rows.size,
            )
        )

    def _report_costs(self, updates: SimulatedUpdates, at_s: float) -> None:
        """Report the costs of learners that have measured them, if the scheme needs costs."""
        if self._orchestrator.learners.reports_costs and updates.measured.any():
            known = updates.take(np.flatnonzero(updates.measured))
            self._orchestrator.handle(
                events.CostsReported(at_s=at_s, learners=known.learners, costs=known.costs)
            )

    def prefetch(self, command: commands.Prefetch) -> None:
        """Let learners fetch shards while they wait for the next cycle."""
        run = self._orchestrator

        def follow(indices: Ints) -> None:
            indices = run.select_present(command.learners, indices)
            shards = command.shards.take(indices)
            prefetch(run.learners, command.learners[indices], shards, run.queue.now_s)

        run.network.send_instruction(command.learners, follow)

    def withdraw(self, command: commands.Withdraw) -> None:
        """Stop the training of assignments that no longer count."""
        run = self._orchestrator

        def follow(indices: Ints) -> None:
            learners, now_s = command.learners[indices], run.queue.now_s
            for each in self._rounds:
                if each.cycle == command.cycle:
                    updates = each.updates
                    # A learner that has stopped training sends its update in any case.
                    busy = np.isin(updates.learners, learners) & (updates.stops_s > now_s)
                    run.learners.stop(updates.learners[busy], updates.arrives_s[busy], now_s)
                    run.energy.stop(updates.learners[busy])
                    _lose(each.in_flight, updates.learners[busy])

        run.network.send_instruction(command.learners, follow)


def _lose(in_flight: list[InFlight], learners: Ints) -> None:
    """Lose the updates of these learners."""
    for reports in in_flight if learners.size else ():
        reports.lose(learners)


def _follow_rows(rows: Ints, follow: Callable[[Ints], object], indices: Ints) -> None:
    """Follow a part of an instruction."""
    follow(rows[indices])

"""Real training of simulated learners: the mean of their updates, cycle by cycle.

Training starts when the updates to average are known, so that updates that do not count are not
computed.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, isnan, nan

import numpy as np

from melisma.cycle.events import NO_VERIFIED_UPDATES, VerifiedUpdates
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.rounds import MAX_EMPTY_CYCLES
from melisma.errors import DataError, MelismaWarning
from melisma.fleet.array_types import Floats, Ints
from melisma.learning import batched
from melisma.learning.aggregation import RunningMean, StartShares, add_parameters
from melisma.learning.loaded_task import LoadedTask
from melisma.learning.own_aggregation import UpdateStack, find_aggregation
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.server.server_optimizer import ServerOptimizer, trainable_arrays
from melisma.learning.step_normalization import normalize_changes, step_factors
from melisma.learning.trainer_factory import use_one_thread
from melisma.learning.update_guard import UpdateChanges, UpdateGuard, distances, norm_of
from melisma.learning.verification.reexecution import Verdict
from melisma.learning.verification.update_check import UpdateChecks
from melisma.simulation.compute.compute import Averaged, ScoreValues
from melisma.simulation.compute.fork_pool import ForkPool, can_fork
from melisma.simulation.compute.sample_index import SampleIndex
from melisma.simulation.compute.work_record import CycleWork, WeightedWork
from melisma.simulation.compute.work_trainer import WorkTrainer, split_evenly
from melisma.simulation.faults import Greed

# A cycle is summed in up to this many parts, independent of the number of processes, as
# floating-point sums depend on the order of addition.
MAX_PARTS = 16
LOSSES_BYTES = 1 << 20  # room for the losses of a part in shared memory


@dataclass(frozen=True, eq=False)
class WorkPart:
    """The work of some learners, the share of each in the mean, and the factor for its change."""

    work: CycleWork
    shares: Floats
    scales: Floats


@dataclass(frozen=True, eq=False)
class PartResult:
    """The mean of a part; of each of its learners the loss and the distance from the start.

    The distance of an update that is not finite, or whose check failed, is NaN; without a guard
    others are 0.
    """

    mean: RunningMean
    losses: Floats
    distances: Floats
    checks: list[UpdateChecks]


class RealTraining:
    """Trains on real data, and averages the updates of a cycle."""

    trains = True

    def __init__(
        self, loaded: LoadedTask, index: SampleIndex, names: Sequence[str], *, one_by_one: bool
    ) -> None:
        self._task = loaded.task
        self._trainer = WorkTrainer(loaded, index, names, one_by_one=one_by_one)
        self.parameters: Arrays = loaded.initial
        self._before: Arrays = self.parameters
        self._layout = Layout.from_arrays(self.parameters)
        self._guard = UpdateGuard(loaded.task.guard)
        self._aggregation = find_aggregation(loaded.task.aggregation)
        self._server = ServerOptimizer(loaded.task.server, trainable_arrays(loaded.trainer))
        self._starts: dict[int, Arrays] = {}  # the parameters that recent cycles began with
        self._cycles_without_update = 0
        self._pool: ForkPool[Arrays, WorkPart, PartResult] | None = None
        self._checks: list[UpdateChecks] = []

    def set_greedy(self, learners: Mapping[int, Greed]) -> None:
        """Let these learners cheat from now on."""
        self._trainer.set_greedy(learners)

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Averaged:
        """Train, and average in double precision, in the order of learners.

        The guard can decide only when all updates are known, and they do not fit in memory. If it
        reduces one, which is rare, all are trained once more with the scales known.
        """
        self._before = self.parameters
        if self._task.late == "carry":
            self._starts[cycle] = self.parameters
            # An update that arrives after its last cycle has closed joins the average after that.
            self._starts.pop(cycle - MAX_LATE_CYCLES - 2, None)
        if not parts:
            return Averaged(np.empty(0), [])
        weights = np.concatenate([part.weights for part in parts])
        steps = np.concatenate([part.steps for part in parts])
        if self._aggregation is None:
            factors = step_factors(weights, steps)
            losses, changes = self._average(cycle, parts, _split_by_part(factors, parts))
            scales, counted = self._judge(changes, weights, steps)
            if (scales * counted != factors)[~np.isnan(changes.distances)].any():
                self.parameters = self._before
                if scales.any():
                    self._average(cycle, parts, _split_by_part(scales * counted, parts))
        else:
            stack, losses, changes = self._stack_updates(cycle, parts)
            scales, counted = self._judge(changes, weights, steps)
            used = (scales > 0) & ~np.isnan(changes.distances)
            if used.any():
                rows = _by_learner(parts)
                rows = rows[used[rows]]
                updates = stack.take_scaled(rows, self._before, (scales * counted)[rows])
                self.parameters = self._aggregation(updates, weights[rows], self._before)
        if self.parameters is not self._before:
            self.parameters = self._server.apply(self._before, dict(self.parameters))
        self._trainer.forget_results()
        wrong = np.array([check.verdict is Verdict.WRONG for check in self._checks], np.bool_)
        scales = np.where(wrong, 0.0, scales)
        return Averaged(losses, _split_by_part(scales, parts), _verified(parts, self._checks))

    def _judge(self, changes: UpdateChanges, weights: Floats, steps: Ints) -> tuple[Floats, Floats]:
        """Return the guard's scale of each update, and its factor for local steps.

        Updates that are not finite do not count, as live runs refuse them.
        """
        finite = ~np.isnan(changes.distances)
        scales, factors = np.ones(finite.size), np.ones(finite.size)
        if not finite.any():
            return scales, factors
        factors[finite] = step_factors(weights[finite], steps[finite] if steps.size else steps)
        counted = normalize_changes(changes.take(finite), weights[finite], factors[finite])
        scales[finite] = self._guard.scales(counted, norm_of(self._before))
        self._guard.record(counted, scales[finite])
        return scales, factors

    def _stack_updates(
        self, cycle: int, parts: Sequence[WeightedWork]
    ) -> tuple[UpdateStack, Floats, UpdateChanges]:
        """Train, with all updates in memory; return them, this cycle's losses, and all changes."""
        learners = sum(part.learners.size for part in parts)
        stack, found = UpdateStack(self._layout, learners), np.empty(learners)
        losses, first, finite = np.empty(0), 0, np.ones(learners, np.bool_)
        self._checks = [UpdateChecks()] * learners
        for part in parts:
            late = part.record.cycle != cycle
            start = self._starts[part.record.cycle] if late else self._before
            order, part_losses = np.argsort(part.learners), np.empty(part.learners.size)
            work = part.record.of(part.learners[order], part.attempts[order])
            for indices, result in self._trainer.train_blocks(work, start):
                rows = order[indices]
                stack.set(first + rows, result.parameters, start, self._before)
                changes = self._distances(result, start)
                finite[first + rows] = ~np.isnan(changes)
                found[first + rows] = changes
                part_losses[rows] = result.loss
                for row in rows.tolist():
                    checks = self._trainer.take_checks(int(part.learners[row]))
                    self._checks[first + row] = checks
                    if checks.verdict is Verdict.WRONG:
                        found[first + row] = nan
            losses = losses if late else part_losses
            first += part.learners.size
        self._check_updates(int((~finite).sum()), cycle, learners, bool(finite.any()))
        visits = np.concatenate([part.visits for part in parts])
        return stack, losses, UpdateChanges(found, visits)

    def _average(
        self, cycle: int, parts: Sequence[WeightedWork], scales: list[Floats]
    ) -> tuple[Floats, UpdateChanges]:
        """Average with these scales; return the losses of this cycle's updates, and all changes.

        The distance of an update that is not finite, and left out, is NaN.
        """
        weights = [part.weights * (scale > 0) for part, scale in zip(parts, scales, strict=True)]
        total = sum(weight.sum() for weight in weights)
        mean, losses, groups = RunningMean(self._layout), np.empty(0), []
        found: list[Floats] = []
        self._checks = []
        for part, weight, scale in zip(parts, weights, scales, strict=True):
            late = part.record.cycle != cycle
            start = self._starts[part.record.cycle] if late else self._before
            result = self._train_weighted(mean, part, start, weight / total, scale)
            found.append(result.distances)
            self._checks += result.checks
            losses = losses if late else result.losses
            counted = weight * ~np.isnan(result.distances) / total
            groups.append((counted.sum(), counted @ scale, start if late else None))
        updates = sum(part.learners.size for part in parts)
        any_wrong = any(check.verdict is Verdict.WRONG for check in self._checks)
        self._check_updates(mean.excluded, cycle, updates, bool(mean) or any_wrong)
        if mean:
            kept = 1 - mean.excluded_share
            shares = [StartShares(float(a / kept), float(b / kept), s) for a, b, s in groups]
            self.parameters = add_parameters(mean.result(), self._before, shares)
        visits = np.concatenate([part.visits for part in parts])
        return losses, UpdateChanges(np.concatenate(found), visits)

    def restore(self) -> None:
        """Return to the model before the latest average."""
        if self.parameters is not self._before:
            self.parameters = self._before
            self._guard.forget_last()
            self._server.undo()

    def _train_weighted(
        self,
        mean: RunningMean,
        part: WeightedWork,
        start: Arrays,
        shares: Floats,
        scales: Floats,
    ) -> PartResult:
        """Train one cycle's work from its start and add it to the mean."""
        order = np.argsort(part.learners)
        work = part.record.of(part.learners[order], part.attempts[order])
        work = replace(work, everyone=work)
        split = split_evenly(
            order.size, min(ceil(order.size / self._trainer.learners_per_process(work)), MAX_PARTS)
        )
        pool = self._pool_for(len(split))
        parts = (
            WorkPart(work.take(rows), shares[order][rows], scales[order][rows]) for rows in split
        )
        train = partial(self._train_part, start)
        results = map(train, parts) if pool is None else pool.map(start, parts)
        losses, found = np.empty(order.size), np.empty(order.size)
        checks = [UpdateChecks()] * order.size
        for rows, result in zip(split, results, strict=True):
            mean.merge(result.mean)
            losses[order[rows]] = result.losses
            found[order[rows]] = result.distances
            for row, check in zip(order[rows].tolist(), result.checks, strict=True):
                checks[row] = check
        return PartResult(mean, losses, found, checks)

    def _check_updates(self, excluded: int, cycle: int, updates: int, any_left: bool) -> None:
        """Warn if updates are not finite; raise `DataError` if none was for several cycles."""
        if excluded:
            warnings.warn(
                f"cycle {cycle}: {excluded} of {updates} updates hold numbers that are "
                "not finite, and are left out of the mean; optimizer.lr may be too large",
                MelismaWarning,
                stacklevel=3,
            )
        self._cycles_without_update = 0 if any_left else self._cycles_without_update + 1
        if self._cycles_without_update == MAX_EMPTY_CYCLES:
            # Live runs refuse such updates, so that the cycle is empty.
            raise DataError(
                f"{MAX_EMPTY_CYCLES} cycles in a row no update was finite, so the model did not "
                "change; optimizer.lr may be too large"
            )

    def _pool_for(self, parts: int) -> ForkPool[Arrays, WorkPart, PartResult] | None:
        """Return processes that train, if there is work for several and forking is safe."""
        cores = self._trainer.cores
        # The state of optimisers must stay in one process.
        alone = parts == 1 or cores == 1 or self._task.optimizer.keep
        if self._pool is None and not alone and can_fork():
            buffer_bytes = RunningMean(self._layout).nbytes + LOSSES_BYTES
            self._pool = ForkPool(self._train_part, min(cores, parts), use_one_thread, buffer_bytes)
        return None if alone else self._pool

    def _train_part(self, start: Arrays, part: WorkPart) -> PartResult:
        mean, losses = RunningMean(self._layout), np.empty(part.shares.size)
        found, checks = np.zeros(part.shares.size), [UpdateChecks()] * part.shares.size
        for rows, result in self._trainer.train_blocks(part.work, start):
            if self._guard.rule != "off":
                found[rows] = distances(result.parameters, start)
            losses[rows] = result.loss
            wrong = self._take_checks(part.work, rows, checks)
            if wrong:
                mean.leave_out(float(part.shares[rows].sum()))
                found[rows] = nan
                continue
            finite = mean.add(part.shares[rows], result.parameters, part.scales[rows])
            found[rows[~finite]] = nan
            # Free the memory now, so that the next result reuses it while it is cached.
            del result
        return PartResult(mean, losses, found, checks)

    def _take_checks(self, work: CycleWork, rows: Ints, checks: list[UpdateChecks]) -> bool:
        """Store the checks of these rows; return whether that of a single one failed."""
        for row in rows.tolist():
            checks[row] = self._trainer.take_checks(int(work.learners[row]))
        return rows.size == 1 and checks[int(rows[0])].verdict is Verdict.WRONG

    def _distances(self, result: batched.BatchedResults, start: Arrays) -> Floats:
        """Return the distance of each update from its start, NaN if it is not finite."""
        floats = [array for array in result.parameters.values() if array.dtype.kind == "f"]
        rows = [np.isfinite(array).reshape(len(array), -1).all(axis=1) for array in floats]
        finite: Floats = np.where(np.logical_and.reduce(rows), 0.0, nan)
        return finite + (0.0 if self._guard.rule == "off" else distances(result.parameters, start))

    def score(self) -> ScoreValues:
        """Return loss and accuracy on the test samples, or on those that devices hold back."""
        return self._trainer.score(self.parameters)

    def close(self) -> None:
        """End the processes that trained."""
        if self._pool is not None:
            self._pool.close()


def _verified(parts: Sequence[WeightedWork], checks: Sequence[UpdateChecks]) -> VerifiedUpdates:
    """Return the checks of all updates that were checked at all."""
    rows = [n for n, check in enumerate(checks) if check.verdict or not isnan(check.gap)]
    if not rows:
        return NO_VERIFIED_UPDATES
    learners = np.concatenate([part.learners for part in parts])
    cycles = np.concatenate([np.full(part.learners.size, part.record.cycle) for part in parts])
    return VerifiedUpdates(
        learners[rows],
        cycles[rows],
        np.array([int(checks[row].verdict) for row in rows], np.int64),
        np.array([checks[row].gap for row in rows], np.float64),
        float(sum(check.visits for check in checks)),
        tuple(c.reason for c in checks if c.verdict is Verdict.WRONG),
    )


def _split_by_part(values: Floats, parts: Sequence[WeightedWork]) -> list[Floats]:
    """Return the values of all updates by part."""
    return np.split(values, np.cumsum([part.learners.size for part in parts])[:-1])


def _by_learner(parts: Sequence[WeightedWork]) -> Ints:
    """Return the rows of all updates in the order of learners, earlier cycles first."""
    learners = np.concatenate([part.learners for part in parts])
    cycles = np.concatenate([np.full(part.learners.size, part.record.cycle) for part in parts])
    return np.lexsort((cycles, learners))

"""The files that the orchestrator keeps in a run folder, each written atomically.

::

    trace.jsonl          every event and command
    best.safetensors     the best model, on request
    checkpoints/         the model after each cycle, on request
    model.safetensors    the model after the last cycle that changed it
    updates/             updates that were not averaged yet
    parameters/          the models that learners start from, while their updates can arrive
"""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from melisma.atomic import write_atomic
from melisma.cycle.commands import Aggregate
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.server_settings import ServerSettings
from melisma.learning.aggregation import (
    SpooledUpdate,
    StartShares,
    UpdateSpool,
    add_parameters,
    weighted_mean,
)
from melisma.learning.data.shards import ShardFolder
from melisma.learning.own_aggregation import OwnAggregation, UpdateStack
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.server.server_optimizer import ServerOptimizer
from melisma.learning.step_normalization import normalize_changes, step_factors
from melisma.learning.trainer import Score
from melisma.learning.update_guard import UpdateChanges, UpdateGuard, distance, norm_of
from melisma.live.code_bundle import CodeBundle
from melisma.live.orchestrator.combined_score import CombinedScore
from melisma.live.protocol import INITIAL_MODEL, ShardRef
from melisma.private_files import make_private_folder
from melisma.runs.checkpoints import Checkpoints
from melisma.runs.folder import MODEL_FILE, PARAMETERS_FOLDER, UPDATES_FOLDER
from melisma.runs.trace import Step, TraceFile

TEMPORARY_FOLDERS = (UPDATES_FOLDER, PARAMETERS_FOLDER)


@dataclass(frozen=True)
class StoredUpdate:
    """The file of an update, and its distance from the parameters that it began with.

    Without a guard the distance is not computed, and 0.
    """

    path: Path
    distance: float


@dataclass(frozen=True)
class AcceptedUpdate:
    """A spooled update, the cycle of its assignment, and how far it is from its start.

    `steps` are 0 unless the task normalises changes by them.
    """

    update: SpooledUpdate
    cycle: int
    distance: float
    visits: int
    steps: int = 0


@dataclass(frozen=True, eq=False)
class GuardedUpdates:
    """Updates that did not count in full: learner, cycle of the assignment, and scale of each."""

    learners: Ints
    cycles: Ints
    scales: Floats


@dataclass
class RunStore:
    """The folder of one run, and the shards that learners download."""

    folder: Path
    layout: Layout
    shards: ShardFolder | None
    guard: UpdateGuard = field(default_factory=lambda: UpdateGuard("off"))
    server: ServerOptimizer = field(default_factory=lambda: ServerOptimizer(ServerSettings()))
    checkpoints: Checkpoints | None = None
    aggregation: OwnAggregation | None = None
    version: int = 0
    parameters: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trace = TraceFile(self.folder)
        for name in TEMPORARY_FOLDERS:
            make_private_folder(self.folder / name)
        shards = self.shards.shards if self.shards is not None else []
        self._shard_refs = [ShardRef(s.number, s.sha256, s.size_bytes, s.samples) for s in shards]
        self._accepted: dict[tuple[int, int, int], StoredUpdate] = {}
        self._versions: dict[int, int] = {}  # that each cycle began with
        self._present = 0, self.parameters  # version and parameters, replaced together
        self._version_before = 0  # the version before the latest average

    @property
    def samples(self) -> list[int]:
        """The number of samples of each shard."""
        return [ref.samples for ref in self._shard_refs]

    def shard_refs(self, numbers: Sequence[int]) -> tuple[ShardRef, ...]:
        """Return references to shards by number."""
        return tuple(self._shard_refs[number] for number in numbers)

    def path(self, name: str) -> Path | None:
        """Return the file that learners may download by this name: a shard's hash, or a model."""
        if self.shards is not None and (path := self.shards.path(name)):
            return path
        served = (*map(_model_name, self._kept_versions()), INITIAL_MODEL)
        return self.folder / PARAMETERS_FOLDER / name if name in served else None

    def bundle_path(self, bundle: CodeBundle) -> Path:
        """Return the file of a task's source; write it when it is first asked for."""
        path = self.folder / PARAMETERS_FOLDER / bundle.file_name
        return path if path.is_file() else write_atomic(path, bundle.content, mode=0o600)

    @property
    def model_name(self) -> str:
        """The file name of the current parameters."""
        return _model_name(self.version)

    def save_initial(self, parameters: Arrays) -> None:
        """Save the parameters before the first cycle."""
        self._set_parameters(self.version, dict(parameters))
        path = self.folder / PARAMETERS_FOLDER / self.model_name
        write_atomic(path, save(self.parameters), mode=0o600)

    def record(self, step: Step) -> None:
        """Append a step to the trace."""
        self._trace.write(step)

    def begin_cycle(self, cycle: int) -> None:
        """Record the parameters that a cycle begins with; keep those of late updates."""
        self._versions[cycle] = self.version
        oldest = cycle - MAX_LATE_CYCLES - 1
        self._versions = {k: version for k, version in self._versions.items() if k >= oldest}

    def spool(self, assignment: tuple[int, int, int], update: Arrays) -> StoredUpdate:
        """Write the update of an assignment (learner, cycle, attempt) to disk, from any thread.

        Raises `DataError` if it does not fit.
        """
        learner, cycle, attempt = assignment
        folder = self.folder / UPDATES_FOLDER / f"{cycle}-{attempt}"
        path = UpdateSpool(folder, self.layout).add(learner, update)
        if self.guard.rule == "off":
            return StoredUpdate(path, 0.0)
        # Known before the cycle closes, so that aggregation reads every update only once.
        start = self._read_parameters(self._versions[cycle])
        return StoredUpdate(path, distance(update, start))

    def accept(self, assignment: tuple[int, int, int], update: StoredUpdate) -> None:
        """Remember the spooled update of an assignment (learner, cycle, attempt)."""
        self._accepted[assignment] = update

    def take_accepted(self, command: Aggregate) -> list[AcceptedUpdate]:
        """Return and forget the updates of the command, late ones first; delete all others.

        The command has all accepted updates whose weight is positive.
        """
        late, cycles = command.late, np.full(command.learners.size, command.cycle)
        steps = np.concatenate([late.steps, command.steps])
        rows = zip(
            np.concatenate([late.learners, command.learners]).tolist(),
            np.concatenate([late.cycles, cycles]).tolist(),
            np.concatenate([late.attempts, command.attempts]).tolist(),
            np.concatenate([late.weights, command.weights]).tolist(),
            np.concatenate([late.visits, command.visits]).tolist(),
            steps.tolist() or [0] * (late.learners.size + cycles.size),
            strict=True,
        )
        updates = []
        for learner, cycle, attempt, weight, visits, made in rows:
            stored = self._accepted.pop((learner, cycle, attempt))
            update = SpooledUpdate(learner, weight, stored.path)
            updates.append(AcceptedUpdate(update, cycle, stored.distance, visits, made))
        for stored in self._accepted.values():
            stored.path.unlink(missing_ok=True)
        self._accepted.clear()
        return updates

    def aggregate(self, cycle: int, updates: Sequence[AcceptedUpdate]) -> GuardedUpdates:
        """Replace the parameters by the mean of the updates; keep them if no update counts.

        The change of a late update is applied to the parameters that this cycle began with.
        Return the updates that the guard reduced or left out.
        """
        self._version_before = self.version
        weights = np.array([item.update.weight for item in updates])
        steps = np.array([item.steps for item in updates if item.steps], np.int64)
        factors = step_factors(weights, steps)
        changes = normalize_changes(
            UpdateChanges(
                np.array([item.distance for item in updates]),
                np.array([item.visits for item in updates], np.int64),
            ),
            weights,
            factors,
        )
        norm = 0.0 if self.guard.rule == "off" else norm_of(self.parameters)
        scales = self.guard.scales(changes, norm)
        scaled = [
            replace(item, update=replace(item.update, scale=scale * factor))
            for item, scale, factor in zip(updates, scales.tolist(), factors.tolist(), strict=True)
            if scale > 0
        ]
        if scaled:
            self.guard.record(changes, scales)
            self._save_aggregate(cycle, scaled)
        for item in updates:
            item.update.path.unlink()
        rows = np.flatnonzero(scales < 1.0).tolist()
        return GuardedUpdates(
            np.array([updates[row].update.learner for row in rows], np.int64),
            np.array([updates[row].cycle for row in rows], np.int64),
            scales[rows],
        )

    def _save_aggregate(self, cycle: int, updates: Sequence[AcceptedUpdate]) -> None:
        """Aggregate the updates, and save and publish the result as the next version."""
        if self.aggregation is None:
            averaged = self._average(cycle, updates)
        else:
            averaged = self.aggregation(*self._stack(cycle, updates), self.parameters)
        self._replace(self.server.apply(self.parameters, averaged))

    def _stack(
        self, cycle: int, updates: Sequence[AcceptedUpdate]
    ) -> tuple[dict[str, NDArray[Any]], Floats]:
        """Return all updates in memory, in the order of learners, and their weights."""
        ordered = sorted(updates, key=lambda item: (item.update.learner, item.cycle))
        stack = UpdateStack(self.layout, len(ordered))
        for row, item in enumerate(ordered):
            start = self.parameters
            if item.cycle != cycle:
                start = self._read_parameters(self._versions[item.cycle])
            arrays = self.layout.unpack(item.update.path.read_bytes())
            rows = {name: array[None] for name, array in arrays.items()}
            stack.set(slice(row, row + 1), rows, start, self.parameters)
        scales = np.array([item.update.scale for item in ordered])
        scaled = stack.take_scaled(np.arange(len(ordered)), self.parameters, scales)
        return scaled, np.array([item.update.weight for item in ordered])

    def _average(self, cycle: int, updates: Sequence[AcceptedUpdate]) -> dict[str, NDArray[Any]]:
        """Return the weighted mean, with the changes of late updates."""
        mean = weighted_mean(self.layout, [item.update for item in updates])
        groups = [
            StartShares(
                share,
                scaled,
                None if started == cycle else self._read_parameters(self._versions[started]),
            )
            for started, (share, scaled) in _shares_by_cycle(updates).items()
        ]
        return add_parameters(mean, self.parameters, groups)

    def _replace(self, parameters: dict[str, NDArray[Any]]) -> None:
        """Save and publish parameters as the next version."""
        self._set_parameters(self.version + 1, parameters)
        content = save(self.parameters)
        path = self.folder / PARAMETERS_FOLDER / self.model_name
        write_atomic(path, content, mode=0o600)
        self._publish(path, content)
        self._delete_old_parameters()

    def keep_checkpoint(self, cycle: int, score: Score | CombinedScore) -> None:
        """Keep the model of a cycle, if the task asks for it and its loss is finite."""
        if self.checkpoints is not None and isfinite(score.loss):
            accuracy = score.accuracy if isfinite(score.accuracy) else None
            self.checkpoints.keep(cycle, self.parameters, accuracy, score.loss)

    def restore(self) -> None:
        """Return to the parameters before the latest average, because its result is of no use."""
        before = self._version_before
        if before == self.version:
            return
        self.guard.forget_last()
        self.server.undo()
        self._replace(self._read_parameters(before))
        if before == 0:
            (self.folder / MODEL_FILE).unlink()

    def _set_parameters(self, version: int, parameters: dict[str, NDArray[Any]]) -> None:
        self.version, self.parameters = version, parameters
        self._present = version, parameters

    def _read_parameters(self, version: int) -> dict[str, NDArray[Any]]:
        present, parameters = self._present
        if version == present:
            return parameters
        arrays: dict[str, NDArray[Any]] = load_file(
            self.folder / PARAMETERS_FOLDER / _model_name(version)
        )
        return arrays

    @property
    def model(self) -> Path | None:
        """The file of the trained model; None before the first update."""
        path = self.folder / MODEL_FILE
        return path if path.is_file() else None

    def close(self) -> None:
        """Close the trace and delete temporary folders; trace and model stay."""
        self._trace.close()
        for name in TEMPORARY_FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _publish(self, path: Path, content: bytes) -> None:
        """Link `path` to `model.safetensors`, or write the content again where links fail."""
        model, part = self.folder / MODEL_FILE, self.folder / "model.part"
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(path)
        except OSError:  # Not every file system has hard links.
            write_atomic(model, content, mode=0o600)
        else:
            part.replace(model)

    def _kept_versions(self) -> set[int]:
        """Return the versions of parameters that a learner starts from or started from."""
        return {self.version, self.version - 1, *self._versions.values()}

    def _delete_old_parameters(self) -> None:
        """Delete parameters that are no longer needed; benchmarks still need the initial ones."""
        kept = {INITIAL_MODEL, *map(_model_name, self._kept_versions())}
        for path in (self.folder / PARAMETERS_FOLDER).glob("*.safetensors"):
            if path.name not in kept:
                path.unlink()


def _shares_by_cycle(updates: Sequence[AcceptedUpdate]) -> dict[int, tuple[float, float]]:
    """Return by cycle of the assignments the share of all weights, and that of scaled changes."""
    total = sum(item.update.weight for item in updates)
    sums: defaultdict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for item in updates:
        share, scaled = sums[item.cycle]
        weight = item.update.weight / total
        sums[item.cycle] = share + weight, scaled + item.update.scale * weight
    return dict(sums)


def _model_name(version: int) -> str:
    return f"model-{version}.safetensors"

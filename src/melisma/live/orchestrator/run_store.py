"""The files that the orchestrator keeps in a run folder, so that a killed run can be resumed.

::

    journal.db           every event that decides something, and every command
    journal.db-synced    how much of the journal is on disk for certain
    best.safetensors     the best model, on request
    checkpoints/         the model after each cycle, on request
    model.safetensors    the model after the last cycle that changed it
    updates/             updates that were not averaged yet
    parameters/          the models that learners start from, while their updates can arrive;
                         the bundle and the matrix that learners asked for

Files are written atomically, and are on disk before the journal refers to them. They are deleted
when the journal that no longer refers to them is on disk.
"""

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from melisma.atomic import make_durable_folder, replace_durably, write_atomic
from melisma.cycle import events
from melisma.cycle.commands import Aggregate
from melisma.cycle.state import CycleState
from melisma.errors import DataError
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.server_settings import ServerSettings
from melisma.fleet.stressors import stress_matrix
from melisma.learning.data.shards import ShardFolder
from melisma.learning.own_aggregation import OwnAggregation
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.server.server_optimizer import ServerOptimizer
from melisma.learning.step_normalization import normalize_changes, step_factors
from melisma.learning.trainer import Score
from melisma.learning.update_guard import UpdateChanges, UpdateGuard, distance, norm_of
from melisma.live.code_bundle import CodeBundle
from melisma.live.orchestrator.accepted_updates import (
    AcceptedUpdate,
    AcceptedUpdates,
    Assignment,
    StoredUpdate,
    delete_files,
)
from melisma.live.orchestrator.combined_score import CombinedScore
from melisma.live.orchestrator.full_disk import PATIENCE_S, WAITING, wait_for_space
from melisma.live.orchestrator.parameter_files import ParameterFiles, VersionRecord, model_name
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.live.orchestrator.update_averaging import UpdateAveraging
from melisma.live.protocol import INITIAL_MODEL, STRESS_MATRIX, ShardRef
from melisma.runs.checkpoints import Checkpoints
from melisma.runs.folder import (
    MODEL_FILE,
    PARAMETERS_FOLDER,
    UPDATES_FOLDER,
)
from melisma.runs.model_versions import ModelVersions
from melisma.runs.recovery import SNAPSHOT, Snapshot
from melisma.runs.trace import Step

INITIAL_VERSION: Final = 0
BEST: Final = "best"
"""The record with the quality of the best model."""
VERSION: Final = "version/"
"""The first part of the names of records about versions of the parameters."""


@dataclass(frozen=True, eq=False)
class GuardedUpdates:
    """Updates that did not count in full: learner, cycle of the assignment, and scale of each."""

    learners: Ints
    cycles: Ints
    scales: Floats


@dataclass(frozen=True, eq=False)
class Aggregation:
    """The result of an average: the version of the parameters since then, and its record.

    The record is None if no update counted: the version is the one before.
    """

    version: int
    guarded: GuardedUpdates
    record: VersionRecord | None = None


@dataclass
class RunStore:
    """The folder of one run, and the shards that learners download."""

    journal: RunJournal
    layout: Layout
    shards: ShardFolder | None
    guard: UpdateGuard = field(default_factory=lambda: UpdateGuard("off"))
    server: ServerOptimizer = field(default_factory=lambda: ServerOptimizer(ServerSettings()))
    checkpoints: Checkpoints | None = None
    aggregation: OwnAggregation | None = None
    on_note: Callable[[str], None] = lambda _note: None
    models: ModelVersions = field(default_factory=ModelVersions)
    parameters: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.journal.journal.path.parent
        self._files = ParameterFiles(make_durable_folder(self.folder / PARAMETERS_FOLDER))
        self._updates = AcceptedUpdates(self.folder / UPDATES_FOLDER, self.layout, self.journal)
        self._averaging = UpdateAveraging(self.layout, self.aggregation)
        shards = self.shards.shards if self.shards is not None else []
        self._shard_refs = [ShardRef(s.number, s.sha256, s.size_bytes, s.samples) for s in shards]
        self._version_before = self.models.current  # before the latest step
        self._is_new = False  # whether this process created the run
        self._noted_until_s = -inf  # until when the owner knows that the disk is full

    @property
    def shards_digest(self) -> str:
        """A checksum over all shards."""
        return hashlib.sha256("".join(ref.sha256 for ref in self._shard_refs).encode()).hexdigest()

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
        served = (*map(model_name, self.models.in_use), INITIAL_MODEL)
        return self.folder / PARAMETERS_FOLDER / name if name in served else None

    def bundle_path(self, bundle: CodeBundle) -> Path:
        """Return the file of a task's source; write it when it is first asked for."""
        path = self.folder / PARAMETERS_FOLDER / bundle.file_name
        return path if path.is_file() else write_atomic(path, bundle.content, mode=0o600)

    def stress_path(self) -> Path:
        """Return the file of the matrix that learners download; write it when first asked for."""
        path = self.folder / PARAMETERS_FOLDER / STRESS_MATRIX
        return path if path.is_file() else write_atomic(path, stress_matrix(), mode=0o600)

    @property
    def model_name(self) -> str:
        """The file name of the current parameters."""
        return model_name(self.models.current)

    def save_initial(self, parameters: Arrays) -> None:
        """Save the parameters before the first cycle; learners run their benchmark with them."""
        self.parameters, self._is_new = dict(parameters), True
        checksum = self._files.write(INITIAL_VERSION, self.parameters)
        self._put_version(INITIAL_VERSION, VersionRecord(checksum))

    def resume(self, models: ModelVersions, start: Arrays | None = None) -> None:
        """Go on with the files of an earlier process; raise `DataError` if one is damaged.

        With `start` these parameters become the next version, and take the place of the present.
        """
        self.models = models
        for name, content in self.journal.records(VERSION):
            version = int(name.removeprefix(VERSION))
            self._files.records[version] = msgspec.json.decode(content, type=VersionRecord)
        self._updates.resume()
        delete_files(self._files.folder.glob("*.part"))
        if start is not None:
            self._add_version(dict(start))
        else:
            self._load_present(models)
        best = self.journal.get(BEST)
        if self.checkpoints is not None and best is not None:
            accuracy, loss = msgspec.json.decode(best, type=tuple[float | None, float])
            self.checkpoints.best = -inf if accuracy is None else accuracy, loss

    def _load_present(self, models: ModelVersions) -> None:
        self.parameters = self._files.use(models.current)
        self.layout.check(self.parameters)
        record, before = self._files.records[models.current], models.before
        self.server.load(
            self._files.read_server(models.current),
            self._files.read_server(before) if before in self._files.records else {},
        )
        self.guard.history = record.guard_history
        self._publish(models.current)

    def _add_version(self, parameters: dict[str, NDArray[Any]]) -> None:
        self.parameters, version = parameters, self.models.latest + 1
        self._put_version(version, VersionRecord(self._files.write(version, parameters)))

    def record(self, step: Step, state: CycleState) -> None:
        """Write a step to the journal, and the state of the machine at the end of a cycle.

        Raises `OSError` if that fails: nothing has changed then.
        """
        models = copy(self.models)
        models.apply(step)
        if isinstance(step.event, events.Evaluated):
            number = self.journal.journal.last + 1
            self.journal.put(SNAPSHOT, Snapshot.take(number, state, models))
        self.journal.write(step)
        self._version_before, self.models = self.models.current, models

    def spool(self, assignment: Assignment, update: Arrays) -> StoredUpdate:
        """Write the update of an assignment (learner, cycle, attempt) to disk, from any thread.

        Waits a while for space if the disk is full. Raises `DataError` if the update does not fit.
        """
        path = wait_for_space(lambda: self._updates.write(assignment, update), self._note_once)
        checksum = crc32(path.read_bytes())
        if self.guard.rule == "off":
            return StoredUpdate(checksum, 0.0)
        # Known before the cycle closes, so that aggregation reads every update only once.
        start = self.find_start(assignment[1])
        return StoredUpdate(checksum, 0.0 if start is None else distance(update, start))

    def note_full_disk(self) -> None:
        """Tell the owner that writes wait for space, once although many of them may wait."""
        self._note_once(WAITING)

    def _note_once(self, note: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._noted_until_s:
            self._noted_until_s = now_s + PATIENCE_S
            self.on_note(note)

    def find_start(self, cycle: int) -> dict[str, NDArray[Any]] | None:
        """Return the parameters that a cycle began with; None if they are damaged, which is noted.

        Updates of that cycle are left out then. No learner is to blame.
        """
        try:
            return self._files.read(self.models.of_cycle[cycle])
        except DataError as error:
            self.on_note(f"updates of cycle {cycle} are left out of the average: {error}")
            return None

    def discard(self, assignment: Assignment) -> None:
        """Delete an update that was spooled and does not count."""
        self._updates.discard(assignment)

    def accept(self, assignment: Assignment, update: StoredUpdate) -> None:
        """Remember the spooled update of an assignment, with the next step that is recorded."""
        self._updates.accept(assignment, update)

    def has_accepted(self, assignment: Assignment) -> bool:
        """Return whether the update of an assignment was accepted, and is not averaged yet."""
        return assignment in self._updates

    def read_update(self, assignment: Assignment) -> dict[str, NDArray[Any]]:
        """Return an update that was spooled; raise `OSError` or `DataError` if it is damaged."""
        return self.layout.unpack(self._updates.read(assignment))

    def shard_path(self, number: int) -> Path:
        """Return the file of a shard; raise `DataError` if it is missing."""
        path = None if self.shards is None else self.shards.path(self._shard_refs[number].sha256)
        if path is None:
            raise DataError(f"shard {number} is missing")
        return path

    def take_accepted(
        self, command: Aggregate, kept: Collection[Assignment] = ()
    ) -> list[AcceptedUpdate]:
        """Return the updates of the command, late ones first; all but `kept` become obsolete.

        The command has all accepted updates whose weight is positive, but for those in `kept`.
        """
        return self._updates.take(command, kept)

    def _is_readable(self, item: AcceptedUpdate) -> bool:
        """Return whether the file of an update is as it was written; note one that is not."""
        readable = item.is_readable
        if not readable:
            path = item.update.path
            self.on_note(f"{path} is damaged or missing: this update is left out of the average")
        return readable

    def aggregate(
        self,
        cycle: int,
        updates: Sequence[AcceptedUpdate],
        wrong: Collection[tuple[int, int]] = (),
    ) -> Aggregation:
        """Save the mean of the updates as the next version; keep the present one if none counts.

        The change of a late update is applied to the parameters that this cycle began with. Runs in
        any thread; `conclude` uses the result. If it is lost with this process, the next one
        repeats it. A damaged update, or one that began with damaged parameters, is left out; its
        scale is NaN. So are those of the `wrong` pairs of a learner and a cycle; their scale is 0.
        """
        weights = np.array([item.update.weight for item in updates])
        steps = np.array([item.steps for item in updates if item.steps], np.int64)
        factors = step_factors(weights, steps)
        changes = normalize_changes(
            UpdateChanges(
                np.array([item.stored.distance for item in updates]),
                np.array([item.visits for item in updates], np.int64),
            ),
            weights,
            factors,
        )
        norm = 0.0 if self.guard.rule == "off" else norm_of(self.parameters)
        starts = {n: self.find_start(n) for n in {item.cycle for item in updates} - {cycle}}
        starts[cycle] = self.parameters
        readable = np.array(
            [starts[item.cycle] is not None and self._is_readable(item) for item in updates],
            np.bool_,
        )
        scales = np.where(readable, self.guard.scales(changes, norm), np.nan)
        scales[[(item.update.learner, item.cycle) in wrong for item in updates]] = 0.0
        scaled = [
            replace(item, update=replace(item.update, scale=scale * factor))
            for item, scale, factor in zip(updates, scales.tolist(), factors.tolist(), strict=True)
            if scale > 0
        ]
        rows = np.flatnonzero(~(scales >= 1.0)).tolist()
        guarded = GuardedUpdates(
            np.array([updates[row].update.learner for row in rows], np.int64),
            np.array([updates[row].cycle for row in rows], np.int64),
            scales[rows],
        )
        if not scaled:
            return Aggregation(self.models.current, guarded)
        self.guard.record(changes, scales)
        parameters = self.server.apply(
            self.parameters, self._averaging.combine(scaled, starts, self.parameters)
        )
        version = self.models.latest + 1
        record = wait_for_space(lambda: self._write_version(version, parameters), self._note_once)
        wait_for_space(lambda: self._publish(version), self._note_once)
        return Aggregation(version, guarded, record)

    def _write_version(self, version: int, parameters: dict[str, NDArray[Any]]) -> VersionRecord:
        server = self._files.write_server(version, self.server.arrays)
        model = self._files.write(version, parameters)
        return VersionRecord.with_guard(model, server, self.guard.history)

    def conclude(self, result: Aggregation) -> list[Path]:
        """Use the result of an average, with the next step that is recorded.

        Return the files of updates that it makes obsolete.
        """
        if result.record is not None:
            self._put_version(result.version, result.record)
            self.parameters = self._files.read(result.version)
        return self._updates.forget_obsolete()

    async def clean_up(self, updates: Sequence[Path]) -> None:
        """Delete updates, and versions that are no longer needed, when the journal is on disk."""
        # Benchmarks need the initial version.
        kept = {INITIAL_VERSION, *self.models.in_use}
        versions = [version for version in self._files.records if version not in kept]
        for version in versions:
            self.journal.put(f"{VERSION}{version}", None)
        paths = [*updates, *self._files.forget(versions)]
        await asyncio.to_thread(delete_files, paths)

    def _put_version(self, version: int, record: VersionRecord) -> None:
        self._files.records[version] = record
        self.journal.put(f"{VERSION}{version}", msgspec.json.encode(record))

    def keep_checkpoint(self, cycle: int, score: Score | CombinedScore) -> None:
        """Keep the model of a cycle, if the task asks for it and its loss is finite."""
        if self.checkpoints is not None and isfinite(score.loss):
            accuracy = score.accuracy if isfinite(score.accuracy) else None
            keep = self.checkpoints.keep
            wait_for_space(
                lambda: keep(cycle, self.parameters, accuracy, score.loss), self._note_once
            )

    def put_best(self) -> None:
        """Remember the quality of the best model, with the next step that is recorded."""
        if self.checkpoints is not None and isfinite(self.checkpoints.best[1]):
            known = [value if isfinite(value) else None for value in self.checkpoints.best]
            self.journal.put(BEST, msgspec.json.encode(known))

    def restore(self) -> None:
        """Return to the parameters before the latest average, because its result is of no use.

        The step with this decision has been recorded: the version before is current again.
        """
        if self.models.current == self._version_before:
            return  # The average kept the version.
        self.guard.forget_last()
        self.server.undo()
        self.parameters = self._files.use(self.models.current)
        self._publish(self.models.current)

    @property
    def model(self) -> Path | None:
        """The file of the trained model; None before the first update."""
        path = self.folder / MODEL_FILE
        return path if path.is_file() else None

    def close(self, *, ended: bool = True) -> None:
        """Export the trace and close the journal; of a run that has `ended`, keep the last model.

        Updates and parameters of another run stay, so that it can be resumed. Of a run that never
        began, nothing stays.
        """
        begun = bool(self.journal.journal.last)
        unused = not begun and (ended or self._is_new)
        try:
            if begun:
                self._save_results()
            if ended:
                shutil.rmtree(self.folder / UPDATES_FOLDER, ignore_errors=True)
                kept = {INITIAL_VERSION, self.models.current}
                delete_files(self._files.forget(set(self._files.records) - kept))
        finally:
            self.journal.journal.close()
            if unused:
                self._discard()

    def _discard(self) -> None:
        """Delete the files of a run that never began."""
        self.journal.journal.delete()
        for name in (PARAMETERS_FOLDER, UPDATES_FOLDER):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _save_results(self) -> None:
        """Export the trace; if the folder was deleted, save the model in memory, too."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = self.journal.journal
        if journal.last:
            journal.export_trace()
        if self.models.current != INITIAL_VERSION and self.model is None:
            write_atomic(self.folder / MODEL_FILE, save(self.parameters), mode=0o600)

    def _publish(self, version: int) -> None:
        """Link a version to `model.safetensors`, or write it again where links fail.

        The initial parameters are no result.
        """
        model, part = self.folder / MODEL_FILE, self.folder / "model.part"
        if version == INITIAL_VERSION:
            model.unlink(missing_ok=True)
            return
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(self._files.path(version))
        except OSError:  # Not every file system has hard links.
            write_atomic(model, save(self.parameters), mode=0o600)
        else:
            replace_durably(part, model)
            # A link to the same file is not replaced.
            part.unlink(missing_ok=True)

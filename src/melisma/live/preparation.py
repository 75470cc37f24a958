"""Loads and validates everything that a run needs, before any learner is started."""

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from melisma.allocation.schemes import with_scheme
from melisma.errors import SettingError
from melisma.fleet.array_types import NO_FLOATS, Floats
from melisma.fleet.files.fleet_builder import scale_fleet
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.run_time import TIME_OF_TASK, RunTime
from melisma.fleet.task import Task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import shuffle_into_shards
from melisma.learning.data.shards import ShardFolder
from melisma.learning.given_objects import NO_OBJECTS, GivenObjects
from melisma.learning.loaded_task import LoadedTask, load_task
from melisma.learning.own_aggregation import find_aggregation
from melisma.learning.parameters import Layout
from melisma.learning.saved_model import read_model
from melisma.learning.server.server_optimizer import ServerOptimizer, trainable_arrays
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import one_thread
from melisma.learning.update_guard import UpdateGuard
from melisma.live.code_bundle import collect_bundle
from melisma.live.emulated_learners import emulated_learners
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.run_resumption import RunResumption
from melisma.live.run_setup import SETUP, EmulatedFleet, RunSetup, to_groups
from melisma.runs.checkpoints import Checkpoints
from melisma.runs.folder import (
    JOURNAL_FILE,
    PARAMETERS_FOLDER,
    SHARDS_FOLDER,
    UPDATES_FOLDER,
    check_run_folder,
    create_run_folder,
)
from melisma.runs.journal import Journal
from melisma.runs.recent_steps import recent_steps
from melisma.runs.recovery import RecoveredRun
from melisma.runs.trace import Step

# The number of samples that the speed of this machine is measured on.
TIMING_SAMPLES = 500


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task with its data, and the folder of its run.

    `module_path` lists the folders that user modules are imported from. A run that an earlier
    process prepared has a `journal`; if that one began it, too, `resumption` says how it goes on,
    `resumed_fleet` are its emulated devices, and `start_from` may be the file of a model to go on
    from.
    """

    spec: RunSpec
    train: Split
    folder: Path
    module_path: tuple[str, ...]
    journal: Journal | None = None
    resumption: RunResumption | None = None
    start_from: Path | None = None
    resumed_fleet: EmulatedFleet | None = None

    @property
    def emulated(self) -> EmulatedFleet:
        """The settings of the devices that this machine emulates."""
        if self.resumed_fleet is None:
            raise SettingError(f"the run in {self.folder} has no fleet: it is on devices that join")
        return self.resumed_fleet

    @property
    def task(self) -> Task:
        """The task that is trained."""
        return self.spec.task

    def open_store(self, setup: RunSetup) -> RunStore:
        """Open the run's files, or create them with this setup; also the shards.

        There are none if the data stays on the devices. Raises `SettingError` if they are not those
        that the run began with. After an error nothing of this process stays in the folder.
        """
        try:
            store = self._create_store()
            try:
                self._fill(store, setup)
            except BaseException:
                store.journal.journal.close()
                raise
        except BaseException:
            self._delete_files()
            raise
        return store

    def _delete_files(self) -> None:
        """Delete the files of a process that did not begin or resume the run after all."""
        folders = [SHARDS_FOLDER]
        if self.journal is None:
            folders += [PARAMETERS_FOLDER, UPDATES_FOLDER]
            for path in self.folder.glob(f"{JOURNAL_FILE}*"):
                path.unlink()
        for name in folders:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in (self.folder / UPDATES_FOLDER, self.folder):
            with suppress(OSError):  # It is not empty.
                path.rmdir()

    def _fill(self, store: RunStore, setup: RunSetup) -> None:
        setup = msgspec.structs.replace(setup, shards=store.shards_digest)
        if self.journal is not None:
            self._check_shards(self.journal, setup)
            start = None
            if self.start_from is not None:
                start = read_model(self.start_from, store.layout)
            run = self.resumption.run if self.resumption else RecoveredRun()
            store.resume(run.models, start)
        else:
            store.save_initial(self.spec.initial)
            store.journal.put(SETUP, setup.encode())
        store.journal.flush()
        # From now on the run can be resumed, also after a power cut.
        store.journal.journal.sync()

    def _check_shards(self, journal: Journal, setup: RunSetup) -> None:
        """Raise `SettingError` unless the shards are those of the run."""
        if RunSetup.read(journal).shards != setup.shards:
            raise SettingError(
                f"data {self.task.data} is not that of the run in {self.folder}: it has other "
                "shards; resume the run with the data that it began with"
            )

    def close(self) -> None:
        """Close the journal of a run that does not go on after all."""
        if self.journal is not None:
            self.journal.close()

    def describe_resumption(self) -> str:
        """Return where the run goes on."""
        if self.resumption is None:
            return f"run {self.spec.run} had not begun: waiting for learners"
        state, resumption = self.resumption.run.machine.state, self.resumption
        cycle = self.task.describe_cycle(max(1, state.cycle + (resumption.goal is not None)))
        return f"run {self.spec.run} goes on with {cycle}, in {self.folder}"

    @cached_property
    def earlier_steps(self) -> list[Step]:
        """The steps of the processes before, as far as displays need them."""
        if self.journal is None or self.resumption is None:
            return []
        cycle = self.resumption.run.machine.state.cycle
        return list(recent_steps(self.journal.lines(), cycle))

    def _create_store(self) -> RunStore:
        trainer = self.spec.trainer
        layout = Layout.from_arrays(trainer.initial())
        task, shards = self.task, None
        if task.mode == "parallelized":
            rng = generator(task.seed, "samples")
            parts = shuffle_into_shards(len(self.train), task.shard_samples, rng)
            shards = ShardFolder(self.folder / SHARDS_FOLDER, self.train, parts)
        server = ServerOptimizer(task.server, trainable_arrays(trainer))
        checkpoints = Checkpoints(self.folder, task.checkpoints)
        guard = UpdateGuard(task.guard)
        aggregation = find_aggregation(task.aggregation)
        journal = RunJournal(self.journal or Journal.create(self.folder))
        return RunStore(journal, layout, shards, guard, server, checkpoints, aggregation)


@dataclass(frozen=True, kw_only=True)
class PreparedRun(PreparedTask):
    """A prepared task with the fleet that this machine emulates.

    `core_shares` are the devices' speeds as shares of one core of this machine.
    """

    fleet: Fleet
    core_shares: tuple[float, ...]

    @property
    def emulated(self) -> EmulatedFleet:
        """The settings of the devices that this machine emulates."""
        fleet = self.fleet
        return EmulatedFleet(
            learners=emulated_learners(self),
            local_samples=tuple(fleet.local_samples(self.task).tolist()),
            rates=EmulatedFleet.encode_rates(self.spec.rates),
            groups=to_groups(fleet.groups),
        )

    @property
    def notes(self) -> list[str]:
        """The limits of emulating this fleet on this machine, and settings that are ignored."""
        cores, notes = os.cpu_count() or 1, []
        shares = zip(self.fleet.names, self.core_shares, strict=True)
        fast = [name for name, share in shares if share > 1]
        total = sum(min(share, 1.0) for share in self.core_shares)
        if fast:
            names = ", ".join(fast[:5]) + ", ..." * (len(fast) > 5)
            notes.append(f"{names}: faster than a core of this machine; limited to one core")
        if total > cores:
            notes.append(
                f"the devices need {total:.1f} cores and this machine has {cores}: they run slower "
                "than specified, and are measured at that speed"
            )
        if ignored := self.fleet.availability.settings_in_use:
            notes.append(
                f"{', '.join(ignored)} of the fleet file: ignored, as all learners of a live run "
                "are present from start to end; `melisma simulate` lets them come and go"
            )
        return notes


def prepare(  # noqa: PLR0913 - each is a setting of its own
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    scheme: str | None = None,
    folder: str | Path | None = None,
    run_time: RunTime = TIME_OF_TASK,
    learners: int | None = None,
    *,
    objects: GivenObjects = NO_OBJECTS,
) -> PreparedRun:
    """Load task, fleet and data and create the run folder; raise an error if they do not fit.

    `learners` scales the fleet of a file in its proportions. A total time counts from here.
    """
    began = time.monotonic()
    loaded = _load(task, scheme, folder, run_time, objects)
    fleet = scale_fleet(fleet, learners)
    fleet.local_samples(loaded.task)  # raises an error if they do not fit
    run = new_run()
    folder = _create_folder(folder, loaded.task, run)
    prepared = prepare_loaded(loaded, fleet, folder, run)
    return replace(prepared, spec=replace(prepared.spec, counts_from=began))


def prepare_loaded(loaded: LoadedTask, fleet: Fleet, folder: Path, run: str) -> PreparedRun:
    """Prepare the run of a loaded task on an emulated fleet, in a folder that exists."""
    sample_s = _core_sample_s(loaded.task, fleet, loaded.data.train, loaded.trainer)
    shares = fleet.core_shares(loaded.task, sample_s)
    rates = np.array([fleet.price, fleet.sample_j, fleet.byte_j])
    return PreparedRun(
        spec=_specify(run, loaded, rates),
        train=loaded.data.train,
        fleet=fleet,
        core_shares=tuple(shares.tolist()),
        folder=folder,
        module_path=loaded.path,
    )


def prepare_task(
    task: Task | str | Path,
    scheme: str | None = None,
    folder: str | Path | None = None,
    run_time: RunTime = TIME_OF_TASK,
    objects: GivenObjects = NO_OBJECTS,
) -> PreparedTask:
    """Load task and data and create the run folder, for learners that are not known yet.

    A total time counts from the start of the run.
    """
    loaded, run = _load(task, scheme, folder, run_time, objects), new_run()
    return prepare_loaded_task(loaded, _create_folder(folder, loaded.task, run), run)


def prepare_loaded_task(loaded: LoadedTask, folder: Path, run: str) -> PreparedTask:
    """Prepare the run of a loaded task on devices that join, in a folder that exists."""
    return PreparedTask(
        spec=_specify(run, loaded, NO_FLOATS),
        train=loaded.data.train,
        folder=folder,
        module_path=loaded.path,
    )


def _load(
    task: Task | str | Path,
    scheme: str | None,
    folder: str | Path | None,
    run_time: RunTime,
    objects: GivenObjects,
) -> LoadedTask:
    """Load task and data, and check them and the folder."""
    if folder is not None:
        check_run_folder(folder)
    file = task if isinstance(task, str | Path) else None
    # Errors about the caller's settings do not name the file.
    task = run_time.apply(resolve_task(task))
    with naming_task_file(file):
        task = task.with_total()
    task = with_scheme(task, scheme, file)
    with naming_task_file(file):
        loaded = load_task(task, file, objects, shipped=True)
        loaded.task.check_shard_samples()
    return loaded


def _specify(run: str, loaded: LoadedTask, rates: Floats) -> RunSpec:
    bundle = collect_bundle(loaded.task.model, loaded.path)
    return RunSpec(
        run=run,
        task=loaded.task,
        trainer=loaded.trainer,
        initial=loaded.initial,
        test=loaded.data.test,
        rates=rates,
        bundle=bundle,
    )


def new_run() -> str:
    """Return the name of a new run."""
    return datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def _create_folder(folder: str | Path | None, task: Task, run: str) -> Path:
    default = Path("runs") / re.sub(r"[^\w.-]", "-", f"{task.name}-{run}")
    return create_run_folder(folder or default)


def _core_sample_s(task: Task, fleet: Fleet, data: Split, trainer: Trainer) -> float:
    """Measure the seconds to train one sample on this machine; NaN if no device needs it."""
    if np.isnan(fleet.sample_s).all() and np.isnan(fleet.shard_s).all():
        return float("nan")
    timed = Split(data.samples[:TIMING_SAMPLES], data.labels[:TIMING_SAMPLES])
    rng = np.random.default_rng(0)
    # Learners use one thread too; several threads use more processor time for the same work.
    with one_thread():
        trainer.train(trainer.initial(), batches_of(timed, 1, task.batch, rng), rng)
        began = time.process_time()
        trainer.train(trainer.initial(), batches_of(timed, 1, task.batch, rng), rng)
        return (time.process_time() - began) / len(timed)

"""Loads and validates everything that a run needs, before any learner is started."""

import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from melisma.allocation.schemes import with_scheme
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task, naming_task_file, read_task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.loaded_task import load_task
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import one_thread
from melisma.live.code_bundle import collect_bundle
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.runs.folder import check_run_folder, create_run_folder

# The number of samples that the speed of this machine is measured on.
TIMING_SAMPLES = 500


@dataclass(frozen=True)
class PreparedRun:
    """The inputs of a run.

    `core_shares` are the devices' speeds as shares of one core of this machine; `module_path` lists
    the folders that user modules are imported from.
    """

    spec: RunSpec
    train: Split
    fleet: Fleet
    core_shares: tuple[float, ...]
    folder: Path
    module_path: tuple[str, ...]

    @property
    def task(self) -> Task:
        """The task that is trained."""
        return self.spec.task

    @property
    def notes(self) -> list[str]:
        """The limits of emulating this fleet on this machine."""
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
        return notes


def prepare(
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    scheme: str | None = None,
    folder: str | Path | None = None,
) -> PreparedRun:
    """Load task, fleet and data and create the run folder; raise an error if they do not fit."""
    if folder is not None:
        check_run_folder(folder)
    file = task if isinstance(task, str | Path) else None
    task = read_task(task) if isinstance(task, str | Path) else task
    fleet = read_fleet(fleet) if isinstance(fleet, str | Path) else fleet
    with naming_task_file(file):
        loaded = load_task(with_scheme(task, scheme), file)
        loaded.task.check_shard_samples()
    task, data, trainer = loaded.task, loaded.data, loaded.trainer
    run = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    shares = fleet.core_shares(task, _core_sample_s(task, fleet, data.train, trainer))
    rates = np.array([fleet.price, fleet.sample_j, fleet.byte_j])
    return PreparedRun(
        RunSpec(run, task, trainer, data.test, rates, collect_bundle(task.model, loaded.path)),
        data.train,
        fleet,
        tuple(shares.tolist()),
        create_run_folder(folder or Path("runs") / re.sub(r"[^\w.-]", "-", f"{task.name}-{run}")),
        loaded.path,
    )


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

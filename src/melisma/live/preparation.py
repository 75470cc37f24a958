"""What a run needs, read and checked: what cannot work is found before a learner is started."""

import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from melisma.allocation.schemes import with_scheme
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_builder import read_fleet
from melisma.fleet.task import Task, read_task
from melisma.learning.data.datasets import Split
from melisma.learning.loaded_task import gathered
from melisma.learning.trainer import Trainer
from melisma.learning.trainers import one_thread
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.runs.folder import create_run_folder

# Samples that tell how fast this machine is.
TIMING_SAMPLES = 500


@dataclass(frozen=True)
class PreparedRun:
    """All that a run needs; `shares` are what devices are of one core of this machine.

    `path` are folders where modules of one's own are looked for.
    """

    spec: RunSpec
    train: Split
    fleet: Fleet
    core_shares: tuple[float, ...]
    folder: Path
    module_path: tuple[str, ...]

    @property
    def task(self) -> Task:
        """What is trained."""
        return self.spec.task

    @property
    def notes(self) -> list[str]:
        """What of the devices this machine cannot stand for."""
        cores = os.cpu_count() or 1
        named = zip(self.fleet.names, self.core_shares, strict=True)
        large = [name for name, share in named if share > 1]
        total = sum(min(share, 1.0) for share in self.core_shares)
        said = []
        if large:
            some = ", ".join(large[:5]) + ", ..." * (len(large) > 5)
            said.append(f"{some}: more than one core of this machine; a learner here has one")
        if total > cores:
            said.append(
                f"the devices together are {total:.1f} cores, this machine has {cores}: they will "
                "be slower than said, and measured so"
            )
        return said


def prepare(
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    scheme: str | None = None,
    folder: str | Path | None = None,
) -> PreparedRun:
    """Read what is to be read, and find what cannot work."""
    file = task if isinstance(task, str | Path) else None
    read = read_task(task) if isinstance(task, str | Path) else task
    fleet = read_fleet(fleet) if isinstance(fleet, str | Path) else fleet
    material = gathered(with_scheme(read, scheme), file)
    task, data, trainer = material.task, material.data, material.trainer
    run = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    shares = fleet.core_shares(task, _core_sample_s(fleet, data.train, trainer))
    rates = np.array([fleet.price, fleet.sample_j, fleet.byte_j])
    return PreparedRun(
        RunSpec(run, task, trainer, data.test, rates),
        data.train,
        fleet,
        tuple(shares.tolist()),
        create_run_folder(folder or Path("runs") / re.sub(r"[^\w.-]", "-", f"{task.name}-{run}")),
        material.path,
    )


def _core_sample_s(fleet: Fleet, data: Split, trainer: Trainer) -> float:
    """Seconds to train one sample once on this machine; measured only where a speed is in time."""
    if np.isnan(fleet.sample_s).all() and np.isnan(fleet.shard_s).all():
        return float("nan")
    some, rng = (
        Split(data.samples[:TIMING_SAMPLES], data.labels[:TIMING_SAMPLES]),
        np.random.default_rng(0),
    )
    # As learners do: several threads take more processor time for the same.
    with one_thread():
        trainer.train(trainer.initial(), some, 1, rng, lambda: False)
        began = time.process_time()
        trainer.train(trainer.initial(), some, 1, rng, lambda: False)
        return (time.process_time() - began) / len(some)

"""What a run needs, read and checked: what cannot work is found before a learner is started."""

import os
import re
import secrets
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from melisma.allocation.schemes import scheme_named
from melisma.errors import DataError, SettingError
from melisma.fleet.fleet import Fleet
from melisma.fleet.muster import read_fleet
from melisma.fleet.task import Task, read_task
from melisma.learning.data import DataSet, Split, load
from melisma.learning.measure import sized
from melisma.learning.named import is_own
from melisma.learning.parameters import Layout
from melisma.learning.trainer import Trainer
from melisma.learning.trainers import fits, trainer_for
from melisma.live.goal import Goal

# Samples that tell how fast this machine is.
TIMED = 500


@dataclass(frozen=True)
class Prepared:
    """All that a run needs; `shares` are what devices are of one core of this machine.

    `path` are folders where modules of one's own are looked for.
    """

    goal: Goal
    train: Split
    fleet: Fleet
    shares: tuple[float, ...]
    folder: Path
    path: tuple[str, ...]

    @property
    def task(self) -> Task:
        """What is trained."""
        return self.goal.task

    @property
    def notes(self) -> list[str]:
        """What of the devices this machine cannot stand for."""
        cores = os.cpu_count() or 1
        named = zip(self.fleet.names, self.shares, strict=True)
        large = [name for name, share in named if share > 1]
        total = sum(min(share, 1.0) for share in self.shares)
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
) -> Prepared:
    """Read what is to be read, and find what cannot work."""
    places = [Path(task).resolve().parent] if isinstance(task, str | Path) else []
    task = _with_scheme(read_task(task) if isinstance(task, str | Path) else task, scheme)
    path = _path(task, *places, Path.cwd())
    sys.path += [place for place in path if place not in sys.path]
    fleet = read_fleet(fleet) if isinstance(fleet, str | Path) else fleet
    data = _loaded(task)
    trainer = trainer_for(task)
    fits(trainer, data)
    task = sized(task, data, Layout.of(trainer.initial()))
    run = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    shares = fleet.core_shares(task, _core_sample_s(fleet, data.train, trainer))
    return Prepared(
        Goal(run, task, trainer, data.test),
        data.train,
        fleet,
        tuple(shares.tolist()),
        _made(folder or Path("runs") / re.sub(r"[^\w.-]", "-", f"{task.name}-{run}")),
        path,
    )


def _loaded(task: Task) -> DataSet:
    """The data; what is wrong with one's own is a mistake that one can mend."""
    try:
        data = load(task.data, task.data_args)
    except DataError as error:
        if is_own(task.data):
            raise SettingError(str(error)) from error
        raise
    if not len(data.test) and task.mode != "federated":
        raise SettingError(f"data {task.data} has no test samples to score a model with")
    return data


def _path(task: Task, *places: Path) -> tuple[str, ...]:
    """Where to look for modules of one's own: nowhere, if the task names none."""
    if not is_own(task.model) and not is_own(task.data):
        return ()
    return tuple(dict.fromkeys(map(str, places)))


def _with_scheme(task: Task, scheme: str | None) -> Task:
    """The task as it is allocated; a scheme that was asked for chooses passes where it does."""
    row = scheme_named(scheme or task.scheme)
    chosen = scheme is not None and row.passes == "chosen"
    task = replace(task, scheme=row.name, passes=None if chosen else task.passes)
    row.check_passes(task.passes)
    return task


def _made(folder: str | Path) -> Path:
    """A folder of the run's own: nothing is written over."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SettingError(f"{folder} is not empty; a run needs a folder of its own")
    except OSError as error:
        raise SettingError(f"{folder} cannot hold a run: {error.strerror}") from error
    return folder.resolve()


def _core_sample_s(fleet: Fleet, data: Split, trainer: Trainer) -> float:
    """Seconds to train one sample once on this machine; measured only where a speed is in time."""
    if np.isnan(fleet.sample_s).all() and np.isnan(fleet.shard_s).all():
        return float("nan")
    some, rng = Split(data.samples[:TIMED], data.labels[:TIMED]), np.random.default_rng(0)
    trainer.train(trainer.initial(), some, 1, rng, lambda: False)
    began = time.process_time()
    trainer.train(trainer.initial(), some, 1, rng, lambda: False)
    return (time.process_time() - began) / len(some)

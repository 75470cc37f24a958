"""`train`: a task on a fleet that this machine emulates, from the files to the report.

Everything that can be wrong with the task is found before a learner is started.
"""

import asyncio
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from melisma.allocation.schemes import scheme_named
from melisma.cycle.report import PICTURE, TRACE, Report
from melisma.cycle.trace import Step
from melisma.errors import SettingError
from melisma.fleet.chance import generator
from melisma.fleet.fleet import Fleet
from melisma.fleet.muster import read_fleet
from melisma.fleet.task import Partition, Sizes, Task, read_task
from melisma.learning.data import DataSet, Split, load
from melisma.learning.measure import sample_bytes
from melisma.learning.parameters import Layout
from melisma.learning.partition import cut, divided, shuffled_shards
from melisma.learning.shards import ShardFolder, encoded
from melisma.learning.trainer import Trainer
from melisma.learning.trainers import fits, trainer_for
from melisma.live.agent import Setting
from melisma.live.device import Emulated
from melisma.live.goal import Goal
from melisma.live.orchestrator import Orchestrator
from melisma.live.processes import learners
from melisma.live.storehouse import Storehouse

Watcher = Callable[[Step], None]


def train(
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    *,
    scheme: str | None = None,
    folder: str | Path | None = None,
    port: int = 0,
    watch: Watcher = lambda _: None,
) -> Report:
    """Train a task on a fleet of processes of this machine, each paced like its device.

    `folder` is where model, picture and trace go; without it, a new one below `runs`. `watch` sees
    each step as it happens, from another thread. Ctrl-C ends the run and keeps what there is.
    """
    return run(prepare(task, fleet, scheme, folder), port, watch)


@dataclass(frozen=True)
class Prepared:
    """All that a run needs, checked."""

    run: str
    task: Task
    fleet: Fleet
    data: DataSet
    trainer: Trainer
    folder: Path
    path: tuple[str, ...]

    @property
    def shares(self) -> list[float]:
        """What each device is of one core of this machine."""
        shares: list[float] = self.fleet.core_shares(self.task, _core_sample_s(self)).tolist()
        return shares

    @property
    def notes(self) -> list[str]:
        """What of the devices this machine cannot stand for."""
        shares, cores = self.shares, os.cpu_count() or 1
        large = [name for name, share in zip(self.fleet.names, shares, strict=True) if share > 1]
        total = sum(min(share, 1.0) for share in shares)
        said = []
        if large:
            said.append(
                f"{', '.join(large[:5])}{', ...' * (len(large) > 5)}: more than one core of this "
                "machine; a learner here has one"
            )
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
    here = Path(task).resolve().parent if isinstance(task, str | Path) else Path.cwd()
    sys.path.insert(0, str(here))
    task = read_task(task) if isinstance(task, str | Path) else task
    fleet = read_fleet(fleet) if isinstance(fleet, str | Path) else fleet
    if scheme is not None:
        task = msgspec.structs.replace(task, scheme=scheme)
    row = scheme_named(task.scheme)
    if row.passes == "chosen" and scheme is not None:
        task = msgspec.structs.replace(task, passes=None)
    row.check_passes(task.passes)
    data = load(task.data, task.data_args)
    trainer = trainer_for(task)
    if not len(data.test) and task.mode != "federated":
        raise SettingError(f"data {task.data} has no test samples to score a model with")
    fits(trainer, data)
    layout = Layout.of(trainer.initial())
    sizes = Sizes(
        samples=len(data.train),
        sample_bytes=sample_bytes(data.train),
        model_bytes=layout.size_bytes,
        sample_ops=task.sizes.sample_ops,
    )
    task = msgspec.structs.replace(task, sizes=sizes)
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    run = f"{stamp}-{secrets.token_hex(2)}"
    where = Path(folder) if folder is not None else Path("runs") / f"{task.name}-{run}"
    _check_folder(where)
    return Prepared(run, task, fleet, data, trainer, where.resolve(), (str(here),))


def _check_folder(folder: Path) -> None:
    """A run begins in a folder of its own: nothing is written over."""
    if (folder / TRACE).exists():
        raise SettingError(f"{folder} holds a run already; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{folder} cannot hold a run: {error.strerror}") from error


def run(
    prepared: Prepared,
    port: int = 0,
    watch: Watcher = lambda _: None,
    stop: list[Callable[[], object]] | None = None,
) -> Report:
    """Run to the end; `stop` gets what ends it sooner, as Ctrl-C does."""
    steps: list[Step] = []
    done: Future[Report] = Future()
    stop = [] if stop is None else stop

    def seen(step: Step) -> None:
        steps.append(step)
        watch(step)

    def work() -> None:
        try:
            model = asyncio.run(_orchestrated(prepared, port, seen, stop))
            report = replace(Report.of(steps), model=model, folder=prepared.folder)
            report.plot().save(prepared.folder / PICTURE)
            done.set_result(report)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            done.set_exception(error)

    # In a thread of its own: a notebook has an event loop already.
    threading.Thread(target=work, name="melisma-run").start()
    while True:
        try:
            return done.result()
        except KeyboardInterrupt:
            if not stop:
                raise
            stop.pop()()


async def _orchestrated(
    prepared: Prepared, port: int, watch: Watcher, stop: list[Callable[[], object]]
) -> Path | None:
    """The trained model, if there is one."""
    store = _store(prepared)
    goal = Goal(prepared.run, prepared.task, prepared.trainer, prepared.data.test)
    loop = asyncio.get_running_loop()
    try:
        orchestrator = Orchestrator(goal, prepared.fleet.names, store, watch)
        orchestrator.begin()
        async with orchestrator.worker(port).listening() as address:
            settings = _settings(prepared, address)
            async with learners(settings, prepared.folder / "devices", orchestrator.gone):
                stop.append(lambda: loop.call_soon_threadsafe(orchestrator.cancel, "interrupted"))
                await orchestrator.finished
                stop.clear()
    finally:
        store.close()
        for part in ("devices", "shards"):
            shutil.rmtree(prepared.folder / part, ignore_errors=True)
    return store.model


def _store(prepared: Prepared) -> Storehouse:
    layout = Layout.of(prepared.trainer.initial())
    task, shards = prepared.task, None
    if task.mode == "parallelized":
        rng = generator(task.seed, "samples")
        parts = shuffled_shards(len(prepared.data.train), task.shard_samples, rng)
        shards = ShardFolder(prepared.folder / "shards", prepared.data.train, parts)
    else:
        _spread(prepared)
    return Storehouse(prepared.folder, layout, shards)


def _spread(prepared: Prepared) -> None:
    """In federated learning the data lies on the devices before anything begins."""
    task, train_split = prepared.task, prepared.data.train
    sizes = prepared.fleet.own_shards(task) * task.shard_samples
    over = int(sizes.sum()) - len(train_split)
    if over > 0:
        sizes[-1] -= over
    partition, rng = task.partition or Partition(), generator(task.seed, "partition")
    devices = divided(train_split.labels, sizes, partition, rng)
    for number, samples in enumerate(devices):
        folder = _own(prepared, number)
        folder.mkdir(parents=True, exist_ok=True)
        for place, part in enumerate(cut(samples, task.shard_samples)):
            content = encoded(Split(train_split.samples[part], train_split.labels[part]))
            (folder / f"{place:06}").write_bytes(content)


def _own(prepared: Prepared, number: int) -> Path:
    return prepared.folder / "devices" / f"{number}-own"


def _settings(prepared: Prepared, address: str) -> list[Setting]:
    fleet, task = prepared.fleet, prepared.task
    shares = prepared.shares
    federated = task.mode == "federated"
    settings = []
    for number, name in enumerate(fleet.names):
        rows = np.column_stack(
            [fleet.states[number], fleet.compute_left[number], fleet.bandwidth_left[number]]
        )
        emulated = Emulated(
            share=shares[number],
            bandwidth_bps=float(fleet.bandwidth_bps[number]),
            latency_s=float(fleet.latency_s[number]),
            states=tuple((p, compute, bandwidth) for p, compute, bandwidth in rows.tolist()),
            seed=fleet.seed,
        )
        settings.append(
            Setting(
                name=name,
                orchestrator=address,
                cache=str(prepared.folder / "devices" / f"{number}-cache"),
                tells=fleet.tells[number],
                emulated=emulated,
                path=prepared.path,
                own=str(_own(prepared, number)) if federated else None,
            )
        )
    return settings


def _core_sample_s(prepared: Prepared) -> float:
    """Seconds to train one sample once on this machine; measured only where a speed is in time."""
    fleet, count = prepared.fleet, min(prepared.task.shard_samples, 500)
    if np.isnan(fleet.sample_s).all() and np.isnan(fleet.shard_s).all():
        return float("nan")
    some = Split(prepared.data.train.samples[:count], prepared.data.train.labels[:count])
    rng, trainer = np.random.default_rng(0), prepared.trainer
    trainer.train(trainer.initial(), some, 1, rng, lambda: False)
    began = time.process_time()
    trainer.train(trainer.initial(), some, 1, rng, lambda: False)
    return (time.process_time() - began) / len(some)

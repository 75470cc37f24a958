"""`train`: a task on a fleet that this machine emulates, from the files to the report."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import owned, shuffled_shards
from melisma.learning.data.shards import ShardFolder, encoded
from melisma.learning.parameters import Layout
from melisma.live.learner.agent import LearnerSettings
from melisma.live.learner.device import EmulatedDevice
from melisma.live.orchestrator.orchestrator import Orchestrator, Watcher
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.preparation import PreparedRun, prepare
from melisma.live.processes import run_processes
from melisma.runs.report import PICTURE_FILE, Report
from melisma.runs.trace import Step


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


class Cancellation:
    """Ends a run from another thread, as soon as it can be ended."""

    def __init__(self) -> None:
        self.requested = False
        self._end: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        """End it."""
        self.requested = True
        self._end()

    def on_cancel(self, end: Callable[[], object]) -> None:
        """This is how; at once, if it was asked for before."""
        self._end = end
        if self.requested:
            end()


def run(
    prepared: PreparedRun,
    port: int = 0,
    watch: Watcher = lambda _: None,
    stop: Cancellation | None = None,
) -> Report:
    """Run to the end, or until `stop` or Ctrl-C; a second Ctrl-C does not wait for the report."""
    stop, steps = stop or Cancellation(), list[Step]()
    done: Future[Report] = Future()

    def seen(step: Step) -> None:
        steps.append(step)
        watch(step)

    def work() -> None:
        try:
            model = asyncio.run(_run_orchestrator(prepared, port, seen, stop))
            report = replace(Report.of(steps), model=model, folder=prepared.folder)
            report.plot().save(prepared.folder / PICTURE_FILE)
            done.set_result(report)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            done.set_exception(error)

    # In a thread of its own: a notebook has an event loop already.
    threading.Thread(target=work, name="melisma-run", daemon=True).start()
    while True:
        try:
            return done.result()
        except KeyboardInterrupt:
            if stop.requested:
                raise
            stop()


async def _run_orchestrator(
    prepared: PreparedRun, port: int, watch: Watcher, stop: Cancellation
) -> Path | None:
    """The trained model, if there is one."""
    loop, store, orchestrator = asyncio.get_running_loop(), None, None
    try:
        store = _create_store(prepared)
        orchestrator = Orchestrator(prepared.spec, prepared.fleet.names, store, watch)
        async with orchestrator.worker(port).listening() as address:
            orchestrator.begin()
            settings = _learner_settings(prepared, address, orchestrator.token)
            async with run_processes(settings, prepared.folder / "logs", orchestrator.gone):
                stop.on_cancel(
                    lambda: loop.call_soon_threadsafe(orchestrator.cancel, "interrupted")
                )
                await orchestrator.finished
                stop.on_cancel(lambda: None)
    finally:
        if orchestrator is not None:
            # However it came to an end: nothing is heard, or written down, after this.
            orchestrator.finished.cancel()
        if store is not None:
            store.close()
        for part in ("devices", "shards"):
            shutil.rmtree(prepared.folder / part, ignore_errors=True)
        remove_empty(prepared.folder)
    return store.model


def remove_empty(folder: Path) -> None:
    """Learners that said nothing leave no log, and a run that never began no folder."""
    for log in (folder / "logs").glob("*.log"):
        if not log.stat().st_size:
            log.unlink()
    for place in (folder / "logs", folder):
        with suppress(OSError):
            place.rmdir()


def _create_store(prepared: PreparedRun) -> RunStore:
    layout = Layout.of(prepared.spec.trainer.initial())
    task, shards = prepared.task, None
    if task.mode == "parallelized":
        rng = generator(task.seed, "samples")
        parts = shuffled_shards(len(prepared.train), task.shard_samples, rng)
        shards = ShardFolder(prepared.folder / "shards", prepared.train, parts)
    else:
        _write_local_data(prepared)
    return RunStore(prepared.folder, layout, shards)


def _write_local_data(prepared: PreparedRun) -> None:
    """In federated learning the data lies on the devices before anything begins."""
    task, data = prepared.task, prepared.train
    devices = owned(task, data.labels, prepared.fleet.own_shards(task))
    for number, shards in enumerate(devices):
        folder = _local_data_folder(prepared, number)
        folder.mkdir(parents=True, exist_ok=True)
        for place, part in enumerate(shards):
            content = encoded(Split(data.samples[part], data.labels[part]))
            (folder / f"{place:06}").write_bytes(content)


def _local_data_folder(prepared: PreparedRun, number: int) -> Path:
    return prepared.folder / "devices" / f"{number}-own"


def _learner_settings(prepared: PreparedRun, address: str, token: str) -> list[LearnerSettings]:
    fleet, task = prepared.fleet, prepared.task
    federated = task.mode == "federated"
    settings, said_s = [], fleet.said_s(task)
    for number, name in enumerate(fleet.names):
        rows = np.column_stack(
            [fleet.states[number], fleet.compute_left[number], fleet.bandwidth_left[number]]
        )
        emulated = EmulatedDevice(
            core_share=prepared.core_shares[number],
            bandwidth_bps=float(fleet.bandwidth_bps[number]),
            latency_s=float(fleet.latency_s[number]),
            states=tuple((p, compute, bandwidth) for p, compute, bandwidth in rows.tolist()),
            seed=fleet.seed,
            sample_s=None if np.isnan(said_s[number]) else float(said_s[number]),
        )
        settings.append(
            LearnerSettings(
                name=name,
                orchestrator=address,
                token=token,
                cache=str(prepared.folder / "devices" / f"{number}-cache"),
                discloses=fleet.discloses[number],
                device=emulated,
                module_path=prepared.module_path,
                local_data=str(_local_data_folder(prepared, number)) if federated else None,
            )
        )
    return settings

"""`train`: runs a task on a fleet that this machine emulates, or on devices that join."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.tables import Port
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.data.partition import partition_shards
from melisma.learning.data.shards import encode_shard
from melisma.learning.given_objects import GivenObjects
from melisma.live.learner.learner_settings import (
    DEFAULT_CACHE_BYTES,
    EmulatedDevice,
    LearnerSettings,
)
from melisma.live.learner.trusted_code import defining_modules
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from melisma.live.orchestrator.learner_service import LearnerService
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.orchestrator import Orchestrator, Watcher
from melisma.live.preparation import PreparedRun, prepare
from melisma.live.processes import run_processes
from melisma.private_files import make_private_folder, write_private
from melisma.runs.cycle_result import OnCycle, check_callback, follow_cycles
from melisma.runs.folder import (
    DEVICES_FOLDER,
    LOGS_FOLDER,
    PICTURE_FILE,
    SHARDS_FOLDER,
    naming_kept_files,
)
from melisma.runs.interruption import CallerThread, Cancellation, run_in_thread
from melisma.runs.report import Report
from melisma.runs.svg import save_picture
from melisma.runs.trace import Step

# Of `train`, as far as no other check covers them.
ARGUMENT_TYPES = {
    "devices": int | None,
    "scheme": str | None,
    "port": Port | None,
}


def train(  # noqa: PLR0913 - each is a setting of its own
    task: Task | str | Path,
    fleet: Fleet | str | Path | None = None,
    *,
    model: Any = None,
    data: Any = None,
    devices: int | None = None,
    until_ready: float | str | None = None,
    scheme: str | None = None,
    deadline_s: float | None = None,
    total_s: float | None = None,
    finish_by: str | None = None,
    start: str | Path | None = None,
    aggregation: str | None = None,
    folder: str | Path | None = None,
    port: int | None = None,
    on_cycle: OnCycle | None = None,
) -> Report:
    """Train a task on a fleet that this machine emulates, or on devices that join.

    With a `fleet`, each of its devices is a process of this machine, slowed to its speed. With
    `devices`, print the command for devices, wait until that number has joined, and train on them;
    print the score of each cycle, and at the end the folder of the results.
    With `until_ready`, a number of seconds or a local time such as ``"23:00"``, begin then with the
    devices that have joined, at least one; with both, the first decides. `melisma.orchestrate` has
    further settings for devices that join.

    `model` is a class or an instance of `torch.nn.Module`, a function that returns one, or a
    trainer class, and `data` a pair (train, test) of `Dataset`s or of arrays (samples, labels),
    instead of those that the task names.
    `deadline_s` is the time of a cycle, `total_s` that of the whole run, and `finish_by` when it
    ends, instead of what the task says. `start` is the file of a model to start from, and
    `aggregation` a function ``module:name`` that takes the place of the mean.
    Model, picture and trace are written to `folder`, or to a new folder below `runs`. `port` is by
    default a free one, or 7788 for devices that join. `on_cycle` is called with the `CycleResult`
    of each cycle; an error that it raises ends the run, and is raised with the results kept. Ctrl-C
    ends the run and keeps its results so far. A run that fails raises `RunFailedError`.
    """
    check_arguments("train", ARGUMENT_TYPES, locals())
    check_callback(on_cycle)
    if fleet is not None:
        _require_no_devices(devices, until_ready)
        settings = RunSettings(deadline_s, total_s, finish_by, start, aggregation)
        objects = GivenObjects(model, data)
        prepared = prepare(task, fleet, scheme, folder, settings, objects=objects)
        return run(prepared, port or 0, on_cycle=on_cycle).require_success()
    if devices is None and until_ready is None:
        raise SettingError(
            "train has neither a fleet nor devices: pass fleet=FILE to emulate devices on this "
            "machine, or devices=N to train on N devices that join over the network"
        )
    if devices is not None and devices < 1:
        raise SettingError(f"devices = {devices} is too small: use devices >= 1")
    # Imported here, as that module uses this one.
    from melisma.live.orchestration import orchestrate
    from melisma.live.orchestrator_settings import DEFAULT_PORT

    return orchestrate(
        task,
        model=model,
        data=data,
        learners=devices,
        until_ready=until_ready,
        scheme=scheme,
        deadline_s=deadline_s,
        total_s=total_s,
        finish_by=finish_by,
        start=start,
        aggregation=aggregation,
        folder=folder,
        port=DEFAULT_PORT if port is None else port,
        on_cycle=on_cycle,
    )


def _require_no_devices(devices: int | None, until_ready: float | str | None) -> None:
    given = {"devices": devices, "until_ready": until_ready}
    for name, value in given.items():
        if value is not None:
            raise SettingError(
                f"train has a fleet and {name} = {value}: leave out the fleet to train on devices "
                f"that join, or {name} to emulate the devices of the fleet"
            )


def run(
    prepared: PreparedRun,
    port: int = 0,
    watch: Watcher = lambda _: None,
    cancellation: Cancellation | None = None,
    on_fetch: Callable[[int], None] = lambda _learner: None,
    on_cycle: OnCycle | None = None,
) -> Report:
    """Run to the end or until cancelled; a second Ctrl-C does not wait for the report.

    `watch` is called with each step, in the thread of the run; `on_cycle` in that of the caller.
    `on_fetch` receives the number of a learner whenever it requests a file, from another thread.
    """
    cancellation, steps = cancellation or Cancellation(), list[Step]()
    caller = CallerThread(cancellation)
    follow = follow_cycles(on_cycle, caller.call)

    def record(step: Step) -> None:
        steps.append(step)
        watch(step)
        follow(step)

    mailboxes = Mailboxes(prepared.fleet.names)
    mailboxes.on_fetch = on_fetch

    def work() -> Report:
        with naming_kept_files(prepared.folder):
            model, failure = asyncio.run(
                _run_orchestrator(prepared, port, mailboxes, record, cancellation)
            )
        report = replace(Report.from_trace(steps), model=model, folder=prepared.folder)
        save_picture(report.plot, prepared.folder / PICTURE_FILE)
        return report if failure is None else report.require_success(failure)

    return run_in_thread(work, cancellation, "melisma-run", caller)


async def _run_orchestrator(
    prepared: PreparedRun,
    port: int,
    mailboxes: Mailboxes,
    watch: Watcher,
    cancellation: Cancellation,
) -> tuple[Path | None, Exception | None]:
    """Run the orchestrator and its learners.

    Return the trained model, if there is one, and the error of the user's code that ended the run.
    """
    loop, store, orchestrator = asyncio.get_running_loop(), None, None
    spec, evaluator = prepared.spec, FederatedEvaluator(mailboxes)
    try:
        store = prepared.create_store()
        if prepared.task.mode == "federated":
            _write_local_data(prepared)
        orchestrator = Orchestrator(spec, mailboxes, store, evaluator, watch)
        service = LearnerService(spec, mailboxes, store, evaluator, orchestrator)
        tokens = LearnerTokens(prepared.fleet.names)
        async with service.worker(tokens, port=port).listening() as address:
            orchestrator.start()
            settings = _learner_settings(prepared, address, tokens)
            logs = prepared.folder / LOGS_FOLDER
            async with run_processes(settings, logs, service.remove_learner, trainer=spec.trainer):
                cancel = partial(_cancel, loop, orchestrator, cancellation)
                cancellation.on_request(cancel)
                silence = loop.create_task(service.watch_silence())
                try:
                    await orchestrator.finished
                finally:
                    silence.cancel()
                    cancellation.on_request(lambda: None)
    finally:
        if orchestrator is not None:
            # After this, no event is handled or recorded.
            orchestrator.finished.cancel()
        if store is not None:
            store.close()
        for name in (DEVICES_FOLDER, SHARDS_FOLDER):
            shutil.rmtree(prepared.folder / name, ignore_errors=True)
        remove_empty(prepared.folder)
    return store.model, orchestrator.failure


def _cancel(
    loop: asyncio.AbstractEventLoop, orchestrator: Orchestrator, cancellation: Cancellation
) -> None:
    loop.call_soon_threadsafe(orchestrator.cancel, cancellation.reason)


def _write_local_data(prepared: PreparedRun) -> None:
    """Write each device's shards for federated learning, before the run begins."""
    task, data = prepared.task, prepared.train
    devices = partition_shards(task, data.labels, prepared.fleet.local_samples(task))
    for number, shards in enumerate(devices):
        folder = _local_data_folder(prepared, number)
        make_private_folder(folder)
        for shard, part in enumerate(shards):
            content = encode_shard(Split(data.samples[part], data.labels[part]))
            write_private(folder / f"{shard:06}", content)


def _local_data_folder(prepared: PreparedRun, number: int) -> Path:
    return prepared.folder / DEVICES_FOLDER / f"{number}-data"


def _learner_settings(
    prepared: PreparedRun, address: str, tokens: LearnerTokens
) -> list[LearnerSettings]:
    fleet, federated = prepared.fleet, prepared.task.mode == "federated"
    # A learner of this machine may be assigned all shards.
    data_bytes = prepared.train.samples.nbytes + prepared.train.labels.nbytes
    return [
        LearnerSettings(
            name=name,
            orchestrator=(address,),
            token=tokens.token(name),
            cache=str(prepared.folder / DEVICES_FOLDER / f"{number}-cache"),
            cache_bytes=max(DEFAULT_CACHE_BYTES, 2 * data_bytes),
            discloses=fleet.discloses[number],
            device=_device_settings(prepared, number),
            # Emulated devices are paced by processor time.
            compute_device="cpu",
            module_path=prepared.module_path,
            allowed_modules=defining_modules(prepared.task.model),
            local_data=str(_local_data_folder(prepared, number)) if federated else None,
        )
        for number, name in enumerate(fleet.names)
    ]


def _device_settings(prepared: PreparedRun, number: int) -> EmulatedDevice:
    fleet = prepared.fleet
    # Each device gets its share of the orchestrator's link while all of them use it.
    down_bps, up_bps = fleet.shared_rates_bps
    sample_s = float(fleet.specified_sample_s(prepared.task)[number])
    states = np.column_stack(
        [
            fleet.state_probability[number],
            fleet.state_compute[number],
            fleet.state_bandwidth[number],
        ]
    )
    noise, trace_id = fleet.noise, int(fleet.trace_ids[number])
    return EmulatedDevice(
        core_share=prepared.core_shares[number],
        downlink_bps=float(down_bps[number]),
        uplink_bps=float(up_bps[number]),
        latency_s=float(fleet.latency_s[number]),
        states=tuple((p, compute, bandwidth) for p, compute, bandwidth in states.tolist()),
        seed=fleet.seed,
        sample_s=None if isnan(sample_s) else sample_s,
        noise=(
            float(noise.compute[number]),
            float(noise.bandwidth[number]),
            float(noise.correlation_s[number]),
        ),
        trace=fleet.traces[trace_id].rows if trace_id >= 0 else (),
    )


def remove_empty(folder: Path) -> None:
    """Delete empty logs, and the run folder if nothing is in it."""
    for log in (folder / LOGS_FOLDER).glob("*.log"):
        if not log.stat().st_size:
            log.unlink()
    for path in (folder / LOGS_FOLDER, folder):
        with suppress(OSError):
            path.rmdir()

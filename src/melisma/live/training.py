"""`train`: runs a task on a fleet that this machine emulates, or on devices that join."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.tables import Port
from melisma.fleet.task import Task
from melisma.learning.given_objects import GivenObjects
from melisma.live.emulated_learners import complete_settings, write_local_data
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from melisma.live.orchestrator.learner_service import LearnerService
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.orchestrator import Orchestrator, Watcher
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.preparation import PreparedTask, prepare
from melisma.live.processes import run_processes
from melisma.live.run_resumption import RunResumption
from melisma.live.run_setup import RunSetup
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
from melisma.runs.service_report import ServiceReport
from melisma.runs.svg import save_picture
from melisma.runs.trace import Step

if TYPE_CHECKING:
    from melisma.live.service.service_preparation import ServiceOptions

AnyTask = Task | str | Path
TaskList = list[AnyTask] | tuple[AnyTask, ...] | list[str] | list[Path] | list[Task]
BACK_CHECK_S = 0.25
# Of `train`, as far as no other check covers them.
ARGUMENT_TYPES = {
    "devices": int | None,
    "scheme": str | None,
    "port": Port | None,
}


@overload
def train(
    task: AnyTask,
    fleet: Fleet | str | Path | None = ...,
    *,
    model: Any = ...,
    data: Any = ...,
    devices: int | None = ...,
    until_ready: float | str | None = ...,
    scheme: str | None = ...,
    deadline_s: float | None = ...,
    total_s: float | None = ...,
    finish_by: str | None = ...,
    start: str | Path | None = ...,
    aggregation: str | None = ...,
    folder: str | Path | None = ...,
    port: int | None = ...,
    on_cycle: OnCycle | None = ...,
) -> Report: ...


@overload
def train(
    task: TaskList,
    fleet: Fleet | str | Path,
    *,
    scheme: str | None = ...,
    aggregation: str | None = ...,
    folder: str | Path | None = ...,
    port: int | None = ...,
) -> ServiceReport: ...


def train(  # noqa: PLR0913 - each is a setting of its own
    task: AnyTask | TaskList,
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
) -> Report | ServiceReport:
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
    Several tasks are a list; they share the emulated devices, and the report has one for each.
    Model, picture and trace are written to `folder`, or to a new folder below `runs`. `port` is by
    default a free one, or 7788 for devices that join. `on_cycle` is called with the `CycleResult`
    of each cycle; an error that it raises ends the run, and is raised with the results kept. Ctrl-C
    ends the run and keeps its results so far. A run that fails raises `RunFailedError`.
    """
    check_arguments("train", ARGUMENT_TYPES, locals())
    check_callback(on_cycle)
    settings = RunSettings(deadline_s, total_s, finish_by, start, aggregation)
    if isinstance(task, list | tuple):
        refused = {"model": model, "data": data, "on_cycle": on_cycle}
        refused |= {"devices": devices, "until_ready": until_ready}
        from melisma.live.service.service_preparation import ServiceOptions

        options = ServiceOptions(scheme, folder, settings=settings)
        return _train_tasks(task, fleet, options, port or 0, refused)
    if fleet is not None:
        _require_no_devices(devices, until_ready)
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


def _train_tasks(
    tasks: Sequence[AnyTask],
    fleet: Fleet | str | Path | None,
    options: "ServiceOptions",
    port: int,
    refused: dict[str, Any],
) -> ServiceReport:
    # Imported here, as these modules use this one.
    from melisma.live.service.emulated_service import run_service
    from melisma.live.service.service_preparation import prepare_service

    for name, value in refused.items():
        if value is not None:
            raise SettingError(f"{name} is for one task, found a list of tasks; leave it out")
    if fleet is None:
        raise SettingError(
            "several tasks need a fleet: pass fleet=FILE to emulate devices on this machine, or "
            "use melisma orchestrate and melisma submit for devices that join"
        )
    return run_service(prepare_service(tasks, fleet, options), port).require_success()


def _require_no_devices(devices: int | None, until_ready: float | str | None) -> None:
    given = {"devices": devices, "until_ready": until_ready}
    for name, value in given.items():
        if value is not None:
            raise SettingError(
                f"train has a fleet and {name} = {value}: leave out the fleet to train on devices "
                f"that join, or {name} to emulate the devices of the fleet"
            )


def run(  # noqa: PLR0913 - each is a setting of its own
    prepared: PreparedTask,
    port: int = 0,
    *,
    watch: Watcher = lambda _: None,
    cancellation: Cancellation | None = None,
    on_fetch: Callable[[int], None] = lambda _learner: None,
    on_cycle: OnCycle | None = None,
    on_note: Callable[[str], None] = lambda _note: None,
) -> Report:
    """Run to the end or until cancelled; a second Ctrl-C does not wait for the report.

    `watch` is called with each step, in the thread of the run; `on_cycle` in that of the caller.
    `on_fetch` receives the number of a learner whenever it requests a file, and `on_note` what the
    owner should know, both from other threads.
    """
    cancellation = cancellation or Cancellation()
    caller = CallerThread(cancellation)
    follow = follow_cycles(on_cycle, caller.call, prepared.earlier_steps)

    def record(step: Step) -> None:
        watch(step)
        follow(step)

    emulated = _EmulatedRun(prepared, record, on_note)
    emulated.mailboxes.on_fetch = on_fetch

    def work() -> Report:
        with naming_kept_files(prepared.folder):
            report = asyncio.run(emulated.run(port, cancellation))
            save_picture(report.plot, prepared.folder / PICTURE_FILE)
        failure = emulated.failure
        return report if failure is None else report.require_success(failure)

    return run_in_thread(work, cancellation, "melisma-run", caller)


class _EmulatedRun:
    """The orchestrator of a run and its learners, which are processes of this machine."""

    def __init__(
        self,
        prepared: PreparedTask,
        watch: Watcher,
        on_note: Callable[[str], None],
    ) -> None:
        self._prepared, self._fleet = prepared, prepared.emulated
        self._watch, self._on_note = watch, on_note
        self.mailboxes = Mailboxes(self._fleet.names)
        self.failure: Exception | None = None

    async def run(self, port: int, cancellation: Cancellation) -> Report:
        """Run to the end; return the report, with the trained model if there is one."""
        prepared, ended = self._prepared, False
        folder = prepared.folder
        store = prepared.open_store(self._setup())
        store.on_note = self._on_note
        try:
            if prepared.task.mode == "federated":
                write_local_data(folder, prepared.task, prepared.train, self._fleet.local_samples)
            await self._serve(store, port, cancellation)
            ended = True
            report = replace(Report.from_trace(store.journal.journal.steps()), folder=folder)
        finally:
            for name in (DEVICES_FOLDER, SHARDS_FOLDER):
                shutil.rmtree(folder / name, ignore_errors=True)
            store.close(ended=ended)
            remove_empty(folder)
        return replace(report, model=store.model)

    def _setup(self) -> RunSetup:
        prepared = self._prepared
        return RunSetup(
            run=prepared.spec.run,
            task=prepared.task,
            module_path=prepared.module_path,
            shards="",
            fleet=self._fleet,
        )

    async def _serve(self, store: RunStore, port: int, cancellation: Cancellation) -> None:
        """Run orchestrator and learners until the run has ended."""
        loop, mailboxes, spec = asyncio.get_running_loop(), self.mailboxes, self._prepared.spec
        evaluator = FederatedEvaluator(mailboxes)
        orchestrator = Orchestrator(spec, mailboxes, store, evaluator, self._watch)
        service = LearnerService(spec, mailboxes, store, evaluator, orchestrator)
        tokens = LearnerTokens(self._fleet.names)
        resumption = self._prepared.resumption
        try:
            async with service.worker(tokens, port=port).listening() as address:
                if resumption is None:
                    orchestrator.start()
                folder, mode = self._prepared.folder, self._prepared.task.mode
                settings = complete_settings(self._fleet.learners, folder, mode, address, tokens)
                logs = folder / LOGS_FOLDER
                async with run_processes(
                    settings, logs, service.remove_learner, trainer=spec.trainer
                ):
                    cancel = partial(_cancel, loop, orchestrator, cancellation)
                    cancellation.on_request(cancel)
                    silence = loop.create_task(service.watch_silence())
                    try:
                        if resumption is not None:
                            await resume_emulated(service, mailboxes, resumption, cancellation)
                        if cancellation.requested:
                            # Before the run went on, there was nothing to cancel.
                            orchestrator.cancel(cancellation.reason)
                        await orchestrator.finished
                    finally:
                        silence.cancel()
                        cancellation.on_request(lambda: None)
        finally:
            # After this, no event is handled or recorded.
            orchestrator.finished.cancel()
            await orchestrator.end()
            self.failure = orchestrator.failure


async def resume_emulated(
    service: LearnerService,
    mailboxes: Mailboxes,
    resumption: RunResumption,
    cancellation: Cancellation,
) -> None:
    """Let a run go on once all its learners are back or have failed, or it is cancelled.

    Its clock stood still meanwhile, as nobody trained, unless the run has a total time.
    """
    await wait_until_back(mailboxes, cancellation)
    service.resume_run(resumption)


async def wait_until_back(mailboxes: Mailboxes, cancellation: Cancellation) -> None:
    """Wait until all learners are back or have failed, or the run is cancelled."""
    while not cancellation.requested and any(not (box.ready or box.left) for box in mailboxes):
        mailboxes.became_ready.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(mailboxes.became_ready.wait(), BACK_CHECK_S)


def _cancel(
    loop: asyncio.AbstractEventLoop, orchestrator: Orchestrator, cancellation: Cancellation
) -> None:
    loop.call_soon_threadsafe(orchestrator.cancel, cancellation.reason)


def remove_empty(folder: Path) -> None:
    """Delete empty logs, and the run folder if nothing is in it."""
    for log in (folder / LOGS_FOLDER).glob("*.log"):
        if not log.stat().st_size:
            log.unlink()
    for path in (folder / LOGS_FOLDER, folder):
        with suppress(OSError):
            path.rmdir()

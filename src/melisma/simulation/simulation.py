"""`simulate`: a task on a fleet in virtual time, from the files to the report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import msgspec
from safetensors.numpy import save

from melisma.allocation.schemes import with_scheme
from melisma.atomic import write_atomic
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import RaggedArray
from melisma.errors import DataError, SettingError
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_builder import read_fleet
from melisma.fleet.task import Simulation, Task, read_task
from melisma.learning.loaded_task import gathered
from melisma.runs.folder import create_run_folder
from melisma.runs.progress import RunProgress
from melisma.runs.report import PICTURE_FILE, Report
from melisma.runs.trace import Step, TraceFile
from melisma.simulation.compute.compute import Compute, RealTraining, TimingOnly
from melisma.simulation.compute.memory import check_memory
from melisma.simulation.compute.sample_index import SampleIndex
from melisma.simulation.driver import Driver
from melisma.simulation.faults import Fault
from melisma.simulation.scenario import Scenario, local_shard_sizes, parse_or_draw_faults

ComputeLevel = Literal["timing", "train", "batched"]
MAX_DEADLINE_S = 1e9


@dataclass(frozen=True)
class SimulationOptions:
    """What stands instead of what the files say.

    `learners` makes the fleet of a file as large as that, in its proportions; `seed` stands for
    those of task and fleet, `work` for what the task says of it; `faults` are what goes wrong, in
    words, or a number that draws some.
    """

    scheme: str | None = None
    learners: int | None = None
    seed: int | None = None
    work: ComputeLevel | None = None
    faults: str | int | tuple[Fault, ...] = ()
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Levels that there are, and numbers that can be."""
        if self.work not in (None, *get_args(ComputeLevel)):
            known = ", ".join(get_args(ComputeLevel))
            raise SettingError(f"work is {self.work!r}; expected one of {known}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SettingError(f"seed is {self.seed}; expected 0 to {2**63 - 1}")
        if self.deadline_s is not None and not 0 < self.deadline_s < MAX_DEADLINE_S:
            raise SettingError(
                f"deadline_s = {self.deadline_s:g}; use 0 < deadline_s < {MAX_DEADLINE_S:g}"
            )


NO_OVERRIDES = SimulationOptions()


@dataclass(frozen=True, eq=False)
class PreparedSimulation:
    """A scene that was checked, and what is computed in it."""

    scenario: Scenario
    level: ComputeLevel
    make_compute: Callable[[], Compute]


def simulate(
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    options: SimulationOptions = NO_OVERRIDES,
    *,
    folder: str | Path | None = None,
    watch: Callable[[Step], object] = lambda _: None,
) -> Report:
    """Run a task on a fleet in virtual time.

    Model, picture and trace are kept if there is a `folder`. `watch` sees each step.
    """
    return run(prepare(task, fleet, options), folder, watch)


def prepare(
    task: Task | str | Path, fleet: Fleet | str | Path, options: SimulationOptions = NO_OVERRIDES
) -> PreparedSimulation:
    """Read what is to be read, and find what cannot work; `SettingError` names the file."""
    file = task if isinstance(task, str | Path) else None
    fleet = _fleet(fleet, options)
    try:
        staged = _staged(task, file, fleet, options)
    except SettingError as error:
        if file is None or str(file) in str(error):
            raise
        raise SettingError(f"{file}: task: {error}") from error
    faults = options.faults
    if not isinstance(faults, tuple):
        faults = parse_or_draw_faults(str(faults), staged.scenario)
    return replace(staged, scenario=replace(staged.scenario, faults=faults))


def _staged(
    task: Task | str | Path, file: str | Path | None, fleet: Fleet, options: SimulationOptions
) -> PreparedSimulation:
    read = _instead(read_task(task) if isinstance(task, str | Path) else task, options)
    level = read.simulation.work
    if level == "timing" and (known := _sized(read)):
        check_memory(known, fleet)
        return PreparedSimulation(
            _scene(known, fleet, local_shard_sizes(known, fleet)), level, TimingOnly
        )
    material = gathered(read, file)
    check_memory(material.task, fleet)
    stock = SampleIndex.from_task(material, fleet)
    scene = _scene(material.task, fleet, stock.local_sizes)
    if level == "timing":
        return PreparedSimulation(scene, level, TimingOnly)
    one_by_one = level == "train"
    return PreparedSimulation(
        scene, level, lambda: RealTraining(material, stock, fleet.names, one_by_one=one_by_one)
    )


def _instead(task: Task, options: SimulationOptions) -> Task:
    """The task with what stands instead of what it says."""
    task = with_scheme(task, options.scheme)
    work = None if options.work is None else Simulation(work=options.work)
    said = {"seed": options.seed, "deadline_s": options.deadline_s, "simulation": work}
    return msgspec.structs.replace(task, **{k: v for k, v in said.items() if v is not None})


def _scene(task: Task, fleet: Fleet, own: RaggedArray) -> Scenario:
    """A scene that the machine does not refuse."""
    if not fleet.present_at_start.any():
        raise SettingError("nobody of the fleet is there when the run begins")
    scene = Scenario(f"{task.name}-{task.scheme}-{task.seed}", task, fleet, own)
    CycleMachine().handle(scene.submission())
    return scene


def run(
    staged: PreparedSimulation,
    folder: str | Path | None = None,
    watch: Callable[[Step], object] = lambda _: None,
    story: RunProgress | None = None,
) -> Report:
    """Act a scene out, from its beginning; whoever gives a story can look into it on the way."""
    place = create_run_folder(folder) if folder is not None else None
    trace = TraceFile(place) if place is not None else None
    story, work = story or RunProgress(), staged.make_compute()

    def seen(step: Step) -> None:
        if trace is not None:
            trace.write(step)
        story.apply(step)
        watch(step)

    driver, wrong = Driver(staged.scenario, work, seen), None
    try:
        driver.run()
    # As live: what there is is kept.
    except KeyboardInterrupt:
        driver.cancel("interrupted")
    except DataError as error:
        driver.cancel(str(error))
        wrong = error
    finally:
        work.close()
        if trace is not None:
            trace.close()
    report = story.report()
    if place is not None:
        report = _kept(report, place, work)
    if wrong is not None:
        kept = "" if place is None else f"; what there was before is in {place}"
        raise DataError(f"{wrong}{kept}") from wrong
    return report


def _kept(report: Report, folder: Path, work: Compute) -> Report:
    report = replace(report, folder=folder)
    if isinstance(work, RealTraining):
        model = write_atomic(folder / "model.safetensors", save(dict(work.parameters)))
        report = replace(report, model=model)
    report.plot().save(folder / PICTURE_FILE)
    return report


def _fleet(fleet: Fleet | str | Path, options: SimulationOptions) -> Fleet:
    if isinstance(fleet, str | Path):
        return read_fleet(fleet, options.learners, options.seed)
    if options.learners not in (None, fleet.learners):
        raise SettingError("learners makes the fleet of a file larger or smaller, not this one")
    return fleet if options.seed is None else replace(fleet, seed=options.seed)


def _sized(task: Task) -> Task | None:
    """The task, if its names tell the sizes, and no data has to be read for them."""
    try:
        _ = task.shards, task.shard_bytes, task.model_bytes, task.sample_ops
    except SettingError:
        return None
    return task

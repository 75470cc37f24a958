"""Many fault schedules, one after another; what breaks is made as short as it can be."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from melisma.errors import MelismaError
from melisma.runs.interruption import interruptible
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.faults import Fault, format_faults
from melisma.simulation.invariants import run_checked
from melisma.simulation.scenario import Scenario, with_random_faults
from melisma.simulation.simulation import SimulationOptions


@dataclass(frozen=True)
class Failure:
    """A seed, the fewest faults that still break something, and what they break."""

    seed: int
    faults: tuple[Fault, ...]
    violation: str


def search_faults(scene_of: Callable[[int], Scenario], seeds: range) -> Iterator[Failure | None]:
    """A schedule of faults for each seed; where it breaks something, the shortest that does."""
    with interruptible() as check:
        for seed in seeds:
            check()
            scene = with_random_faults(scene_of(seed), seed)
            yield _shortest(scene, seed) if find_violation(scene) else None


def find_violation(scene: Scenario) -> str:
    """What goes wrong that must not, or nothing."""
    try:
        run_checked(lambda watch: Driver(scene, TimingOnly(), watch).run())
    except MelismaError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever the machine raises is a finding
        return f"{type(error).__name__}: {error}"
    return ""


def _shortest(scene: Scenario, seed: int) -> Failure:
    faults = tuple(
        shrink(scene.faults, lambda some: bool(find_violation(replace(scene, faults=some))))
    )
    return Failure(seed, faults, find_violation(replace(scene, faults=faults)))


def shrink(
    faults: tuple[Fault, ...], fails: Callable[[tuple[Fault, ...]], bool]
) -> tuple[Fault, ...]:
    """Fewer faults that still fail: none of these can be left out."""
    place = 0
    while place < len(faults):
        fewer = faults[:place] + faults[place + 1 :]
        if fails(fewer):
            faults, place = fewer, 0
        else:
            place += 1
    return faults


def replay_command(files: tuple[Path, Path], options: SimulationOptions, failure: Failure) -> str:
    """The command that does it again."""
    said = ["melisma", "simulate", str(files[0]), "--fleet", str(files[1])]
    for name in ("scheme", "learners", "work", "deadline_s"):
        if (value := getattr(options, name)) is not None:
            said += [f"--{name.removesuffix('_s')}", str(value)]
    return shlex.join(
        [*said, "--seed", str(failure.seed), "--faults", format_faults(failure.faults)]
    )

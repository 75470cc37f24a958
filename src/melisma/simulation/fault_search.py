"""Many fault schedules, one after another; what breaks is made as short as it can be."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from melisma.errors import MelismaError
from melisma.runs.interruption import interruptible
from melisma.simulation.compute.compute import Timing
from melisma.simulation.driver import Driver
from melisma.simulation.faults import Fault, written
from melisma.simulation.invariants import checked
from melisma.simulation.scenario import Scene, with_faults
from melisma.simulation.simulation import Options


@dataclass(frozen=True)
class Failure:
    """A seed, the fewest faults that still break something, and what they break."""

    seed: int
    faults: tuple[Fault, ...]
    what: str


def soaked(scene_of: Callable[[int], Scene], seeds: range) -> Iterator[Failure | None]:
    """A schedule of faults for each seed; where it breaks something, the shortest that does."""
    with interruptible() as check:
        for seed in seeds:
            check()
            scene = with_faults(scene_of(seed), seed)
            yield _shortest(scene, seed) if broken(scene) else None


def broken(scene: Scene) -> str:
    """What goes wrong that must not, or nothing."""
    try:
        checked(lambda watch: Driver(scene, Timing(), watch).run())
    except MelismaError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever the machine raises is a finding
        return f"{type(error).__name__}: {error}"
    return ""


def _shortest(scene: Scene, seed: int) -> Failure:
    faults = tuple(shrunk(scene.faults, lambda some: bool(broken(replace(scene, faults=some)))))
    return Failure(seed, faults, broken(replace(scene, faults=faults)))


def shrunk(
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


def replay(files: tuple[Path, Path], options: Options, failure: Failure) -> str:
    """The command that does it again."""
    said = ["melisma", "simulate", str(files[0]), "--fleet", str(files[1])]
    for name in ("scheme", "learners", "work", "deadline_s"):
        if (value := getattr(options, name)) is not None:
            said += [f"--{name.removesuffix('_s')}", str(value)]
    return shlex.join([*said, "--seed", str(failure.seed), "--faults", written(failure.faults)])

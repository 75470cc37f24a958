"""Fault search: run random fault schedules, and shrink those that violate an invariant."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from melisma.errors import MelismaError
from melisma.runs.interruption import interruptible
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.faults import Fault, format_faults
from melisma.simulation.invariants.invariants import run_checked
from melisma.simulation.scenario import Scenario, with_random_faults
from melisma.simulation.simulation import SimulationOptions

AnyFault = TypeVar("AnyFault")


@dataclass(frozen=True)
class Failure:
    """A seed, the fewest faults that still violate an invariant, and the violation."""

    seed: int
    faults: tuple[Fault, ...]
    violation: str


def search_faults(
    make_scenario: Callable[[int], Scenario], seeds: range
) -> Iterator[Failure | None]:
    """Run a random fault schedule for each seed; yield its shrunk failure, or None."""
    with interruptible() as check:
        for seed in seeds:
            check()
            scenario = with_random_faults(make_scenario(seed), seed)
            yield _shrink_failure(scenario, seed) if find_violation(scenario) else None


def find_violation(scenario: Scenario) -> str:
    """Return the first violation of an invariant, or an empty string."""
    try:
        run_checked(lambda watch: Driver(scenario, TimingOnly(), watch).run())
    except MelismaError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - any exception of the machine is a violation
        return f"{type(error).__name__}: {error}"
    return ""


def _shrink_failure(scenario: Scenario, seed: int) -> Failure:
    faults = shrink(
        scenario.faults, lambda subset: bool(find_violation(replace(scenario, faults=subset)))
    )
    return Failure(seed, faults, find_violation(replace(scenario, faults=faults)))


def shrink(
    faults: tuple[AnyFault, ...], fails: Callable[[tuple[AnyFault, ...]], bool]
) -> tuple[AnyFault, ...]:
    """Return a subset of at least one fault that still fails, and of which none can be left out."""
    index = 0
    while index < len(faults):
        fewer = faults[:index] + faults[index + 1 :]
        if fewer and fails(fewer):
            faults, index = fewer, 0
        else:
            index += 1
    return faults


def replay_command(files: tuple[Path, Path], options: SimulationOptions, failure: Failure) -> str:
    """Return the command line that runs a failure again."""
    words = ["melisma", "simulate", str(files[0]), "--fleet", str(files[1])]
    for name in ("scheme", "learners", "work", "deadline_s", "total_s", "finish_by"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.removesuffix('_s').replace('_', '-')}", str(value)]
    faults = format_faults(failure.faults)
    return shlex.join([*words, "--seed", str(failure.seed), "--faults", faults])

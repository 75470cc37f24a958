"""Fault search: run random fault schedules, and shrink those that violate a law."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeVar

from melisma.errors import DataError, MelismaError
from melisma.runs.interruption import interruptible
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import HANGS, Driver
from melisma.simulation.faults import DAMAGE_KINDS, Fault, format_faults
from melisma.simulation.invariants.invariants import run_checked
from melisma.simulation.scenario import Scenario, with_mixed_faults
from melisma.simulation.simulation import SimulationOptions

AnyFault = TypeVar("AnyFault")
Law = Literal["safety", "liveness"]
MAX_STEPS = 5000
"""A run of a search that has more steps does not end."""
HAS_APSW = find_spec("apsw") is not None
"""Whether schedules have faults of the orchestrator's disk."""


@dataclass(frozen=True)
class Failure:
    """A seed, the fewest faults that still violate a law, and the violation.

    The law is `safety` (nothing is lost or counted twice, and damage is noticed) or `liveness` (the
    run finishes, once faults have stopped).
    """

    seed: int
    faults: tuple[Fault, ...]
    violation: str
    law: Law = "safety"


class LivenessError(MelismaError):
    """A run does not end."""


def search_faults(
    make_scenario: Callable[[int], Scenario], seeds: range
) -> Iterator[Failure | None]:
    """Run a random fault schedule for each seed; yield its shrunk failure, or None."""
    with interruptible() as check:
        for seed in seeds:
            check()
            scenario = with_mixed_faults(make_scenario(seed), seed, disk=HAS_APSW)
            yield _shrink_failure(scenario, seed) if find_violation(scenario) else None


def find_violation(scenario: Scenario) -> str:
    """Return the first violation of a law, or an empty string."""
    return _find_violation(scenario)[1]


def _find_violation(scenario: Scenario) -> tuple[Law, str]:
    try:
        run_checked(lambda watch: _run(scenario, watch))
    except LivenessError as error:
        return "liveness", str(error)
    except DataError as error:
        # A run with a damaged journal refuses to go on.
        is_damaged = any(fault.kind in DAMAGE_KINDS for fault in scenario.faults)
        return "safety", "" if is_damaged else str(error)
    except MelismaError as error:
        return ("liveness" if str(error) == HANGS else "safety"), str(error)
    except Exception as error:  # noqa: BLE001 - any exception of the machine is a violation
        return "safety", f"{type(error).__name__}: {error}"
    return "safety", ""


def _run(scenario: Scenario, watch: Callable[[Step], object]) -> object:
    steps = 0

    def count(step: Step) -> None:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise LivenessError(f"the run does not end: it has {MAX_STEPS} steps")
        watch(step)

    with closing(Driver(scenario, TimingOnly(), count)) as driver:
        return driver.run()


def _shrink_failure(scenario: Scenario, seed: int) -> Failure:
    faults = shrink(
        scenario.faults, lambda subset: bool(find_violation(replace(scenario, faults=subset)))
    )
    law, violation = _find_violation(replace(scenario, faults=faults))
    return Failure(seed, faults, violation, law)


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

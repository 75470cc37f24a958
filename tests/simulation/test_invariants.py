"""Each invariant is violated once by altered commands, and the violation is found."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from melisma.cycle import commands, events
from melisma.runs.trace import Step
from melisma.simulation import fault_search
from melisma.simulation.fault_search import find_violation, search_faults, shrink
from melisma.simulation.faults import Fault, format_faults
from melisma.simulation.invariants import InvariantError, Invariants, run_checked
from melisma.simulation.scenario import with_random_faults
from tests.simulation.scenarios import make_scenario, run_steps

FAULTS = "vanish 1 at 12"


def heavier(command: commands.Aggregate) -> commands.Aggregate:
    return replace(command, weights=command.weights * 1.5)


def twice(command: commands.Aggregate) -> commands.Aggregate:
    columns = ("learners", "attempts", "weights")
    return replace(command, **{name: np.tile(getattr(command, name), 2) for name in columns})


def one_missing(command: commands.Aggregate) -> commands.Aggregate:
    columns = ("learners", "attempts", "weights")
    return replace(command, **{name: getattr(command, name)[1:] for name in columns})


def dealt_again(command: commands.Dispatch) -> commands.Dispatch:
    values = command.shards.values.copy()
    values[-1] = values[0]
    return replace(command, shards=replace(command.shards, values=values))


def without(kind: type) -> Any:
    return lambda step: Step(step.event, [c for c in step.commands if type(c) is not kind])


def altered(kind: type, change: Any) -> Any:
    return lambda step: Step(
        step.event, [change(c) if type(c) is kind else c for c in step.commands]
    )


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (altered(commands.Aggregate, heavier), "weighs"),
        (altered(commands.Aggregate, twice), "counts twice"),
        (altered(commands.Aggregate, one_missing), "came does not count"),
        (altered(commands.Dispatch, dealt_again), "dealt again|a shard twice|to two learners"),
        (without(commands.Withdraw), "neither in nor dropped"),
        (without(commands.Aggregate), "never closed"),
        (altered(commands.Dispatch, lambda c: replace(c, tail_s=0.0)), "goes on at"),
        (without(commands.Finish), "without an end"),
        (altered(commands.Wake, lambda c: replace(c, reason="a lie")), "replays otherwise"),
    ],
)
def test_each_violation_is_found(alter: Any, message: str) -> None:
    steps = [alter(step) for step in run_steps(make_scenario(FAULTS, scheme="equal", cycles=4))]
    with pytest.raises(InvariantError, match=message):
        run_checked(lambda watch: [watch(step) for step in steps])


def test_time_that_goes_back_is_a_violation() -> None:
    invariants = Invariants()
    invariants.check(Step(events.TimeReached(at_s=5.0), []))
    with pytest.raises(InvariantError, match="time goes back"):
        invariants.check(Step(events.TimeReached(at_s=4.0), []))


def test_shrinking_keeps_only_the_faults_that_are_needed() -> None:
    faults = tuple(Fault("clock", (number,), by=1.1) for number in range(6))
    needed = {faults[1], faults[4]}
    assert set(shrink(faults, lambda subset: needed <= set(subset))) == needed


def test_a_failure_names_its_seed_and_its_shrunk_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_crash(scenario: Any) -> str:
        return "a crash" if any(fault.kind == "crash" for fault in scenario.faults) else ""

    monkeypatch.setattr(fault_search, "find_violation", find_crash)
    results = search_faults(lambda seed: make_scenario(seed=seed), range(20))
    failures = [failure for failure in results if failure]
    assert failures
    for failure in failures:
        assert len(failure.faults) == 1
        assert format_faults(failure.faults).startswith("crash")
        assert set(failure.faults) <= set(with_random_faults(make_scenario(), failure.seed).faults)


SETTINGS: dict[str, dict[str, Any]] = {
    "dab": {},
    "dab, federated": {"mode": "federated", "shard_samples": 40},
    "equal": {"scheme": "equal"},
    "proportional": {"scheme": "proportional"},
    "synchronous": {"scheme": "synchronous", "passes": None},
    "staleness": {"scheme": "staleness", "passes": None, "mode": "federated", "shard_samples": 40},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_random_faults_violate_no_invariant(name: str) -> None:
    for seed in range(50):
        scenario = with_random_faults(make_scenario(seed=seed, cycles=4, **SETTINGS[name]), seed)
        assert not find_violation(scenario), (
            f"seed {seed}: {find_violation(scenario)}: {format_faults(scenario.faults)}"
        )

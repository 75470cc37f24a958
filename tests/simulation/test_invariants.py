"""What must hold is checked: each law is broken once by a machine that is wrong, and noticed."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed

from melisma.cycle import commands, events
from melisma.runs.trace import Step
from melisma.simulation import fault_search
from melisma.simulation.fault_search import find_violation, search_faults, shrink
from melisma.simulation.faults import Fault, format_faults
from melisma.simulation.invariants import InvariantError, Invariants, run_checked
from melisma.simulation.scenario import with_random_faults
from tests.simulation.staging import scene, steps

FAULTS = "vanish 1 at 12"


def heavier(command: commands.Aggregate) -> commands.Aggregate:
    return changed(command, weights=command.weights * 1.5)


def twice(command: commands.Aggregate) -> commands.Aggregate:
    both = {
        name: np.tile(getattr(command, name), 2) for name in ("learners", "attempts", "weights")
    }
    return changed(command, **both)


def one_missing(command: commands.Aggregate) -> commands.Aggregate:
    some = {name: getattr(command, name)[1:] for name in ("learners", "attempts", "weights")}
    return changed(command, **some)


def dealt_again(command: commands.Dispatch) -> commands.Dispatch:
    flat = command.shards.values.copy()
    flat[-1] = flat[0]
    return changed(command, shards=changed(command.shards, flat=flat))


def without(kind: type) -> Any:
    return lambda step: Step(step.event, [c for c in step.commands if type(c) is not kind])


def with_each(kind: type, change: Any) -> Any:
    return lambda step: Step(
        step.event, [change(c) if type(c) is kind else c for c in step.commands]
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (with_each(commands.Aggregate, heavier), "weighs"),
        (with_each(commands.Aggregate, twice), "counts twice"),
        (with_each(commands.Aggregate, one_missing), "came does not count"),
        (with_each(commands.Dispatch, dealt_again), "dealt again|a shard twice|to two learners"),
        (without(commands.Withdraw), "neither in nor dropped"),
        (without(commands.Aggregate), "never closed"),
        (with_each(commands.Dispatch, lambda c: changed(c, tail_s=0.0)), "goes on at"),
        (without(commands.Finish), "without an end"),
        (with_each(commands.Wake, lambda c: changed(c, reason="a lie")), "replays otherwise"),
    ],
)
def test_what_is_broken_is_noticed(wrong: Any, says: str) -> None:
    told = [wrong(step) for step in steps(scene(FAULTS, scheme="equal", cycles=4))]
    with pytest.raises(InvariantError, match=says):
        run_checked(lambda watch: [watch(step) for step in told])


def test_time_that_goes_back_is_noticed() -> None:
    books = Invariants()
    books.check(Step(events.TimeReached(at_s=5.0), []))
    with pytest.raises(InvariantError, match="time goes back"):
        books.check(Step(events.TimeReached(at_s=4.0), []))


def test_a_failing_schedule_is_made_as_short_as_it_can_be() -> None:
    faults = tuple(Fault("clock", (number,), by=1.1) for number in range(6))
    needed = {faults[1], faults[4]}
    assert set(shrink(faults, lambda some: needed <= set(some))) == needed


def test_a_schedule_that_breaks_something_is_told_with_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(one: Any) -> str:
        return "a crash" if any(fault.kind == "crash" for fault in one.faults) else ""

    monkeypatch.setattr(fault_search, "find_violation", breaks)
    found = [
        failure for failure in search_faults(lambda seed: scene(seed=seed), range(20)) if failure
    ]
    assert found
    for failure in found:
        assert len(failure.faults) == 1
        assert format_faults(failure.faults).startswith("crash")
        assert set(failure.faults) <= set(with_random_faults(scene(), failure.seed).faults)


SCENES: dict[str, dict[str, Any]] = {
    "dab": {},
    "dab, federated": {"mode": "federated", "shard_samples": 40},
    "equal": {"scheme": "equal"},
    "proportional": {"scheme": "proportional"},
    "synchronous": {"scheme": "synchronous", "passes": None},
    "staleness": {"scheme": "staleness", "passes": None, "mode": "federated", "shard_samples": 40},
}


@pytest.mark.parametrize("name", SCENES)
def test_no_schedule_of_faults_breaks_what_must_hold(name: str) -> None:
    for seed in range(50):
        one = with_random_faults(scene(seed=seed, cycles=4, **SCENES[name]), seed)
        assert not find_violation(one), (
            f"seed {seed}: {find_violation(one)}: {format_faults(one.faults)}"
        )

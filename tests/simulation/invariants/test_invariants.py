"""Each invariant is violated once by altered commands, and the violation is found."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from melisma.cycle import commands, events
from melisma.cycle.ragged import RaggedArray
from melisma.runs.trace import Step
from melisma.simulation.invariants.invariants import Invariants, run_checked
from melisma.simulation.invariants.violations import InvariantError
from melisma.testing import ScriptedMachine
from melisma.testing import make_task as make_scripted_task
from tests.simulation.scenarios import make_scenario, run_steps

FAULTS = "partition 1 at 12 for 100"


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
        (altered(commands.Aggregate, heavier), "has weight"),
        (altered(commands.Aggregate, twice), "counts twice"),
        (altered(commands.Aggregate, one_missing), "arrived does not count"),
        (altered(commands.Dispatch, dealt_again), "both train shards"),
        (without(commands.Withdraw), "neither in nor dropped"),
        (without(commands.Aggregate), "never closed"),
        (altered(commands.Dispatch, lambda c: replace(c, tail_s=0.0)), "is still open at"),
        (without(commands.Finish), "without Finish"),
        (altered(commands.Wake, lambda c: replace(c, reason="a lie")), "replays otherwise"),
    ],
)
def test_each_violation_is_found(alter: Any, message: str) -> None:
    steps = [alter(step) for step in run_steps(make_scenario(FAULTS, scheme="equal", cycles=4))]
    with pytest.raises(InvariantError, match=message):
        run_checked(lambda watch: [watch(step) for step in steps])


RULES: dict[str, Any] = {"extension": True, "late": "carry", "quorum": 0.8}


def other_shards(command: commands.Extend) -> commands.Extend:
    values = (command.shards.values + 1) % 200
    return replace(command, shards=replace(command.shards, values=values))


def more_shards(command: commands.Extend) -> commands.Extend:
    repeated = RaggedArray(command.shards.counts * 2, np.tile(command.shards.values, 2))
    return replace(command, shards=repeated)


def without_discount(command: commands.Aggregate) -> commands.Aggregate:
    late = replace(command.late, weights=command.late.weights * 2)
    return replace(command, late=late)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (altered(commands.Extend, other_shards), "a shard again|both train|already dealt"),
        (altered(commands.Extend, more_shards), "more than it requested|a shard twice"),
        (altered(commands.Aggregate, without_discount), "has late weight"),
        (altered(commands.Extend, lambda c: replace(c, attempts=c.attempts - 1)), "is not new"),
    ],
)
def test_each_violation_within_a_cycle_is_found(alter: Any, message: str) -> None:
    scenario = make_scenario("partition 0 at 15 for 8", cycles=4, sizes={"samples": 20000}, **RULES)
    plain = run_steps(scenario)
    run_checked(lambda watch: [watch(step) for step in plain])
    steps = [alter(step) for step in plain]
    with pytest.raises(InvariantError, match=message):
        run_checked(lambda watch: [watch(step) for step in steps])


def check_all(steps: list[Step]) -> None:
    run_checked(lambda watch: [watch(step) for step in steps])


def test_shards_that_are_not_handed_on_are_a_violation() -> None:
    scenario = make_scenario("crash 1 at 3", cycles=1, sizes={"samples": 200_000}, **RULES)
    plain = run_steps(scenario)
    issued = [each for step in plain for each in step.commands]
    given = [each for each in issued if isinstance(each, commands.Dispatch | commands.Extend)]
    assert any(each.handed_on.size for each in given if isinstance(each, commands.Extend))
    dealt = np.concatenate([each.shards.values for each in given])
    unused = np.setdiff1d(np.arange(2000), dealt)

    def from_the_deck(command: commands.Extend) -> commands.Extend:
        """Answer with shards that are never dealt instead of those to hand on."""
        if not command.handed_on.size:
            return command
        values = unused[: command.shards.values.size]
        return replace(command, handed_on=unused[:0], shards=replace(command.shards, values=values))

    check_all(plain)
    for alter, message in (
        (without(commands.Extend), "requested shards, and .* are not handed on"),
        (altered(commands.Extend, from_the_deck), "gets other shards before .* are handed on"),
    ):
        with pytest.raises(InvariantError, match=message):
            check_all([alter(step) for step in plain])


def steps_of_late_joiner(bounds: dict[str, int], late: int) -> list[Step]:
    """Return the steps of a cycle that a learner joins with `late` shards."""
    script = ScriptedMachine(make_scripted_task(**RULES), [*bounds, "late"])
    script.join(0.0)
    script.report_bounds(0.0, bounds)
    script.reach(2.0)
    script.report_bounds(3.0, {"late": late})
    return script.trace


def test_a_late_joiner_with_shards_of_another_learner_is_a_violation() -> None:
    """Unless all shards are with learners, so that only copies are left."""
    steps = steps_of_late_joiner({"a": 6, "b": 4}, 5)
    (first, late) = (c for step in steps for c in step.commands if type(c) is commands.Dispatch)
    taken = first.shards.values[: late.shards.values.size]

    def copied(command: commands.Dispatch) -> commands.Dispatch:
        if command is first:
            return command
        return replace(command, shards=replace(command.shards, values=taken))

    def check(steps: list[Step]) -> None:
        invariants = Invariants()
        for step in steps:
            invariants.check(step)

    check(steps)
    with pytest.raises(InvariantError, match="both train shards"):
        check([altered(commands.Dispatch, copied)(step) for step in steps])
    full = steps_of_late_joiner({"a": 10, "b": 10}, 5)
    first, late = (c for step in full for c in step.commands if type(c) is commands.Dispatch)
    assert np.intersect1d(first.shards.values, late.shards.values).size
    check(full)


def test_time_that_goes_back_is_a_violation() -> None:
    invariants = Invariants()
    invariants.check(Step(events.TimeReached(at_s=5.0), []))
    with pytest.raises(InvariantError, match="time goes back"):
        invariants.check(Step(events.TimeReached(at_s=4.0), []))

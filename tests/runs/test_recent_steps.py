"""The part of a long run that its displays need: they show the same as of all steps."""

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.runs import recent_steps as module
from melisma.runs.progress import RunProgress
from melisma.runs.recent_steps import recent_steps
from melisma.runs.trace import Step, encode_step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.scenario import Scenario, with_mixed_faults
from tests.simulation.scenarios import make_scenario


def with_faults(seed: int, cycles: int) -> Scenario:
    """Return a scenario in which updates are late and learners leave."""
    return with_mixed_faults(make_scenario(cycles=cycles, seed=seed), seed, disk=False)


def steps_of_run(scenario: Scenario) -> list[Step]:
    steps: list[Step] = []
    driver = Driver(scenario, TimingOnly(), steps.append)
    try:
        driver.run()
    finally:
        driver.close()
    return steps


def follow(steps: list[Step]) -> RunProgress:
    progress = RunProgress()
    for step in steps:
        progress.apply(step)
    return progress


@pytest.mark.parametrize("seed", range(8))
def test_displays_show_the_same_as_of_all_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CYCLES", 5)
    steps = steps_of_run(with_faults(seed, cycles=15))
    whole = follow(steps)
    for cut in np.linspace(1, len(steps), 7).astype(int).tolist():
        cycle = max((each.number for each in follow(steps[:cut]).report().cycles), default=0)
        recent = [*recent_steps(map(encode_step, steps[:cut]), cycle)]
        assert len(recent) <= cut
        progress = follow([*recent, *steps[cut:]])
        assert progress.outcome == whole.outcome
        assert progress.names.tolist() == whole.names.tolist()
        assert progress.evaluated_number == whole.evaluated_number
        one, other = whole.current_cycle, progress.current_cycle
        assert one is not None
        assert other is not None
        assert (one.number, one.ending, one.counts) == (other.number, other.ending, other.counts)
        shown = progress.report().as_dict()["cycles"]
        assert repr(shown[1:]) == repr(whole.report().as_dict()["cycles"][-len(shown) + 1 :])


def test_all_steps_of_a_short_run_are_followed() -> None:
    steps = steps_of_run(with_faults(1, cycles=3))
    lines = [*map(encode_step, steps)]
    assert [encode_step(step) for step in recent_steps(lines, 3)] == lines


def test_of_earlier_cycles_only_lasting_events_are_followed() -> None:
    steps = steps_of_run(make_scenario(cycles=2 * module.CYCLES))
    recent = [*recent_steps(map(encode_step, steps), 2 * module.CYCLES)]
    assert len(recent) < 0.6 * len(steps)
    first = recent[0]
    assert isinstance(first.event, events.TaskSubmitted)
    assert first.commands == []
    assert len(follow(recent).report().cycles) == module.CYCLES


def test_of_earlier_cycles_only_lasting_events_are_decoded() -> None:
    """A run of a month is shown in seconds."""
    lines = [*map(encode_step, steps_of_run(make_scenario(cycles=2 * module.CYCLES)))]
    first_recent = next(
        number for number, line in enumerate(lines) if b'"cycle":%d,' % (module.CYCLES + 1) in line
    )
    torn = [
        line if number >= first_recent or line.startswith(module.LASTING_LINE) else b"not JSON\n"
        for number, line in enumerate(lines)
    ]
    assert len({*torn}) < len({*lines})
    expected = [*map(encode_step, recent_steps(lines, 2 * module.CYCLES))]
    assert [*map(encode_step, recent_steps(torn, 2 * module.CYCLES))] == expected


def test_texts_of_a_run_are_not_taken_for_the_beginning_of_a_cycle() -> None:
    text = '"command":"Dispatch","cycle":99'
    left = events.LearnersLeft(at_s=0.0, learners=np.zeros(0, np.int64), reason=text)
    (step,) = recent_steps([encode_step(Step(left, []))], 60)
    assert step.commands == []
    reached = Step(events.TimeReached(at_s=0.0), [commands.Wake(reason=text, at_s=1.0)])
    assert [*recent_steps([encode_step(reached)], 60)] == []

"""The part of a long run that its displays need: they show the same as of all steps."""

import numpy as np
import pytest

from melisma.cycle import events
from melisma.runs import recent_steps as module
from melisma.runs.progress import RunProgress
from melisma.runs.recent_steps import recent_steps
from melisma.runs.trace import Step
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
        recent = [*recent_steps(steps[:cut], cycle)]
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
    assert [*recent_steps(steps, 3)] == steps


def test_of_earlier_cycles_only_lasting_events_are_followed() -> None:
    steps = steps_of_run(make_scenario(cycles=2 * module.CYCLES))
    recent = [*recent_steps(steps, 2 * module.CYCLES)]
    assert len(recent) < 0.6 * len(steps)
    first = recent[0]
    assert isinstance(first.event, events.TaskSubmitted)
    assert first.commands == []
    assert len(follow(recent).report().cycles) == module.CYCLES

"""From files and options to a report."""

from pathlib import Path
from typing import Any

import pytest

from melisma.cycle import events
from melisma.errors import SettingError
from melisma.runs.report import Report
from melisma.runs.trace import Step, read_trace
from melisma.simulation import SimulationOptions, simulate
from tests.simulation.staging import LEARNERS, fleet, task

TIMING = SimulationOptions(work="timing")


def test_ctrl_c_ends_a_run_and_keeps_what_there_is(tmp_path: Path) -> None:
    pressed: list[Step] = []

    def press(step: Step) -> None:
        if isinstance(step.event, events.Evaluated) and not pressed:
            pressed.append(step)
            raise KeyboardInterrupt

    report = simulate(task(), fleet(), TIMING, folder=tmp_path / "kept", watch=press)
    assert (report.outcome, report.reason) == ("cancelled", "interrupted")
    assert report.picture_path is not None
    assert report.picture_path.is_file()
    assert report.trace_path is not None
    kept = Report.of(read_trace(report.trace_path))
    assert (kept.outcome, len(kept.over)) == ("cancelled", 1)


def test_options_stand_instead_of_what_the_task_says() -> None:
    asked = SimulationOptions(scheme="equal", seed=9, work="timing", deadline_s=33.0)
    found = simulate(task(), fleet(), asked).task
    assert (found.scheme, found.seed, found.deadline_s) == ("equal", 9, 33.0)


def test_a_number_draws_the_same_faults_as_it_does_in_words() -> None:
    one, other = (
        simulate(task(), fleet(), SimulationOptions(work="timing", faults=said))
        for said in (7, "7")
    )
    assert one.as_dict() == other.as_dict()


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"work": "play"}, "work is 'play'; expected one of timing, train, batched"),
        ({"seed": -1}, "seed is -1"),
        ({"deadline_s": 0.0}, "deadline_s is 0"),
        ({"learners": 7}, "the fleet of a file larger or smaller"),
    ],
)
def test_options_that_cannot_be_are_refused(said: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        simulate(task(), fleet(), SimulationOptions(**({"work": "timing"} | said)))


def test_a_fleet_of_which_nobody_is_there_at_first_is_refused() -> None:
    late = [learner | {"availability": {"joins_s": 5.0}} for learner in LEARNERS]
    with pytest.raises(SettingError, match="nobody of the fleet is there when the run begins"):
        simulate(task(), fleet(late), TIMING)

"""Greedy learners in simulated runs with real training: found and left out, and no honest one."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from melisma.cycle import commands, events
from melisma.errors import SettingError
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.learning.given_objects import GivenObjects
from melisma.learning.verification.reexecution import Verdict
from melisma.runs.progress import FAILED_CHECK
from melisma.runs.recovery import RecoveredRun
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.simulation import SimulationOptions, prepare, run

FLEET = {
    "group": [{"name": "d", "count": 5, "samples_per_s": 100.0, "bandwidth_bps": 50e6}],
}
TASK: dict[str, Any] = {
    "name": "points",
    "scheme": "equal",
    "passes": 1,
    "deadline_s": 4.0,
    "cycles": 3,
    "shard_samples": 20,
    "batch": 10,
    "optimizer": {"lr": 0.2},
    "simulation": {"work": "train"},
    "verify": "audit",
}
GREEDY = 1


class Classifier(torch.nn.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def points(count: int = 1000) -> Any:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, count)
    samples = (rng.normal(size=(count, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    return (samples[:800], labels[:800]), (samples[800:], labels[800:])


def recorded(faults: str = "", **settings: Any) -> tuple[Report, list[Step]]:
    """Return the report of a run, and its steps."""
    task = msgspec.convert(TASK | settings, Task)
    fleet = build_fleet(msgspec.convert(FLEET, FleetTable))
    options, steps = SimulationOptions(faults=faults), list[Step]()
    prepared = prepare(task, fleet, options, GivenObjects(Classifier, points()))
    return run(prepared, watch=steps.append).require_success(), steps


def simulated(faults: str = "", **settings: Any) -> Report:
    return recorded(faults, **settings)[0]


def checks(steps: list[Step]) -> dict[int, list[Verdict]]:
    """Return the verdicts on each learner, in order."""
    found: dict[int, list[Verdict]] = {}
    for step in steps:
        if isinstance(step.event, events.Aggregated):
            verified = step.event.verified
            for learner, verdict in zip(verified.learners, verified.verdicts, strict=True):
                found.setdefault(int(learner), []).append(Verdict(int(verdict)))
    return found


@pytest.mark.parametrize("greed", ["noise", "copy"])
def test_learners_that_do_not_train_are_always_found_and_others_never(greed: str) -> None:
    report, steps = recorded(f"greedy {greed} {GREEDY}")
    found = checks(steps)
    assert set(found) == set(range(5))
    for learner, verdicts in found.items():
        assert set(verdicts) == {Verdict.WRONG if learner == GREEDY else Verdict.RIGHT}
    assert report.failed_checks == {report.names[GREEDY]: 3}
    for cycle in report.cycles:
        (greedy,) = [each for each in cycle.assignments if each.learner == GREEDY]
        assert (greedy.weight, greedy.reason) == (0, FAILED_CHECK)


@pytest.mark.parametrize("greed", ["speed", "ask", "less"])
def test_learners_that_train_a_part_are_found_in_the_rest(greed: str) -> None:
    _, steps = recorded(f"greedy {greed} {GREEDY}", cycles=6)
    found = checks(steps)
    assert Verdict.WRONG in found.pop(GREEDY)
    assert set().union(*found.values()) == {Verdict.RIGHT}


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_the_model_is_that_of_the_honest_learners(aggregation: str) -> None:
    crowd = simulated(f"greedy noise {GREEDY}", aggregation=aggregation)
    assert crowd.accuracy > 0.6
    assert set(crowd.failed_checks) == {crowd.names[GREEDY]}


def test_honest_runs_have_the_same_figures_with_and_without_checks() -> None:
    checked, unchecked = simulated(), simulated(verify="off")
    assert checked.accuracy == unchecked.accuracy
    assert [c.loss for c in checked.cycles] == [c.loss for c in unchecked.cycles]
    assert not unchecked.failed_checks
    assert all(cycle.checked == 5 for cycle in checked.cycles)
    assert not any(cycle.checked for cycle in unchecked.cycles)


def test_greedy_learners_count_in_full_without_checks() -> None:
    report, steps = recorded(f"greedy noise {GREEDY}", verify="off")
    assert not report.failed_checks
    assert all(each.weight > 0 for each in report.cycles[0].assignments)
    assert not [c for step in steps for c in step.commands if isinstance(c, commands.Suspect)]


def test_a_run_in_which_nobody_trains_fails_with_the_reason() -> None:
    with pytest.raises(Exception, match="no update of 3 cycles in a row was verified"):
        simulated("greedy noise all", cycles=5)


@pytest.mark.parametrize("step", [9, 14, 18, 22, 27])
def test_a_crash_of_the_orchestrator_accuses_nobody_and_keeps_trust(step: int) -> None:
    faults = f"crash orchestrator at step {step} for 0.3; greedy noise {GREEDY}"
    _, steps = recorded(faults, cycles=4)
    found = checks(steps)
    assert set(found.pop(GREEDY)) == {Verdict.WRONG}
    assert set().union(*found.values()) == {Verdict.RIGHT}
    learners = RecoveredRun().replay(steps).machine.state.learners
    assert not learners.unanswered.any()
    assert learners.right.tolist() == [0 if n == GREEDY else 4 for n in range(5)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mode": "federated"}, "needs the training data"),
        ({"optimizer": {"lr": 0.1, "keep": True}}, "cannot repeat a training with optimizer.keep"),
        ({"prox": 0.1}, "cannot repeat a training with prox"),
    ],
)
def test_verify_is_refused_where_it_cannot_work(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises((msgspec.ValidationError, SettingError), match=problem):
        msgspec.convert({"model": "m", "data": "d"} | TASK | settings, Task)

"""Samples: who takes part in a cycle, and how long learners are left out."""

from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands
from melisma.cycle.sampling import draw_learners, sample_size
from melisma.cycle.state import CycleState
from melisma.errors import SettingError
from melisma.runs.report import Report
from melisma.runs.trace import Step, encode_step
from melisma.testing import FakeDevice, ScriptedMachine, VirtualRun, commands_in, make_task

NAMES = ("a", "b", "c", "d", "e", "f")
FLEET = [FakeDevice(0.1 * (1 + number)) for number in range(6)]


def run_sampled(**settings: Any) -> list[Step]:
    return VirtualRun(
        make_task(**({"sample": 2, "cycles": 6, "passes": 2} | settings)), FLEET
    ).run()


def drawn_by_cycle(trace: list[Step]) -> list[list[int]]:
    return [command.drawn.tolist() for command in commands_in(trace, commands.Dispatch)]


@pytest.mark.parametrize(
    ("sample", "learners", "count"),
    [(None, 7, 7), (3, 7, 3), (9, 7, 7), (0.1, 7, 1), (0.07, 100, 7), (1.0, 7, 7), (0.5, 7, 4)],
)
def test_a_sample_is_a_number_or_a_fraction_of_the_learners(
    sample: float | None, learners: int, count: int
) -> None:
    assert sample_size(sample, learners) == count


@pytest.mark.parametrize("scheme", ["dab", "equal", "proportional", "staleness"])
def test_only_learners_that_were_drawn_are_asked_and_get_work(scheme: str) -> None:
    passes = None if scheme == "staleness" else 2
    trace = run_sampled(scheme=scheme, passes=passes)
    drawn = drawn_by_cycle(trace)
    assert len(drawn) == 6
    assert all(len(learners) == 2 for learners in drawn)
    for dispatch in commands_in(trace, commands.Dispatch):
        assert set(dispatch.learners.tolist()) <= set(drawn[dispatch.cycle - 1])
    for request in commands_in(trace, commands.AskBound):
        assert request.learners.tolist() == drawn[request.cycle - 1]
    everyone = {each for cycle in drawn for each in cycle}
    for benchmark in commands_in(trace, commands.Benchmark):
        assert set(benchmark.learners.tolist()) <= everyone


def test_a_learner_that_was_left_out_longer_is_more_likely() -> None:
    drawn = drawn_by_cycle(run_sampled(cycles=30, sample=1))
    gaps = [np.diff([c for c, each in enumerate(drawn) if n in each]) for n in range(len(FLEET))]
    # Without weights, a gap of more than 15 cycles has a probability of 0.065.
    assert max(int(gap.max()) for gap in gaps) <= 15
    assert {learner for each in drawn[:15] for learner in each} == set(range(len(FLEET)))


def test_the_same_seed_draws_the_same_learners_and_another_seed_others() -> None:
    first, again = run_sampled(seed=3), run_sampled(seed=3)
    assert [encode_step(step) for step in first] == [encode_step(step) for step in again]
    assert drawn_by_cycle(run_sampled(seed=4)) != drawn_by_cycle(first)


def test_the_draw_of_a_learner_does_not_depend_on_the_others() -> None:
    state = CycleState.from_submission(_submission(1000))
    state.learners.present[:] = True
    draw_learners(state)
    first = np.flatnonzero(state.learners.drawn)
    state.learners.present[np.setdiff1d(np.arange(1000), first)[::2]] = False
    state.learners.last_drawn[:] = -1
    draw_learners(state)
    # The same waits in the same order: of those that are left, the first ones were drawn before.
    assert set(first) <= set(np.flatnonzero(state.learners.drawn))


def _submission(learners: int) -> Any:
    machine = ScriptedMachine(make_task(sample=100), [str(n) for n in range(learners)])
    return machine.trace[0].event


def test_a_learner_that_joins_within_a_cycle_waits_for_the_next_draw() -> None:
    machine = ScriptedMachine(make_task(scheme="proportional", passes=1, sample=2), NAMES[:3])
    (benchmark, *_) = machine.join(0.0)
    assert isinstance(benchmark, commands.Benchmark)
    asked = benchmark.learners.tolist()
    other = NAMES[next(number for number in range(3) if number not in asked)]
    machine.leave(0.1, other)
    assert not commands_in(machine.trace[-1:], commands.Benchmark)
    assert not [c for c in machine.join(0.2, other) if isinstance(c, commands.Benchmark)]


def test_a_draw_whose_learners_have_all_left_is_repeated() -> None:
    machine = ScriptedMachine(make_task(scheme="dab", passes=1, sample=1), NAMES[:3])
    (request, *_) = machine.join(0.0)
    assert isinstance(request, commands.AskBound)
    (first,) = request.learners.tolist()
    (again, *_) = machine.leave(0.1, NAMES[first])
    assert isinstance(again, commands.AskBound)
    (second,) = again.learners.tolist()
    assert second != first


def test_a_first_cycle_whose_learners_are_too_slow_is_empty_and_does_not_end_the_run() -> None:
    machine = ScriptedMachine(make_task(scheme="dab", passes=1, sample=1), NAMES[:3])
    (request, *_) = machine.join(0.0)
    assert isinstance(request, commands.AskBound)
    (first,) = request.learners.tolist()
    issued = machine.report_bounds(0.1, {NAMES[first]: 0})
    assert [type(command) for command in issued] == [commands.Aggregate]
    assert "no learner asked for a shard" in issued[0].reason


def test_learners_that_were_not_drawn_are_not_missing_in_the_report() -> None:
    report = Report.from_trace(run_sampled())
    assert report.outcome == "finished"
    assert all(not len(cycle.unassigned) for cycle in report.cycles)
    assert all(len(cycle.assignments) == 2 for cycle in report.cycles)


def test_shards_suffice_if_they_suffice_for_the_learners_of_a_cycle() -> None:
    task = make_task(scheme="equal", passes=1, min_shards=5, sample=1)
    ScriptedMachine(task, NAMES)
    with pytest.raises(SettingError, match="6 learners with min_shards = 50"):
        ScriptedMachine(make_task(scheme="equal", passes=1, min_shards=50, sample=6), NAMES)

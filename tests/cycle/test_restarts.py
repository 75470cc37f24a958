"""What the machine does in each stage when the orchestrator, or a learner, restarts."""

from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.commands import AnyCommand
from melisma.cycle.machine import CycleMachine
from melisma.cycle.restarts import MAX_RECONNECT_S
from melisma.cycle.rounds import MAX_TAIL_FRACTION
from melisma.cycle.state import Stage
from melisma.fleet.task import TaskSizes
from melisma.testing import ScriptedMachine, make_task

RULES: dict[str, Any] = {"extension": True, "overlap": True, "quorum": 0.8, "late": "carry"}
NAMES = ["pi", "laptop", "jetson"]
DEADLINE_S = 10.0


def script(scheme: str = "equal", **settings: Any) -> ScriptedMachine:
    rules = {**RULES, "cycles": 2, "sizes": TaskSizes(samples=80), **settings}
    started = ScriptedMachine(make_task(scheme=scheme, passes=1, **rules), NAMES)
    started.join(0.0)
    return started


def restart(machine: ScriptedMachine, at_s: float, downtime_s: float = 2.0) -> list[AnyCommand]:
    return machine.send(events.OrchestratorRestarted(at_s=at_s, downtime_s=downtime_s))


def resume(machine: ScriptedMachine, at_s: float, *names: str) -> list[AnyCommand]:
    learners = np.array([NAMES.index(name) for name in names], np.int64)
    return machine.send(events.LearnersResumed(at_s=at_s, learners=learners))


def only(issued: list[AnyCommand], kind: type[commands.Command]) -> Any:
    (command,) = (each for each in issued if isinstance(each, kind))
    return command


def kinds(issued: list[AnyCommand]) -> list[str]:
    return [type(each).__name__ for each in issued]


def test_while_learners_join_a_restart_changes_nothing() -> None:
    machine = ScriptedMachine(make_task(scheme="equal", passes=1), NAMES)
    machine.join(0.0, "pi")
    assert restart(machine, 5.0) == []
    assert kinds(machine.join(6.0, "laptop", "jetson"))[0] == "Dispatch"


def test_bounds_are_asked_again_and_those_that_came_before_are_kept() -> None:
    machine = script("dab", extension=False)
    machine.report_bounds(1.0, {"pi": 2})
    issued = restart(machine, 5.0)
    assert kinds(issued) == ["AskBound", "Wake"]
    assert only(issued, commands.AskBound).learners.tolist() == [0, 1, 2]
    # Answers to either request count: nobody has to answer twice.
    dispatched = only(machine.report_bounds(6.0, {"laptop": 3, "jetson": 2}), commands.Dispatch)
    assert dispatched.shards.counts.tolist() == [2, 3, 2]


def test_an_answer_to_the_request_before_the_crash_is_no_second_assignment() -> None:
    machine = script("dab")
    machine.report_bounds(1.0, {"pi": 2, "laptop": 2, "jetson": 2})
    restart(machine, 5.0)
    assert machine.machine.state.stage is Stage.TRAINING
    assert machine.report_bounds(5.5, {"pi": 2}) == []


def test_only_costs_that_are_missing_are_measured_again() -> None:
    machine = script("proportional", extension=False)
    machine.report_costs(1.0, "pi", 0.5)
    benchmark = only(restart(machine, 5.0), commands.Benchmark)
    assert benchmark.learners.tolist() == [1, 2]


def test_a_search_for_a_deadline_goes_on_where_it_was() -> None:
    machine = script("dab", extension=False)
    none = dict.fromkeys(NAMES, 0)
    asked = only(machine.report_bounds(1.0, none), commands.AskBound)
    assert machine.machine.state.stage is Stage.PROBING
    again = only(restart(machine, 5.0), commands.AskBound)
    assert again.deadline_s == asked.deadline_s


def test_a_learner_is_awaited_as_long_again_as_the_orchestrator_was_up() -> None:
    machine = ScriptedMachine(make_task(scheme="dab", passes=1, **RULES), NAMES, absence_s=60.0)
    machine.join(0.0)
    machine.leave(1.0, *NAMES)
    assert machine.machine.state.stage is Stage.WAITING
    assert only(restart(machine, 50.0, 40.0), commands.Wake).at_s == 110.0
    assert machine.reach(61.0) == []
    assert only(machine.reach(110.0), commands.Finish).outcome == "failed"


def test_each_assignment_and_each_extension_is_sent_again_without_shards_taken_back() -> None:
    machine = script("dab", sizes=TaskSizes(samples=160))
    shards = only(
        machine.report_bounds(1.0, {"pi": 3, "laptop": 3, "jetson": 3}), commands.Dispatch
    ).shards
    machine.request(2.0, {"laptop": 2})
    machine.release(3.0, {"pi": shards[0][-1:].tolist()})
    issued = [each for each in restart(machine, 4.0) if isinstance(each, commands.Resend)]
    sent = {
        (learner, attempt): row.tolist()
        for each in issued
        for learner, attempt, row in zip(
            each.learners.tolist(), each.attempts.tolist(), each.shards, strict=True
        )
    }
    assert sent[0, 1] == shards[0][:-1].tolist()
    assert sent[1, 1] == shards[1].tolist()
    assert len(sent[1, 2]) == 2
    assert all(each.seconds_left == pytest.approx(1.0 + DEADLINE_S - 4.0) for each in issued)


def test_work_that_was_received_or_lost_is_not_sent_again() -> None:
    machine = script()
    machine.update(4.0, {"pi": 30})
    machine.leave(4.5, "laptop")
    resent = only(restart(machine, 5.0), commands.Resend)
    assert resent.learners.tolist() == [2]


def test_an_assignment_has_no_time_left_after_its_deadline() -> None:
    machine = script()
    assert only(restart(machine, 25.0, 20.0), commands.Resend).seconds_left == 0.0


@pytest.mark.parametrize("downtime_s", [3.0, 100.0])
def test_no_cycle_closes_by_its_quorum_before_learners_could_call_again(downtime_s: float) -> None:
    machine = script(quorum=0.5)
    machine.update(8.0, {"pi": 30, "laptop": 30})
    at_s = 9.0 + downtime_s
    wake = only(restart(machine, at_s, downtime_s), commands.Wake)
    calls_s = at_s + min(downtime_s, MAX_RECONNECT_S)
    assert wake.at_s == calls_s
    assert machine.reach(calls_s - 0.1) == []
    assert kinds(machine.reach(calls_s))[0] == "Aggregate"


def test_a_restart_long_before_the_deadline_closes_no_cycle_early() -> None:
    machine = script(quorum=0.5)
    machine.update(1.0, {"pi": 30})
    assert only(restart(machine, 3.0, 1.0), commands.Wake).at_s == DEADLINE_S
    assert "Aggregate" not in kinds(machine.update(5.0, {"laptop": 30}))
    assert kinds(machine.reach(DEADLINE_S))[0] == "Aggregate"


@pytest.mark.parametrize("quorum", [0.8, 1.0])
def test_a_cycle_without_its_updates_ends_at_last(quorum: float) -> None:
    machine = script(quorum=quorum)
    issued = restart(machine, 9.0, 2.0)
    latest_s = 9.0 + 2.0 + MAX_TAIL_FRACTION * DEADLINE_S
    while "Aggregate" not in kinds(issued):
        at_s = only(issued, commands.Wake).at_s
        assert at_s <= latest_s
        issued = machine.reach(at_s)


def test_a_learner_whose_request_for_work_was_lost_is_asked_again() -> None:
    machine = script("dab")
    machine.report_bounds(1.0, {"pi": 2, "jetson": 2})
    machine.reach(2.0)
    assert machine.machine.state.stage is Stage.TRAINING
    asked = only(restart(machine, 3.0), commands.AskBound)
    assert asked.learners.tolist() == [1]


@pytest.mark.parametrize("stage", [Stage.AGGREGATING, Stage.EVALUATING])
def test_jobs_are_repeated_by_the_driver_alone(stage: Stage) -> None:
    machine = script()
    machine.update(9.0, dict.fromkeys(NAMES, 30))
    if stage is Stage.EVALUATING:
        machine.aggregate(9.1)
    assert machine.machine.state.stage is stage
    assert restart(machine, 12.0) == []


@pytest.mark.parametrize("stage", [Stage.AGGREGATING, Stage.EVALUATING])
def test_downtime_is_no_time_that_averaging_takes(stage: Stage) -> None:
    """A run with a total time reserves the longest time to average and evaluate at its end."""
    task = make_task(scheme="equal", passes=1, **RULES, total_s=100.0, sizes=TaskSizes(samples=80))
    machine = CycleMachine()
    machine.handle(
        events.TaskSubmitted(
            at_s=0.0,
            run="test",
            task=task,
            learner_count=3,
            shard_samples=np.full(8, task.shard_samples),
            ends_s=100.0,
        )
    )
    scripted = script()
    scripted.machine = machine
    scripted.join(0.0)
    scripted.update(1.5, dict.fromkeys(NAMES, 30))
    if stage is Stage.EVALUATING:
        scripted.aggregate(1.6)
    assert machine.state.stage is stage
    restart(scripted, 40.0, 38.0)
    if stage is Stage.AGGREGATING:
        scripted.aggregate(40.1)
    scripted.evaluate(40.2)
    assert machine.state.schedule is not None
    assert machine.state.schedule.closing_s == pytest.approx(0.7)


def test_an_update_that_arrives_again_is_withdrawn() -> None:
    machine = script()
    machine.update(4.0, {"pi": 30})
    restart(machine, 6.0)
    machine.update(6.5, {"pi": 30})
    aggregated = only(machine.update(7.0, {"laptop": 30, "jetson": 30}), commands.Aggregate)
    assert aggregated.learners.tolist() == [0, 1, 2]
    assert aggregated.late.learners.size == 0


def test_a_learner_that_resumes_gets_its_assignment_again() -> None:
    machine = script()
    resent = only(resume(machine, 4.0, "laptop"), commands.Resend)
    assert resent.learners.tolist() == [1]
    machine.update(9.0, {"laptop": 30})
    assert resume(machine, 9.5, "laptop") == []


def test_a_learner_that_resumes_while_bounds_are_asked_is_asked_again() -> None:
    machine = script("dab", extension=False)
    asked = only(resume(machine, 1.0, "laptop", "jetson"), commands.AskBound)
    assert asked.learners.tolist() == [1, 2]


def test_a_learner_that_is_not_in_the_run_resumes_nothing() -> None:
    machine = script()
    machine.leave(3.0, "laptop")
    assert resume(machine, 4.0, "laptop") == []
    assert machine.send(events.LearnersResumed(at_s=5.0, learners=np.array([7]))) == []


def finished() -> ScriptedMachine:
    machine = script(cycles=1)
    machine.update(9.0, dict.fromkeys(NAMES, 30))
    machine.aggregate(9.1)
    assert only(machine.evaluate(9.2), commands.Finish).outcome == "finished"
    return machine


def test_a_finished_run_ignores_a_restart() -> None:
    assert restart(finished(), 12.0) == []


def test_a_finished_run_goes_on_when_its_learners_have_joined_again() -> None:
    machine = finished()
    machine.send(events.TaskContinued(at_s=20.0, cycles=2, learner_count=2))
    assert machine.join(21.0, "pi") == []
    dispatched = only(machine.join(22.0, "jetson"), commands.Dispatch)
    assert (dispatched.cycle, dispatched.learners.tolist()) == (2, [0, 2])
    machine.update(30.0, {"pi": 30, "jetson": 30})
    machine.aggregate(30.1)
    assert only(machine.evaluate(30.2), commands.Finish).outcome == "finished"


@pytest.mark.parametrize("averages", [False, True])
def test_shards_of_a_cycle_that_was_interrupted_are_dealt_first(averages: bool) -> None:
    machine = script("dab", extension=False, sizes=TaskSizes(samples=800))
    bounds = dict.fromkeys(NAMES, 2)
    dealt = only(machine.report_bounds(1.0, bounds), commands.Dispatch).shards.values.tolist()
    machine.update(8.0, {"pi": 30})
    if averages:
        machine.update(9.0, {"laptop": 30, "jetson": 30})
        machine.aggregate(9.1)
    machine.send(events.TaskCancelled(at_s=10.0, reason="interrupted"))
    machine.send(events.TaskContinued(at_s=20.0, cycles=3, learner_count=3))
    machine.join(21.0)
    again = only(machine.report_bounds(22.0, bounds), commands.Dispatch).shards.values.tolist()
    assert (set(again) == set(dealt)) != averages
    assert set(again).isdisjoint(dealt) == averages

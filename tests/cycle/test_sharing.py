"""A task that shares its learners: it requests shares, and trains those that it is granted."""

from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.commands import AnyCommand
from melisma.cycle.machine import CycleMachine
from melisma.cycle.snapshot import decode_state, encode_state
from melisma.cycle.state import Stage, WorkStatus
from melisma.errors import SettingError
from melisma.runs.trace import Step, decode_steps, encode_step
from melisma.testing import ScriptedMachine, make_task

NAMES = ("a", "b", "c")
EXTENSION = {"extension": True, "quorum": 0.8, "late": "carry"}


def shared(**settings: Any) -> ScriptedMachine:
    task = make_task(**({"scheme": "med"} | settings))
    return ScriptedMachine(task, NAMES, absence_s=60.0, shared=True)


def ready(**settings: Any) -> ScriptedMachine:
    """Return a task whose learners have reported their costs."""
    script = shared(**settings)
    script.join(0.0)
    for number, name in enumerate(NAMES):
        script.report_costs(1.0 + number, name, 0.2 + 0.1 * number, ship_s=0.05, fixed_s=0.5)
    return script


def grant(script: ScriptedMachine, at_s: float, shards: dict[str, int]) -> list[AnyCommand]:
    return script.send(
        events.SharesGranted(
            at_s=at_s,
            learners=np.array([NAMES.index(name) for name in shards]),
            shards=np.array(list(shards.values())),
        )
    )


def only(issued: list[AnyCommand], kind: type[commands.Command]) -> Any:
    (command,) = (each for each in issued if isinstance(each, kind))
    return command


def test_learners_measure_and_then_the_task_requests_shares_instead_of_planning() -> None:
    script = ready()
    assert isinstance(only(script.trace[1].commands, commands.Benchmark), commands.Benchmark)
    request = only(script.trace[-1].commands, commands.RequestShares)
    assert (request.cycle, request.learners.tolist()) == (1, [0, 1, 2])
    assert request.costs[0, 0].tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert "med" in request.reason
    assert script.machine.state.stage is Stage.SHARING


def test_granted_shards_are_dispatched_and_no_other_learner_gets_any() -> None:
    script = ready()
    dispatch = only(grant(script, 5.0, {"a": 12, "c": 8}), commands.Dispatch)
    assert dispatch.learners.tolist() == [0, 2]
    assert dispatch.shards.counts.tolist() == [12, 8]
    assert sorted(dispatch.shards.values.tolist()) == list(range(20))
    assert dispatch.passes.tolist() == [2, 2]
    # 0.5 s + 12 shards of 0.05 s to fetch and 2 passes of 0.2 s.
    assert dispatch.predicted_s[0] == pytest.approx(0.5 + 12 * 0.45)
    assert dispatch.seconds_left == 10.0


def test_a_cycle_of_granted_shards_goes_on_as_any_other() -> None:
    script = ready()
    grant(script, 5.0, {"a": 12, "c": 8})
    assert not [c for c in script.update(9.0, {"a": 240}) if isinstance(c, commands.Aggregate)]
    aggregate = only(script.update(10.0, {"c": 160}), commands.Aggregate)
    assert aggregate.weights.tolist() == [120.0, 80.0]
    script.aggregate(10.0)
    request = only(script.evaluate(10.0), commands.RequestShares)
    assert request.cycle == 2


def test_extensions_go_to_granted_learners_only() -> None:
    script = ready(**EXTENSION)
    grant(script, 5.0, {"a": 4, "c": 4})
    issued = script.request(6.0, {"a": 3, "b": 3})
    assert only(issued, commands.Extend).learners.tolist() == [0]
    # A learner that is measured meanwhile works for another task.
    assert script.report_costs(7.0, "b", 0.1) == []


def test_a_learner_that_left_is_not_dispatched_and_the_request_is_repeated() -> None:
    script = ready()
    request = only(script.leave(4.0, "b"), commands.RequestShares)
    assert request.learners.tolist() == [0, 2]
    dispatch = only(grant(script, 5.0, {"a": 12, "b": 8}), commands.Dispatch)
    assert dispatch.learners.tolist() == [0]


def test_without_any_granted_learner_the_cycle_is_empty() -> None:
    script = ready()
    script.leave(4.0, "b")
    assert only(grant(script, 5.0, {"b": 8}), commands.Aggregate).learners.size == 0


def test_a_learner_that_joins_while_shares_are_awaited_is_measured_and_requested_again() -> None:
    script = ready()
    script.leave(4.0, "b")
    assert only(script.join(5.0, "b"), commands.Benchmark).learners.tolist() == [1]
    request = only(script.report_costs(6.0, "b", 0.2), commands.RequestShares)
    assert request.learners.tolist() == [0, 1, 2]


def test_a_task_without_learners_waits_for_one() -> None:
    script = ready()
    script.leave(4.0, "b", "c")
    only(script.leave(5.0, "a"), commands.Wake)
    assert script.machine.state.stage is Stage.WAITING
    only(script.join(6.0, "a"), commands.Benchmark)


@pytest.mark.parametrize("cycle", [1, 2])
def test_a_refused_request_fails_the_first_cycle_and_empties_a_later_one(cycle: int) -> None:
    script = ready()
    if cycle == 2:
        grant(script, 5.0, {"a": 20})
        script.update(9.0, {"a": 400})
        script.aggregate(9.0)
        script.evaluate(9.0)
    issued = script.send(events.SharesRefused(at_s=10.0, reason="the deadline is too short"))
    if cycle == 1:
        finish = only(issued, commands.Finish)
        assert (finish.outcome, finish.reason) == ("failed", "the deadline is too short")
    else:
        assert only(issued, commands.Aggregate).reason == "empty: the deadline is too short"
        assert np.isnan(script.machine.state.learners.costs).all()


def test_a_grant_that_was_not_requested_changes_nothing() -> None:
    script = ready()
    grant(script, 5.0, {"a": 20})
    before = encode_state(script.machine.state)
    assert grant(script, 6.0, {"b": 5}) == []
    assert script.send(events.SharesRefused(at_s=6.0, reason="too slow")) == []
    assert encode_state(script.machine.state) == before


def test_costs_of_the_present_state_are_asked_anew_in_each_cycle() -> None:
    script = ready(scheme="mmtt-ideal")
    grant(script, 5.0, {"a": 12, "c": 8})
    script.update(9.0, {"a": 240, "c": 160})
    script.aggregate(9.0)
    assert only(script.evaluate(9.0), commands.Benchmark).learners.tolist() == [0, 1, 2]


def test_after_a_restart_shares_are_requested_again() -> None:
    script = ready()
    issued = script.send(events.OrchestratorRestarted(at_s=9.0, downtime_s=2.0))
    assert only(issued, commands.RequestShares).learners.tolist() == [0, 1, 2]


def scripted_runs() -> list[list[Step]]:
    """Return traces of shared tasks with learners that leave, late updates and a refusal."""
    traces = []
    for settings in ({}, EXTENSION, {"scheme": "mmtt-ideal"}, {"scheme": "venn"}):
        script = ready(**settings)
        grant(script, 5.0, {"a": 12, "c": 8})
        script.request(6.0, {"a": 2})
        script.leave(7.0, "c")
        script.update(9.0, {"a": 240})
        script.reach(15.0)
        script.reach(21.0)
        script.aggregate(21.0)
        script.evaluate(21.0)
        script.join(22.0, "c")
        for name in NAMES:
            script.report_costs(23.0, name, 0.3)
        script.reach(50.0)
        grant(script, 51.0, {"b": 20})
        script.update(55.0, {"b": 400})
        script.aggregate(55.0)
        script.evaluate(55.0)
        for name in NAMES:
            script.report_costs(56.0, name, 0.3)
        script.send(events.SharesRefused(at_s=57.0, reason="no plan"))
        traces.append(script.trace)
    return traces


def test_replaying_the_events_gives_the_same_commands_from_any_snapshot() -> None:
    for steps in scripted_runs():
        kinds = {type(command) for step in steps for command in step.commands}
        assert {commands.RequestShares, commands.Dispatch} <= kinds
        machine = CycleMachine()
        # Through the journal's encoding, too.
        for step in decode_steps(map(encode_step, steps)):
            issued = machine.handle(step.event)
            assert encode_step(Step(step.event, issued)) == encode_step(step)
            content = encode_state(machine.state)
            machine = CycleMachine(decode_state(content))
            assert encode_state(machine.state) == content


def test_a_shared_task_needs_a_scheme_for_several_tasks_and_others_must_not_have_one() -> None:
    with pytest.raises(SettingError, match=r"one task at a time.*use med, mmtt"):
        shared(scheme="dab")
    with pytest.raises(SettingError, match="scheme med cannot run a cycle of one task"):
        ScriptedMachine(make_task(scheme="med"), NAMES)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mode": "federated"}, "mode = federated"),
        ({"sample": 2}, "sample"),
        ({"max_shards": 3}, "max_shards"),
        ({"total_s": 60.0, "cycles": None}, "total_s"),
        ({"passes": None}, "passes"),
    ],
)
def test_settings_that_shared_tasks_do_not_support_are_refused(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        shared(**settings)


def test_learners_of_other_tasks_are_no_idle_learners_of_this_one() -> None:
    script = ready()
    dispatch = only(grant(script, 5.0, {"a": 20}), commands.Dispatch)
    assert dispatch.drawn.tolist() == [0]
    work = script.machine.state.learners.work
    assert work.tolist() == [WorkStatus.ASSIGNED, WorkStatus.NONE, WorkStatus.NONE]


def test_an_average_says_how_many_whole_shards_its_updates_cover() -> None:
    script = ready(quorum=1.0, late="carry")
    grant(script, 5.0, {"a": 12, "c": 8})
    script.update(9.0, {"a": 119})  # of 240: 5.95 shards
    covered = only(script.update(10.0, {"c": 999}), commands.Aggregate).covered
    assert covered.learners.tolist() == [0, 2]
    assert covered.cycles.tolist() == [1, 1]
    assert covered.shards.tolist() == [5, 8]
    assert covered.awaited.size == 0


def test_late_work_is_awaited_and_covered_by_a_later_average() -> None:
    script = ready(quorum=0.5, late="carry")
    grant(script, 5.0, {"a": 12, "c": 8})
    script.update(9.0, {"a": 240})
    first = only(script.reach(15.0), commands.Aggregate).covered
    assert (first.awaited.tolist(), first.awaited_cycles.tolist()) == ([2], [1])
    script.aggregate(15.0)
    script.evaluate(15.0)
    grant(script, 16.0, {"a": 20})
    script.update(17.0, {"c": 80}, cycle=1, attempt=1)
    later = only(script.update(18.0, {"a": 400}), commands.Aggregate).covered
    rows = zip(later.cycles.tolist(), later.learners.tolist(), later.shards.tolist(), strict=True)
    assert sorted(rows) == [(1, 2, 4), (2, 0, 20)]
    assert later.awaited.size == 0


@pytest.mark.parametrize(("cycle", "outcome"), [(1, "failed"), (2, "finished")])
def test_a_final_refusal_ends_the_run_with_the_cycles_that_it_had(cycle: int, outcome: str) -> None:
    script = ready()
    if cycle == 2:
        grant(script, 5.0, {"a": 20})
        script.update(9.0, {"a": 400})
        script.aggregate(9.0)
        script.evaluate(9.0)
    issued = script.send(events.SharesRefused(at_s=10.0, reason="no budget is left", final=True))
    finish = only(issued, commands.Finish)
    assert (finish.outcome, finish.reason) == (outcome, "no budget is left")

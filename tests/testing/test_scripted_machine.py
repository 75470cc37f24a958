import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.state import Stage
from melisma.runs.report import Report
from melisma.testing import ScriptedMachine, commands_in, make_task


def test_a_cycle_can_be_scripted_from_joining_to_its_end() -> None:
    script = ScriptedMachine(make_task(scheme="dab", cycles=1), ["a", "b"])
    (ask, _) = script.join(0.1)
    assert isinstance(ask, commands.AskBound)
    (dispatch, _) = script.report_bounds(0.2, {"a": 3, "b": 5})
    assert isinstance(dispatch, commands.Dispatch)
    assert dispatch.shards.counts.tolist() == [3, 5]
    assert script.update(5.0, {"a": 60}) == []
    (aggregate,) = script.update(6.0, {"b": 100})
    assert isinstance(aggregate, commands.Aggregate)
    assert aggregate.weights.tolist() == [30.0, 50.0]
    script.aggregate(6.1)
    (finish,) = script.evaluate(6.2, accuracy=0.9)
    assert isinstance(finish, commands.Finish)
    assert script.machine.state.stage is Stage.FINISHED
    assert Report.from_trace(script.trace).accuracy == 0.9


def test_learners_leave_by_name_and_time_can_be_reached() -> None:
    script = ScriptedMachine(make_task(scheme="equal", cycles=1), ["a", "b", "c"])
    script.join(0.1, "a", "b", discloses="nothing")
    script.leave(0.2, "c", reason="no power")
    (dispatch,) = commands_in(script.trace, commands.Dispatch)
    assert dispatch.learners.tolist() == [0, 1]
    script.update(1.0, {"a": 10}, refused="not finite")
    _, aggregate = script.reach(50.0)
    assert isinstance(aggregate, commands.Aggregate)
    assert aggregate.reason == "empty: not finite"


def test_costs_are_reported_by_name() -> None:
    script = ScriptedMachine(make_task(scheme="synchronous", passes=None), ["a"])
    script.join(0.1)
    (dispatch, _) = script.report_costs(0.5, "a", train_s=0.1, ship_s=0.05, fixed_s=0.2)
    assert isinstance(dispatch, commands.Dispatch)
    (event,) = [step.event for step in script.trace[-1:]]
    assert isinstance(event, events.CostsReported)
    assert np.allclose(event.costs[:, 0, 0], [0.1, 0.05, 0.2])

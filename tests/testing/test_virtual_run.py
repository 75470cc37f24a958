import msgspec
import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.runs.report import Report
from melisma.runs.trace import Step, encode_step
from melisma.testing import FakeDevice, VirtualRun, commands_in, events_in, make_task


def test_a_device_takes_exactly_the_seconds_of_the_cost_model() -> None:
    device = FakeDevice(train_s=0.1, ship_s=0.05, fixed_s=0.3)
    trace = VirtualRun(make_task(scheme="equal", cycles=2), [device]).run()
    first, second = Report.from_trace(trace).cycles
    assert first.cycle_s == pytest.approx(0.3 + 0.05 * 20 + 0.1 * 2 * 20)
    assert second.cycle_s == pytest.approx(0.3 + 0.1 * 2 * 20)


def test_intercepted_events_do_not_happen() -> None:
    def lose(event: events.AnyEvent) -> list[events.AnyEvent]:
        return [] if isinstance(event, events.UpdatesReceived) else [event]

    run = VirtualRun(make_task(scheme="equal"), [FakeDevice(0.1)], lose)
    assert events_in(run.run(), events.UpdatesReceived) == []
    (finish,) = commands_in(run.trace, commands.Finish)
    assert finish.outcome == "failed"


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_replaying_a_trace_gives_the_same_commands(mode: str) -> None:
    local = 6 if mode == "federated" else 0
    devices = [FakeDevice(0.1, local_shards=local), FakeDevice(0.4, local_shards=local)]
    machine = CycleMachine()
    for step in VirtualRun(make_task(mode=mode), devices).run():
        again = Step(step.event, machine.handle(step.event))
        assert encode_step(again) == encode_step(step)


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_with_extension_devices_train_until_the_deadline_and_request_more(mode: str) -> None:
    local = 10 if mode == "federated" else 0
    devices = [FakeDevice(0.2, local_shards=local), FakeDevice(0.4, local_shards=local)]
    task = make_task(mode=mode, extension=True, overlap=True, late="carry", max_shards=15)
    trace = VirtualRun(task, devices, drop_most_of_bounds).run()
    assert commands_in(trace, commands.Finish)[0].outcome == "finished"
    extends = commands_in(trace, commands.Extend)
    assert {each.cycle for each in extends} == {1, 2, 3}
    report = Report.from_trace(trace)
    for cycle in report.cycles:
        assert cycle.cycle_s == pytest.approx(10.0)
        assert all(each.visits > each.planned_visits * 0.9 for each in cycle.assignments)
        assert max(each.extensions for each in cycle.assignments) == 1


def drop_most_of_bounds(event: events.AnyEvent) -> list[events.AnyEvent]:
    if isinstance(event, events.BoundsReported):
        return [msgspec.structs.replace(event, shards=np.minimum(event.shards, 4))]
    return [event]

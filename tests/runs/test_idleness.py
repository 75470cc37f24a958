"""Which learners idled, by cause, and the advice for each."""

from typing import Any

import msgspec
import pytest

from melisma.runs.capacity import TIME_USES
from melisma.runs.idleness import CAUSES, MIN_SHARE, RULES
from melisma.runs.report import Report
from melisma.runs.totals import UNASSIGNED_COUNTS
from melisma.simulation.simulation import SimulationOptions, simulate
from melisma.testing import make_task
from tests.runs.test_capacity import TraceByHand


def one_update(phases: list[float], at_s: float = 10.0, **task: Any) -> Report:
    """Return a report of one cycle of 10 s, in which one learner has these phases."""
    trace = TraceByHand(1, **task)
    trace.dispatch(0.0, {0: [0, 1]})
    trace.update(at_s, 0, 20, phases)
    trace.close(10.0, {0: 20.0})
    return trace.report


def test_time_without_training_is_idle_and_named_by_its_largest_cause() -> None:
    # One second for the model, two for shards, one for the upload; six of training.
    (group,) = one_update([0.0, 1.0, 2.5, 0.0, 6.0, 0.5]).idle
    assert (group.cause, group.names) == ("fetching", ("device-0",))
    assert list(group.shares) == pytest.approx([0.4])
    assert group.reason == "slow link: waited for shards"
    assert group.change == "try overlap = true"


def test_advice_names_what_the_task_has_not_done_yet() -> None:
    phases = [0.0, 1.0, 2.5, 0.0, 6.0, 0.5]
    (group,) = one_update(phases, overlap=True).idle
    assert group.change == "try more passes, or a faster link"


def test_fixed_phases_ask_for_longer_cycles() -> None:
    phases = [0.0, 3.0, 0.0, 0.0, 6.0, 1.0]
    (group,) = one_update(phases).idle
    assert (group.cause, group.change) == ("fixed", "try a longer deadline_s, or a smaller model")
    (group,) = one_update(phases, total_s=100.0, cycles=None).idle
    assert group.change == "try a larger total_s, or a smaller model"


def test_a_learner_that_trains_nearly_all_the_time_is_not_named() -> None:
    busy = 10.0 * (1.0 - MIN_SHARE) + 0.01
    assert one_update([0.0, 10.0 - busy, 0.0, 0.0, busy, 0.0]).idle == ()


def test_learners_are_grouped_by_cause_with_the_idlest_first() -> None:
    trace = TraceByHand(3)
    trace.dispatch(0.0, {0: [0], 1: [1], 2: [2]})
    trace.update(8.0, 0, 10, [0.0, 0.0, 2.0, 0.0, 6.0, 0.0])  # then 2 s for the others
    trace.update(2.0, 1, 10, [0.0, 0.0, 0.0, 0.0, 2.0, 0.0])
    trace.update(6.0, 2, 10, [0.0, 0.0, 0.0, 0.0, 6.0, 0.0])
    trace.close(10.0, {0: 10.0, 1: 10.0, 2: 10.0})
    waiting, fetching = trace.report.idle
    assert waiting.cause == "waiting for others"
    assert waiting.names == ("device-1", "device-2")
    assert list(waiting.shares) == pytest.approx([0.8, 0.4])
    assert (fetching.cause, fetching.names) == ("fetching", ("device-0",))


def test_a_cycle_without_work_is_idle_and_one_of_absence_is_not() -> None:
    trace = TraceByHand(3)
    trace.dispatch(0.0, {0: [0]})
    trace.update(10.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0])
    trace.close(10.0, {0: 10.0})
    assert trace.report.learners.absent.tolist() == [0, 1, 1]
    assert trace.report.idle == ()


def test_a_device_that_is_too_slow_for_a_shard_is_named(tmp_path: Any) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[[fleet.learner]]\nname = "snail"\ntrain_s = 6\nbandwidth_bps = 1e8\n'
        '[[fleet.learner]]\nname = "hare"\ntrain_s = 0.1\nbandwidth_bps = 1e8\n'
    )
    task = make_task(scheme="dab", extension=True, overlap=True, cycles=10)
    report = simulate(task, fleet, SimulationOptions(work="timing"))
    (group,) = report.idle
    assert (group.cause, group.names, group.shares) == ("without work", ("snail",), (1.0,))
    assert group.change == "try smaller shard_samples, or a longer deadline_s"


def test_every_use_of_time_but_training_has_a_rule() -> None:
    assert set(RULES) == set(CAUSES)
    assert set(CAUSES) == set(TIME_USES) - {"training"} | {"without work", "not ready"}
    assert {cause.replace(" ", "_") for cause in ("without work", "not ready")} < set(
        UNASSIGNED_COUNTS
    )
    for reason, change in RULES.values():
        for task in (make_task(), make_task(total_s=60.0), make_task(**OPPOSITE)):
            assert reason
            assert change(task).split()[0] in ("try", "see", "check")


OPPOSITE = {"overlap": True, "extension": True, "finish_by": "2099-01-01 00:00", "total_s": 60.0}


def test_the_json_of_a_report_has_the_groups() -> None:
    values = one_update([0.0, 1.0, 2.5, 0.0, 6.0, 0.5]).as_dict()
    assert values["idle"] == [
        {
            "cause": "fetching",
            "names": ["device-0"],
            "shares": [pytest.approx(0.4)],
            "reason": "slow link: waited for shards",
            "change": "try overlap = true",
            "count": 1,
            "largest_share": pytest.approx(0.4),
        }
    ]
    assert msgspec.json.encode(values)

"""Batteries, hours of the day and the orchestrator's link in simulated runs."""

from typing import Any

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.fleet.availability import BatteryLimits
from melisma.simulation import SimulationOptions, simulate
from melisma.simulation.batteries import Batteries
from tests.simulation.scenarios import LEARNERS, make_fleet, make_task, run

TIMING = SimulationOptions(work="timing")


def with_first(**settings: Any) -> list[dict[str, Any]]:
    return [LEARNERS[0] | settings, *LEARNERS[1:]]


def test_a_battery_is_drained_and_recharged() -> None:
    batteries = Batteries(BatteryLimits(np.array([10.0, 10.0, np.inf]), np.array([0.0, 1.0, 0.0])))
    learners = np.arange(3)
    assert batteries.use(learners, np.full(3, 6.0), np.full(3, 5.0)).size == 0
    # The second one has been charged by 3 J since.
    assert batteries.use(learners, np.full(3, 6.0), np.full(3, 8.0)).tolist() == [0]
    assert batteries.recharge_s(learners[:2]).tolist() == [np.inf, 5.0]


def test_a_device_leaves_when_its_battery_is_empty_and_comes_back_when_it_is_charged() -> None:
    energy = {"sample_j": 1.0}
    report = run(cycles=1, fleet=make_fleet(with_first(energy=energy)))
    cycle_j = float(report.learners.joules[0])
    assert cycle_j > 0

    def left_out(**battery: float) -> list[bool]:
        fleet = make_fleet(with_first(energy=energy, availability=battery))
        cycles = run(cycles=6, fleet=fleet).cycles
        return [bool(np.isin(0, cycle.unassigned.learner)) for cycle in cycles]

    assert not any(left_out(battery_j=100 * cycle_j))
    empty = left_out(battery_j=1.5 * cycle_j)
    assert empty[:2] == [False, False]
    assert all(empty[2:])
    deadline_s = make_task().deadline_s
    charged = left_out(battery_j=1.5 * cycle_j, recharge_w=0.75 * cycle_j / (1.5 * deadline_s))
    assert charged[2]
    assert not all(charged[3:])


def test_a_run_names_the_device_whose_battery_is_empty() -> None:
    availability = {"battery_j": 1.0}
    first = with_first(energy={"sample_j": 1.0}, availability=availability)
    report = run(cycles=2, fleet=make_fleet(first))
    assert "tortoise ran out of battery" in report.departures


def test_a_device_is_present_in_its_hours_only() -> None:
    # The run begins at 21:59, and a minute later the hours of one device end and another's begin.
    day, night = {"hours": "07:00-22:00"}, {"hours": "22:00-06:00"}
    learners = [
        LEARNERS[0] | {"availability": day},
        LEARNERS[1] | {"availability": night},
        LEARNERS[2],
    ]
    fleet = make_fleet(learners, starts_at="21:59")
    assert fleet.present_at_start.tolist() == [True, False, True]
    report = run(cycles=8, deadline_s=20.0, fleet=fleet)
    absent = [cycle.unassigned.learner.tolist() for cycle in report.cycles]
    assert absent[0] == [1]
    assert absent[-1] == [0]
    assert "tortoise ended its hours" in report.departures
    assert report.as_dict() == run(cycles=8, deadline_s=20.0, fleet=fleet).as_dict()


def test_a_crashed_device_does_not_come_back_with_its_hours() -> None:
    learners = with_first(availability={"hours": "22:00-21:59"})
    fleet = make_fleet(learners, starts_at="21:58")
    report = run("crash 0 at 10", cycles=10, deadline_s=20.0, fleet=fleet)
    assert all(0 in cycle.unassigned.learner.tolist() for cycle in report.cycles[1:])
    report = run("crash 0 at 10 for 70", cycles=10, deadline_s=20.0, fleet=fleet)
    # It restarts at 80 s, while its hours pause it until 120 s.
    assert 0 in report.cycles[4].unassigned.learner.tolist()
    assert 0 not in report.cycles[-1].unassigned.learner.tolist()


@pytest.mark.parametrize(
    ("availability", "says"),
    [
        ({"hours": "07:00-22:00"}, "availability.hours needs starts_at"),
        ({"hours": "07:00-22:00", "joins_s": 3.0}, "hours and joins_s exclude each other"),
        ({"recharge_w": 3.0}, "recharge_w needs battery_j"),
    ],
)
def test_settings_that_miss_another_are_an_error(availability: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_fleet(with_first(availability=availability))


def test_a_run_without_a_learner_in_its_hours_is_an_error() -> None:
    learners = [each | {"availability": {"hours": "07:00-09:00"}} for each in LEARNERS]
    with pytest.raises(SettingError, match=r"no learner is present at the start; .* starts_at"):
        simulate(make_task(), make_fleet(learners, starts_at="12:00"), TIMING)


def test_the_link_of_the_orchestrator_slows_all_transfers() -> None:
    def fetch_s(**settings: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        report = run(cycles=1, fleet=make_fleet(**settings), extension=False)
        return np.array(report.learners.phases[:, 1])

    own, shared = fetch_s(), fetch_s(orchestrator={"uplink_bps": 3e6})
    bits, latency_s = 8 * make_task().model_bytes, make_fleet().latency_s
    assert shared == pytest.approx(bits / 1e6 + latency_s)
    assert np.all(shared > own)
    # Uploads have their own direction.
    assert fetch_s(orchestrator={"downlink_bps": 3e6}) == pytest.approx(own)


def test_learners_with_work_share_the_link() -> None:
    fleet = make_fleet(orchestrator={"bandwidth_bps": 3e6})
    report = run("crash 0 at 6", cycles=2, fleet=fleet)
    # Of three learners two are left, which get half of the link instead of a third.
    first, second = (
        [float(each.phases[1]) for each in cycle.assignments if each.learner == 1]
        for cycle in report.cycles
    )
    assert second[0] < first[0]

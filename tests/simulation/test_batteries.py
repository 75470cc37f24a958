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


def make_batteries() -> Batteries:
    return Batteries(BatteryLimits(np.array([10.0, 10.0, np.inf]), np.array([0.0, 1.0, 0.0])))


def test_a_battery_is_drained_and_recharged() -> None:
    batteries, learners = make_batteries(), np.arange(3)
    joules = np.full(3, 8.0)
    assert batteries.draw(learners, joules, 0.0, np.full(3, 4.0)).size == 0
    # From 4 s on the first one has 2 J, and the second one 6 J and 1 J for each further second.
    assert batteries.draw(learners, joules, 4.0, np.full(3, 8.0)).tolist() == [0]
    assert batteries.empty_s.tolist() == [5.0, np.inf, np.inf]
    assert batteries.take_empty(learners, 4.9).size == 0
    assert batteries.take_empty(learners, 5.0).tolist() == [0]
    assert batteries.ran_empty.tolist() == [True, False, False]
    assert batteries.recharge_s(learners[:2]).tolist() == [np.inf, 5.0]


def test_work_that_stops_early_leaves_its_energy_in_the_battery() -> None:
    batteries, first = make_batteries(), np.array([0])
    assert batteries.draw(first, np.array([20.0]), 0.0, np.array([8.0])).tolist() == [0]
    batteries.stop(first, 2.0)  # 5 of 10 J are left
    assert batteries.take_empty(first, 8.0).size == 0
    assert batteries.draw(first, np.array([5.0]), 8.0, np.array([9.0])).size == 0
    assert batteries.draw_more(first, np.array([0.5]), np.array([8.5])).tolist() == [0]
    assert batteries.empty_s[0] == 8.5


@pytest.mark.parametrize("extension", [False, True])
def test_a_device_never_uses_more_than_its_battery(extension: bool) -> None:
    energy = {"sample_j": 1.0, "byte_j": 1e-4}
    plain = run(cycles=1, fleet=make_fleet(with_first(energy=energy)), extension=extension)
    for share in (0.2, 0.9, 1.5):
        battery_j = share * float(plain.learners.joules[0])
        learners = with_first(energy=energy, availability={"battery_j": battery_j})
        report = run(cycles=4, fleet=make_fleet(learners), extension=extension)
        assert report.learners.joules[0] <= battery_j
        assert report.learners.left[0] == 1
        assert np.all(report.learners.counted_visits[1:] > 0)
        # It stops while it trains: the orchestrator notices before the end of that cycle.
        stopped = report.cycles[int(share)]
        assert stopped.counts["left"] == 1


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
    # The charger makes the battery last longer, and then charges half of it in 1.5 cycles.
    assert charged.index(True) > 2
    assert not all(charged[charged.index(True) :])


def test_a_run_names_the_device_whose_battery_is_empty() -> None:
    availability = {"battery_j": 1.0}
    first = with_first(energy={"sample_j": 1.0}, availability=availability)
    report = run(cycles=2, fleet=make_fleet(first))
    assert "tortoise: battery empty" in report.departures


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
    assert "tortoise: hours ended" in report.departures
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

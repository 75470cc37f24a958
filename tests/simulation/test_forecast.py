"""Forecasts of small fleets; tests/cli/test_plan_forecast.py compares them with simulations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma.cli.options import DEFAULT_FLEET
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import TaskSizes
from melisma.simulation import SimulationOptions, simulate
from melisma.simulation import forecast as forecast_module
from melisma.simulation.forecast import Forecast, first_cycle_failure, forecast, take_learners
from melisma.testing import make_task

ALL_IN_TIME = Forecast(1.0, 1.0, 1.0, 1.0, 1.0)


def make_fleet(folder: Path, text: str) -> Fleet:
    file = folder / "fleet.toml"
    file.write_text(text)
    return read_fleet(file)


def group(count: int, line: str = "") -> str:
    speed = "samples_per_s = 100.0\nuplink_bps = 1e8\ndownlink_bps = 1e8"
    return f"[[fleet.group]]\ncount = {count}\n{speed}\n{line}\n"


def test_steady_learners_are_all_in_time(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, group(3))
    found = forecast(make_task(), fleet)
    lengths: dict[str, Any] = {"cycles": 3.0, "cycle_s": 10.0, "run_s": found.run_s}
    assert found == replace(ALL_IN_TIME, capacity_used=found.capacity_used, **lengths)
    assert found.run_s > make_task().deadline_s
    assert 0 < found.capacity_used < 1  # without extension they wait for the deadline


def test_learners_in_an_unlikely_state_send_what_they_have(tmp_path: Path) -> None:
    slow = '[[fleet.learner.state]]\nname = "slow"\nprobability = 0.05\ncompute = 0.1\n'
    usual = '[[fleet.learner.state]]\nname = "usual"\nprobability = 0.95\n'
    speed = "samples_per_s = 100.0\nuplink_bps = 1e8\ndownlink_bps = 1e8\n"
    learner = '[[fleet.learner]]\nname = "{}"\n' + speed + usual + slow
    fleet = make_fleet(tmp_path, "".join(learner.format(number) for number in range(100)))
    found = forecast(make_task(cycles=20), fleet)
    assert found.finishing == pytest.approx(0.95, abs=0.02)
    assert found.weight_in_time == 1  # the others halt in time


@pytest.mark.parametrize("learners", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_sleepers_are_left_out_or_late(learners: int, tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, group(learners, "availability = { awake_s = 30, asleep_s = 10 }"))
    sizes = TaskSizes(samples=500 * learners, sample_bytes=100, model_bytes=1000, sample_ops=1.0)
    found = forecast(make_task(cycles=30, extension=True, sizes=sizes), fleet)
    assert found.awake_at_start == 1
    assert found.awake_on_average == pytest.approx(0.75, abs=0.02)
    assert 0.5 < found.weight_in_time < 0.8
    assert not found.keeps_deadline


def test_learners_that_join_later_or_leave_are_not_waited_for(tmp_path: Path) -> None:
    late = "availability = { joins_s = 15.0, leaves_s = 25.0 }"
    fleet = make_fleet(tmp_path, group(2) + group(2, late))
    found = forecast(make_task(cycles=4), fleet)
    assert (found.awake_at_start, found.awake_on_average) == (0.5, 0.625)
    assert found.keeps_deadline


def test_learners_out_of_battery_are_absent_as_in_a_simulation(tmp_path: Path) -> None:
    battery = "availability = { battery_j = 300 }\nenergy = { sample_j = 1.0 }"
    fleet = make_fleet(tmp_path, group(1) + group(3, battery))
    task = make_task(cycles=5, extension=True)
    found = forecast(task, fleet)
    report = simulate(task, fleet, SimulationOptions(work="timing"))
    present = [len(cycle.assignments) / 4 for cycle in report.cycles]
    assert present == [1.0, 0.25, 0.25, 0.25, 0.25]
    assert found.awake_at_start == 1
    assert found.awake_on_average == pytest.approx(np.mean(present))
    assert found.out_of_battery == 0.75


def test_batteries_that_last_many_cycles_are_followed_for_longer(tmp_path: Path) -> None:
    lines = "availability = { battery_j = 40_000 }\nenergy = { sample_j = 1.0 }"
    fleet = make_fleet(tmp_path, group(1) + group(1, lines))
    found = forecast(make_task(cycles=100, extension=True), fleet)
    assert found.cycles == 100
    assert found.out_of_battery == 0.5
    assert 0.5 < found.awake_on_average < 1


def test_learners_are_present_in_their_hours_only(tmp_path: Path) -> None:
    hours = ('availability = { hours = "12:00-06:00" }', 'availability = { hours = "06:00-12:00" }')
    text = '[fleet]\nstarts_at = "11:59"\n' + group(1)
    fleet = make_fleet(tmp_path, text + group(1, hours[0]) + group(1, hours[1]))
    found = forecast(make_task(cycles=12), fleet)
    # One comes when another leaves.
    assert found.awake_at_start == pytest.approx(2 / 3)
    assert found.awake_on_average == pytest.approx(2 / 3, abs=0.1)


def test_a_fleet_without_a_learner_at_the_start_fails(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, group(2, "availability = { joins_s = 15.0 }"))
    found = forecast(make_task(), fleet)
    assert found.failure == "no learner is present at the start"
    assert not found.keeps_deadline


def test_a_failure_is_that_of_the_run(tmp_path: Path) -> None:
    fleet, task = make_fleet(tmp_path, group(2)), make_task(deadline_s=0.1)
    assert "deadline_s = 0.1 is too short" in first_cycle_failure(task, fleet)
    assert forecast(task, fleet).failure == first_cycle_failure(task, fleet)


def test_a_sample_of_many_learners_gives_about_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "availability = { awake_s = 30, asleep_s = 10 }",
        "noise = { compute = 0.2, bandwidth = 0.5, correlation_s = 5.0 }",
    )
    fleet = make_fleet(tmp_path, group(900, "\n".join(lines)))
    sizes = TaskSizes(samples=450_000, sample_bytes=100, model_bytes=1000, sample_ops=1.0)
    task = make_task(cycles=10, sizes=sizes)
    full = forecast(task, fleet)
    monkeypatch.setattr(forecast_module, "MAX_LEARNERS", 400)
    part = forecast(task, fleet)
    assert part != full
    assert part.weight_in_time == pytest.approx(full.weight_in_time, abs=0.03)
    assert part.awake_on_average == pytest.approx(full.awake_on_average, abs=0.03)


def test_a_part_of_the_learners_has_its_part_of_the_link_of_the_orchestrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = "[fleet.orchestrator]\nbandwidth_bps = 2e7\n"
    fleet = make_fleet(tmp_path, group(60) + link)
    sizes = TaskSizes(samples=30_000, sample_bytes=100, model_bytes=300_000, sample_ops=1.0)
    task = make_task(cycles=3, deadline_s=30.0, sizes=sizes)
    full = forecast(task, fleet)
    assert full.capacity_used < 0.9 * forecast(task, make_fleet(tmp_path, group(60))).capacity_used
    monkeypatch.setattr(forecast_module, "MAX_LEARNERS", 20)
    part = forecast(task, fleet)
    assert part.capacity_used == pytest.approx(full.capacity_used, rel=0.05)


def test_a_part_of_the_learners_keeps_its_own_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The part is the first learner of each pair, which has most of the data.
    learner = '[[fleet.learner]]\nname = "{}"\nsamples_per_s = 500\nbandwidth_bps = 1e8\n'
    counts = (2900, 100, 2900, 100)
    tables = [f"{learner.format(n)}own_samples = {own}\n" for n, own in enumerate(counts)]
    fleet = make_fleet(tmp_path, "".join(tables))
    sizes = TaskSizes(samples=6000, sample_bytes=100, model_bytes=1000, sample_ops=1.0)
    task = make_task(mode="federated", scheme="proportional", shard_samples=100, sizes=sizes)
    assert not forecast(task, fleet).failure
    monkeypatch.setattr(forecast_module, "MAX_LEARNERS", 2)
    assert not forecast(task, fleet).failure


def test_groups_of_a_part_of_a_fleet_have_their_learners_in_it(tmp_path: Path) -> None:
    counts = {"a": 2, "b": 3, "c": 2}
    tables = [group(count, f'name = "{name}"') for name, count in counts.items()]
    whole = make_fleet(tmp_path, "".join(tables))
    part = take_learners(whole, np.array([0, 1, 5, 6]))
    assert part.groups == {"a": range(2), "c": range(2, 4)}
    for name, learners in part.groups.items():
        assert [part.names[n] for n in learners] == [whole.names[n] for n in whole.groups[name]]


def test_a_part_of_a_fleet_has_the_rows_of_its_learners_in_every_array() -> None:
    whole = read_fleet(DEFAULT_FLEET, 6)
    part = take_learners(whole, np.array([1, 4]))
    assert part.names == (whole.names[1], whole.names[4])
    availability = part.availability
    for table in (part, part.noise, availability, availability.hours, availability.battery):
        arrays = {k: v for k, v in vars(table).items() if isinstance(v, np.ndarray)}
        assert arrays
        assert {name: len(array) for name, array in arrays.items()} == dict.fromkeys(arrays, 2)
    assert part.present_at_start.tolist() == [True, True]

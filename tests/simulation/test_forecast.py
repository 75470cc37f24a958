"""Forecasts without a run; tests/cli/test_plan_forecast.py compares them with simulations."""

from pathlib import Path

import numpy as np
import pytest

from melisma.allocation.cycle_problem import CyclePlan
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation import forecast as forecast_module
from melisma.simulation.forecast import Forecast, forecast
from melisma.testing import make_task

ALL_IN_TIME = Forecast(1.0, 1.0, 1.0, 1.0, 1.0)


def make_fleet(folder: Path, text: str) -> Fleet:
    file = folder / "fleet.toml"
    file.write_text(text)
    return read_fleet(file)


def group(count: int, line: str = "") -> str:
    speed = "samples_per_s = 100.0\nuplink_bps = 1e8\ndownlink_bps = 1e8"
    return f"[[fleet.group]]\ncount = {count}\n{speed}\n{line}\n"


def look_ahead(task: Task, fleet: Fleet, shards: int, *, asks_each_cycle: bool = True) -> Forecast:
    even = np.full(fleet.learners, shards)
    plan = CyclePlan(shards=even, updates=np.ones_like(even))
    return forecast(task, fleet, plan, asks_each_cycle=asks_each_cycle)


def test_steady_learners_are_all_in_time(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, group(3))
    assert look_ahead(make_task(), fleet, 50) == ALL_IN_TIME


def test_learners_finish_their_shards_in_the_states_that_were_planned_for(tmp_path: Path) -> None:
    slow = '[[fleet.learner.state]]\nname = "slow"\nprobability = 0.05\ncompute = 0.1\n'
    usual = '[[fleet.learner.state]]\nname = "usual"\nprobability = 0.95\n'
    speed = "samples_per_s = 100.0\nuplink_bps = 1e8\ndownlink_bps = 1e8\n"
    learner = '[[fleet.learner]]\nname = "{}"\n' + speed + usual + slow
    fleet = make_fleet(tmp_path, "".join(learner.format(number) for number in range(100)))
    found = look_ahead(make_task(cycles=50), fleet, 50)
    assert found.finishing == pytest.approx(0.95, abs=0.01)
    assert found.weight_in_time == 1  # the others halt in time


def test_sleepers_are_left_out_or_late(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, group(1000, "availability = { awake_s = 30, asleep_s = 10 }"))
    task = make_task(cycles=50, extension=True)
    asked = look_ahead(task, fleet, 50)
    assert asked.awake_at_start == 1
    assert asked.awake_on_average == pytest.approx(0.75, abs=0.01)
    assert asked.weight_in_time == pytest.approx(np.exp(-1 / 3), abs=0.02)
    waiting = look_ahead(task, fleet, 50, asks_each_cycle=False)
    assert waiting.weight_in_time == pytest.approx(0.75 * np.exp(-1 / 3), abs=0.02)


def test_learners_that_join_later_or_leave_are_not_waited_for(tmp_path: Path) -> None:
    late = "availability = { joins_s = 15.0, leaves_s = 25.0 }"
    fleet = make_fleet(tmp_path, group(2) + group(2, late))
    found = look_ahead(make_task(cycles=4), fleet, 50)
    assert (found.awake_at_start, found.awake_on_average) == (0.5, 0.625)
    assert (found.weight_in_time, found.cycles_in_time) == (1, 1)


def test_a_sample_of_many_learners_gives_about_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "availability = { awake_s = 30, asleep_s = 10 }",
        "noise = { compute = 0.2, bandwidth = 0.5, correlation_s = 5.0 }",
    )
    fleet = make_fleet(tmp_path, group(2000, "\n".join(lines)))
    task = make_task(cycles=20)
    full = look_ahead(task, fleet, 50)
    monkeypatch.setattr(forecast_module, "MAX_LEARNERS", 700)
    part = look_ahead(task, fleet, 50)
    assert part != full
    assert part.weight_in_time == pytest.approx(full.weight_in_time, abs=0.02)
    assert part.awake_on_average == pytest.approx(full.awake_on_average, abs=0.02)

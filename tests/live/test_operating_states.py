"""Whole live runs of devices that are in operating states with stressors."""

from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.fleet.stressors import stress_matrix
from melisma.live.protocol import STRESS_MATRIX
from melisma.live.training import train
from melisma.simulation.simulation import simulate
from tests.live.learner import own_stress
from tests.live.short_run import DEFAULT_RULES, FLEET, build, run_task

TORTOISE, HARE = FLEET["learner"]


def test_devices_train_beside_downloads_products_and_functions_of_the_user(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(own_stress.__file__).read_text()
    (work_folder / "house.py").write_text(source)
    log = work_folder / "log"
    monkeypatch.setenv("STRESS_LOG", str(log))
    states = [
        {"probability": 1.0, "stress": name} for name in ("downloading", "house:count_rounds")
    ]
    products = {"probability": 1.0, "stress": "training", "compute": 0.5}
    devices = [
        TORTOISE | {"name": name, "compute": 0.1, "state": [state]}
        for name, state in (("radio", states[1]), ("disk", states[0]), ("oven", products))
    ]
    report = run_task(work_folder, fleet={"learner": devices}, cycles=2)
    assert report.outcome == "finished"
    assert [len(cycle.assignments) for cycle in report.cycles] == [3, 3]
    matrix = work_folder / "run" / "parameters" / STRESS_MATRIX
    assert matrix.read_bytes() == stress_matrix()
    assert log.stat().st_size > 0


def test_a_stressor_that_fails_ends_the_run_with_its_name(work_folder: Path) -> None:
    (work_folder / "house.py").write_text(Path(own_stress.__file__).read_text())
    state = {"probability": 1.0, "stress": "house:fail"}
    report = run_task(work_folder, fleet={"learner": [HARE | {"state": [state]}]})
    assert report.outcome == "failed"
    assert "hare: stress house:fail: ZeroDivisionError" in report.reason


def test_a_stressor_that_cannot_be_imported_is_an_error_before_the_run(work_folder: Path) -> None:
    state = {"probability": 1.0, "stress": "house:missing"}
    (work_folder / "house.py").touch()
    with pytest.raises(SettingError, match="stress house:missing: house has no missing"):
        run_task(work_folder, fleet={"learner": [HARE | {"state": [state]}]})


@pytest.mark.alone
def test_training_beside_products_is_as_fast_as_simulated_with_half_of_the_speed(
    work_folder: Path,
) -> None:
    """The same files, live with the stressor and simulated with the share."""
    state = {"probability": 1.0, "stress": "training", "compute": 0.5}
    learners = [
        {"name": name, "samples_per_s": speed, "bandwidth_bps": 20e6, "state": [state]}
        for name, speed in (("tortoise", 400.0), ("hare", 800.0))
    ]
    task, fleet = build({**DEFAULT_RULES, "cycles": 3, "deadline_s": 4.0}, {"learner": learners})
    live = train(task, fleet, folder=work_folder / "live")
    simulated = simulate(task, fleet)
    for one, other in zip(live.cycles[1:], simulated.cycles[1:], strict=True):
        visits = [[work.visits for work in cycle.assignments] for cycle in (one, other)]
        assert visits[0] == pytest.approx(visits[1], rel=0.15)

"""A simulated service whose process stops goes on from its journals, and pays nothing twice."""

import random

import pytest

from melisma.errors import SettingError
from melisma.simulation.fault_search import HAS_APSW
from tests.simulation.service.checked_service import CheckedService, two_tasks

BUDGET = 45.0


def run_with(faults: str, seed: int = 1, **settings: object) -> CheckedService:
    tasks = two_tasks(BUDGET, quorum=0.5, **settings)
    return CheckedService(tasks, faults, seed, submits_s=(0.0, 3.0))


@pytest.mark.parametrize("step", range(1, 70, 3))
def test_a_process_that_stops_after_any_step_goes_on(step: int) -> None:
    run = run_with(f"crash orchestrator at step {step} for {1 + step % 5}")
    assert [each.outcome for each in run.report.tasks] == ["finished", "finished"]
    assert run.restarts > 0 or step < 8
    paid = sum(amount for (task, *_), amount in run.invariants.payments.items() if task == 1)
    assert 0 < paid <= BUDGET * (1 + 1e-9)


@pytest.mark.skipif(not HAS_APSW, reason="power cuts need the package apsw")
@pytest.mark.parametrize("step", range(1, 70, 6))
def test_a_power_cut_after_any_step_loses_no_payment_and_makes_none_twice(step: int) -> None:
    run = run_with(f"cut power at step {step} for {1 + step % 5}")
    assert [each.outcome for each in run.report.tasks] == ["finished", "finished"]
    assert run.report.paid[1] <= BUDGET * (1 + 1e-9)


def test_stops_at_given_times_happen_beside_faults_of_learners() -> None:
    run = run_with(
        "crash orchestrator at 9 for 5; crash orchestrator at 30 for 0.2; "
        "crash 1 at 12 for 1; vanish 3 at 9 for 8; delay report 3 from 2 by 9"
    )
    assert run.report.outcome == "finished"
    assert run.restarts >= 2


@pytest.mark.parametrize("seed", range(12))
def test_the_laws_hold_under_random_stops_and_faults(seed: int) -> None:
    rng = random.Random(seed)
    at = [f"at step {rng.randint(1, 110)}" for _ in range(rng.randint(1, 3))]
    at += [f"at {rng.uniform(0.5, 40):.2f}" for _ in range(rng.randint(0, 2))]
    faults = [f"crash orchestrator {each} for {rng.choice([0.2, 1, 5, 12])}" for each in at]
    faults.append(f"delay report {rng.randint(1, 8)} from {rng.randint(0, 5)} by 9")
    faults.append(f"crash {rng.randint(0, 5)} at {rng.uniform(1, 40):.1f} for 2")
    run = run_with("; ".join(faults), seed, late=rng.choice(["carry", "drop"]))
    assert run.report.outcome == "finished"


def test_runs_with_stops_are_repeatable() -> None:
    faults = "crash orchestrator at step 25 for 3; crash orchestrator at 20 for 1"
    first, second = run_with(faults), run_with(faults)
    assert first.invariants.payments == second.invariants.payments
    assert len(first.log) == len(second.log)


def test_faults_of_the_disk_are_refused() -> None:
    with pytest.raises(SettingError, match=r"fill disk.*use cut power"):
        run_with("fill disk at 3 for 2")

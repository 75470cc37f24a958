"""A deadline that a message names works: in `melisma plan` and in `melisma simulate`."""

import re
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.allocation.schemes import get_scheme, with_scheme
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation import SimulationOptions, forecast
from melisma.simulation.plans.plan_report import build_plan_report
from melisma.simulation.simulation import prepare, run
from tests.lanes import cases

SCHEMES = ("synchronous", "staleness", "equal", "proportional", "dab")
NAMED = re.compile(r"use deadline_s >= ([0-9.e+-]+[0-9])")
SLOW_STATES = [{"probability": 0.9}, {"probability": 0.1, "compute": 0.5, "bandwidth": 0.5}]


@pytest.fixture(autouse=True)
def one_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a forecast simulate the seed of the fleet only, as its failure is that of the first."""
    monkeypatch.setattr(forecast, "MAX_CYCLES", 3)


def random_fleet(rng: np.random.Generator) -> Fleet:
    """Return a few devices of unequal speed, some with asymmetric links, states or noise."""
    learners: list[dict[str, Any]] = []
    for number in range(int(rng.integers(1, 6))):
        learner: dict[str, Any] = {
            "name": f"device-{number}",
            "samples_per_s": float(10 ** rng.uniform(1.5, 4)),
            "downlink_bps": float(10 ** rng.uniform(6, 8)),
            "uplink_bps": float(10 ** rng.uniform(6, 8)),
            "latency_s": float(rng.uniform(0, 0.05)),
        }
        if rng.random() < 0.3:
            learner["state"] = SLOW_STATES
        learners.append(learner)
    noise = {"compute": 0.2, "bandwidth": 0.2, "correlation_s": 1.0}
    more = {"noise": noise} if rng.random() < 0.3 else {}
    seed = int(rng.integers(1000))
    return build_fleet(msgspec.convert({"learner": learners, "seed": seed} | more, FleetTable))


def random_task(rng: np.random.Generator, scheme: str, **settings: Any) -> Task:
    task = {
        "name": "digits",
        "model": "twonn",
        "data": "mnist",
        "passes": int(rng.integers(1, 4)),
        "cycles": 3,
        "shard_samples": 100,
        "deadline_s": 1.0,
        "sizes": {"samples": int(rng.integers(1000, 6000))},
        "overlap": bool(rng.random() < 0.5),
        "simulation": {"work": "timing"},
    }
    return with_scheme(msgspec.convert(task | settings, Task), scheme)


def with_deadline(task: Task, deadline_s: float) -> Task:
    return msgspec.structs.replace(task, deadline_s=deadline_s)


def outcome(task: Task, fleet: Fleet) -> tuple[str, str]:
    report = run(prepare(task, fleet, SimulationOptions(work="timing")))
    return report.outcome, report.reason


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seed", range(cases(40)))
def test_a_named_deadline_works(scheme: str, seed: int) -> None:
    rng = np.random.default_rng([seed, SCHEMES.index(scheme)])
    fleet = random_fleet(rng)
    task = random_task(rng, scheme, deadline_s=float(10 ** rng.uniform(-2, 1.5)))
    planned = build_plan_report(get_scheme(scheme), [task], fleet, 1.0)
    result, reason = outcome(task, fleet)
    if not planned["feasible"]:
        longer = with_deadline(task, planned["nearest"]["deadline_s"])
        again = build_plan_report(get_scheme(scheme), [longer], fleet, 1.0)
        assert again["feasible"]
        assert again["forecast"]["failure"] == ""
        assert outcome(longer, fleet) == ("finished", "cycle 3 was the last")
    else:
        assert planned["forecast"]["failure"] == (reason if result == "failed" else "")
    if named := NAMED.search(reason):
        assert outcome(with_deadline(task, float(named[1])), fleet)[0] == "finished"


def is_constant(fleet: Fleet) -> bool:
    """Return whether its devices are the same in the benchmark and in each cycle."""
    return fleet.state_probability.shape[1] == 1 and fleet.variation.is_constant


@pytest.mark.parametrize("scheme", ["synchronous", "staleness", "dab"])
@pytest.mark.parametrize("seed", range(cases(20)))
def test_a_plan_and_a_simulation_agree_on_the_shortest_deadline(scheme: str, seed: int) -> None:
    """Without chance: what can be planned can be simulated, also at the very first deadline."""
    rng = np.random.default_rng([seed, 99])
    fleet = next(filter(is_constant, iter(lambda: random_fleet(rng), None)))
    task = random_task(rng, scheme, deadline_s=0.001)
    planned = build_plan_report(get_scheme(scheme), [task], fleet, 1.0)
    shortest = with_deadline(task, planned["nearest"]["deadline_s"])
    assert outcome(shortest, fleet)[0] == "finished"
    result, reason = outcome(with_deadline(task, 0.8 * shortest.deadline_s), fleet)
    assert result == "failed"
    assert NAMED.search(reason)

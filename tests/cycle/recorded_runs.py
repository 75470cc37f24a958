"""Simulated runs of many kinds with random faults, for laws that hold at each of their steps."""

from collections.abc import Iterator
from typing import Any

from melisma.runs.trace import Step
from melisma.simulation.scenario import with_random_faults
from tests.lanes import cases
from tests.simulation.scenarios import make_scenario, run_steps

FEDERATED: dict[str, Any] = {"mode": "federated", "shard_samples": 40}
DEFAULT_RULES: dict[str, Any] = {"extension": True, "overlap": True, "late": "carry", "quorum": 0.8}
KINDS: dict[str, dict[str, Any]] = {
    "papers' rules": {},
    "default rules": DEFAULT_RULES,
    "few shards": {**DEFAULT_RULES, "sizes": {"samples": 1000}},
    "many shards": {**DEFAULT_RULES, "sizes": {"samples": 20000}},
    "federated": {**DEFAULT_RULES, **FEDERATED},
    "federated, papers' rules": FEDERATED,
    "sample": {**DEFAULT_RULES, "sample": 2},
    "total time": {**DEFAULT_RULES, "total_s": 45.0, "cycles": None},
    "all updates": {**DEFAULT_RULES, "quorum": 1.0},
    "equal": {**DEFAULT_RULES, "scheme": "equal"},
    "proportional": {**DEFAULT_RULES, "scheme": "proportional"},
    "synchronous": {"scheme": "synchronous", "passes": None},
    "staleness": {**FEDERATED, "scheme": "staleness", "passes": None},
    "too short": {"deadline_s": 0.05},
}


def recorded_runs(kind: str) -> Iterator[list[Step]]:
    """Yield the steps of random runs of a kind."""
    for seed in range(cases(32)):
        scenario = make_scenario(**{"seed": seed, "cycles": 4, **KINDS[kind]})
        yield run_steps(with_random_faults(scenario, seed))

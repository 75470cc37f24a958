from typing import Any

import pytest

from melisma.simulation import fault_search
from melisma.simulation.fault_search import find_violation, search_faults, shrink
from melisma.simulation.faults import Fault, format_faults
from melisma.simulation.scenario import with_mixed_faults
from tests.lanes import cases
from tests.simulation.scenarios import make_scenario


def test_runs_whose_updates_are_audited_hold_all_laws_under_faults() -> None:
    results = search_faults(lambda seed: make_scenario(seed=seed, verify="audit"), range(20))
    assert not [failure for failure in results if failure is not None]


def test_shrinking_keeps_only_the_faults_that_are_needed() -> None:
    faults = tuple(Fault("clock", (number,), by=1.1) for number in range(6))
    needed = {faults[1], faults[4]}
    assert set(shrink(faults, lambda subset: needed <= set(subset))) == needed


def test_shrinking_keeps_one_fault_so_that_the_command_can_be_replayed() -> None:
    faults = tuple(Fault("clock", (number,), by=1.1) for number in range(3))
    assert len(shrink(faults, lambda _: True)) == 1


def test_a_failure_names_its_seed_and_its_shrunk_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_crash(scenario: Any) -> tuple[str, str]:
        found = any(fault.kind == "crash" for fault in scenario.faults)
        return "safety", "a crash" if found else ""

    monkeypatch.setattr(fault_search, "_find_violation", find_crash)
    results = search_faults(lambda seed: make_scenario(seed=seed), range(20))
    failures = [failure for failure in results if failure]
    assert failures
    for failure in failures:
        assert len(failure.faults) == 1
        assert format_faults(failure.faults).startswith("crash")
        drawn = with_mixed_faults(make_scenario(), failure.seed, disk=True).faults
        assert set(failure.faults) <= set(drawn)


RULES: dict[str, Any] = {"extension": True, "overlap": True, "quorum": 0.8, "late": "carry"}
SETTINGS: dict[str, dict[str, Any]] = {
    "dab": {},
    "dab, default rules": RULES,
    "dab, default rules, more shards than wanted": RULES | {"sizes": {"samples": 20_000}},
    "proportional, default rules": RULES | {"scheme": "proportional"},
    "staleness, federated, default rules": RULES
    | {"scheme": "staleness", "passes": None, "mode": "federated", "shard_samples": 40},
    "dab, federated": {"mode": "federated", "shard_samples": 40},
    "dab, two learners a cycle": {"sample": 2, "extension": True, "late": "carry"},
    "equal": {"scheme": "equal"},
    "proportional": {"scheme": "proportional"},
    "synchronous": {"scheme": "synchronous", "passes": None},
    "staleness": {"scheme": "staleness", "passes": None, "mode": "federated", "shard_samples": 40},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_random_faults_violate_no_invariant(name: str) -> None:
    for seed in range(cases(50)):
        scenario = make_scenario(seed=seed, cycles=4, **SETTINGS[name])
        scenario = with_mixed_faults(scenario, seed, disk=True)
        assert not find_violation(scenario), (
            f"seed {seed}: {find_violation(scenario)}: {format_faults(scenario.faults)}"
        )

"""Schemes compared for several tasks that share a fleet."""

from typing import Any

import numpy as np
import pytest

import melisma
from melisma.errors import SettingError
from melisma.service.commands import GrantShares, PlanRound
from melisma.simulation import SimulationOptions
from melisma.simulation.comparison.service_comparison import FIGURES
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from tests.lanes import cases
from tests.simulation.service.test_service_simulation import fleet, tasks

TIMING = SimulationOptions(work="timing")


def first_round(scheme: str, seed: int) -> tuple[PlanRound, dict[int, GrantShares]]:
    """Return the plan of the first round of the three tasks, and what was granted."""
    plans: list[PlanRound] = []
    grants: dict[int, GrantShares] = {}

    def watch(step: Any) -> None:
        plans.extend(each for each in step.commands if isinstance(each, PlanRound))
        for each in step.commands:
            if isinstance(each, GrantShares) and each.round == 1:
                grants[each.number] = each

    options = SimulationOptions(scheme=scheme, work="timing")
    run_tasks(prepare_tasks(tasks(cycles=1), fleet(seed=seed), options), watch_service=watch)
    return plans[0], grants


def seconds_of_tasks(plan: PlanRound, grants: dict[int, GrantShares]) -> list[float]:
    """Return the seconds of each task with granted shards, by the costs of a plan."""
    seconds = []
    for number, task, costs in zip(plan.numbers, plan.tasks, plan.costs, strict=True):
        rows = np.searchsorted(plan.learners, grants[number].learners)
        train_s, ship_s, fixed_s = costs[:, rows]
        shard_s = ship_s + (task.passes or 1) * train_s
        seconds.append(float((fixed_s + shard_s * grants[number].shards).max()))
    return seconds


@pytest.mark.parametrize("other", ["mmtt", "fifo", "smallest-demand", "venn"])
def test_the_expected_delay_of_med_is_never_above_that_of_another_scheme(other: str) -> None:
    compared = 0
    for seed in range(cases(12)):
        plan, by_med = first_round("med", seed)
        if sorted(by_med) != list(plan.numbers):
            continue  # Not all tasks fit into the round.
        _, by_other = first_round(other, seed)
        if sorted(by_other) != sorted(by_med):
            continue
        ours, theirs = seconds_of_tasks(plan, by_med), seconds_of_tasks(plan, by_other)
        assert ours == pytest.approx([by_med[number].planned_s for number in plan.numbers])
        if any(s > task.deadline_s for s, task in zip(theirs, plan.tasks, strict=True)):
            continue  # On expected costs the other plan misses a deadline, which med never does.
        assert sum(ours) <= sum(theirs) * (1 + 1e-9)
        compared += 1
    assert compared > 0


def test_a_comparison_has_the_five_metrics_of_each_scheme_with_intervals() -> None:
    compared = melisma.compare(tasks(), fleet(), ["med", "mmtt-ideal", "venn"], [0, 1, 2], TIMING)
    assert compared.schemes == ("med", "mmtt-ideal", "venn")
    for figure in FIGURES:
        interval = compared.interval("med", figure)
        assert (interval.known, interval.count) == (3, 3)
    faster = compared.difference("mmtt-ideal", "mean_cycle_s")
    assert faster.mean == pytest.approx(
        compared.interval("mmtt-ideal", "mean_cycle_s").mean
        - compared.interval("med", "mean_cycle_s").mean
    )
    used, lost = compared.interval("med", "capacity_used").mean, compared.capacity_lost("med")
    assert used + sum(lost.values()) == pytest.approx(1)
    values = compared.as_dict()
    assert values["schemes"][0]["capacity_lost"] == lost
    assert values["schemes"][0]["runs"][0]["capacity_lost"].keys() == lost.keys()
    assert [each["scheme"] for each in values["schemes"]] == ["med", "mmtt-ideal", "venn"]
    assert values["schemes"][0]["runs"][0]["figures"]["satisfaction"] <= 1.0
    assert "satisfaction" in str(compared.table())


def test_a_run_of_a_comparison_is_that_of_simulate_with_the_same_seed() -> None:
    compared = melisma.compare(tasks(), fleet(), ["mmtt"], [4], TIMING)
    options = SimulationOptions(scheme="mmtt", seed=4, work="timing")
    report = melisma.simulate(tasks(), fleet(), options)
    assert compared.runs[0].figures["mean_cycle_s"] == report.mean_cycle_s
    assert compared.runs[0].figures["expected_s"] == report.expected_s


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        (["dab"], "scheme 'dab' plans one task at a time"),
        (["medd"], "scheme 'medd' is unknown"),
        (["med", "med"], "named twice"),
        ([], "no scheme to compare"),
    ],
)
def test_schemes_that_do_not_plan_several_tasks_are_refused(
    schemes: list[str], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        melisma.compare(tasks(), fleet(), schemes, [0], TIMING)


def test_settings_of_one_task_are_refused() -> None:
    with pytest.raises(SettingError, match="accuracy is for one task"):
        melisma.compare(tasks(), fleet(), ["med"], [0], accuracy=0.9)  # type: ignore[call-overload]

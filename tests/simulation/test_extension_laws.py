"""Laws of whole runs: extension never trains less, and the papers' rules give the papers' cycle."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.cycle import commands
from melisma.cycle.events import PHASES
from melisma.cycle.learner import subset_shards
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from tests.lanes import cases
from tests.simulation.scenarios import commands_of, make_fleet, make_task, run

BATCH = 32
STATES = [
    {"probability": 0.5, "compute": 1.0, "bandwidth": 1.0},
    {"probability": 0.5, "compute": 0.4, "bandwidth": 0.3},
]
SCHEMES = ["equal", "dab", "proportional", "staleness", "synchronous"]
FLEETS = ["constant", "states", "noise"]
RULES: list[dict[str, Any]] = [
    {},
    {"overlap": True},
    {"quorum": 0.8, "late": "carry"},
    {"overlap": True, "quorum": 0.8, "late": "carry"},
]


def random_fleet(seed: int, kind: str) -> Fleet:
    rng = np.random.default_rng(seed)
    learners: list[dict[str, Any]] = [
        {
            "name": f"d{number}",
            "samples_per_s": float(rng.uniform(100, 1500)),
            "bandwidth_bps": float(rng.uniform(2e6, 5e7)),
            "latency_s": 0.01,
            "state": STATES if kind == "states" else [],
        }
        for number in range(4)
    ]
    noise = {"noise": {"compute": 0.3, "bandwidth": 0.3}} if kind == "noise" else {}
    return make_fleet(learners, seed=seed, **noise)


def settings_of(scheme: str, seed: int) -> dict[str, Any]:
    passes = None if scheme in ("staleness", "synchronous") else 2
    return {"scheme": scheme, "passes": passes, "seed": seed, "cycles": 4, "batch": BATCH}


@settings(max_examples=cases(120), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(FLEETS),
    scheme=st.sampled_from(SCHEMES),
    federated=st.booleans(),
    rules=st.sampled_from(RULES),
)
def test_a_run_with_extension_never_trains_less(
    seed: int, kind: str, scheme: str, federated: bool, rules: dict[str, Any]
) -> None:
    """In all cycles together; a single cycle may plan otherwise, by costs measured before."""
    fleet, mode = random_fleet(seed, kind), "federated" if federated else "parallelized"
    chosen = settings_of(scheme, seed) | {"mode": mode} | rules
    plain, extended = run(fleet=fleet, **chosen), run(fleet=fleet, extension=True, **chosen)
    visits = [
        sum(int(cycle.assignments.counted_visits.sum()) for cycle in report.cycles)
        for report in (plain, extended)
    ]
    assert visits[1] >= visits[0]


@settings(max_examples=cases(60), deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(FLEETS))
def test_with_equal_shares_no_learner_trains_less_in_the_first_cycle(seed: int, kind: str) -> None:
    """Up to a batch. Plan and rates are the same; in later cycles learners hold other shards."""
    fleet, chosen = random_fleet(seed, kind), settings_of("equal", seed) | {"cycles": 1}
    plain, extended = run(fleet=fleet, **chosen), run(fleet=fleet, extension=True, **chosen)
    (before,), (after,) = plain.cycles, extended.cycles
    assert (after.assignments.visits >= before.assignments.visits - BATCH).all()


@settings(max_examples=cases(60), deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(FLEETS), scheme=st.sampled_from(SCHEMES))
def test_the_rules_of_the_papers_give_the_cycle_of_the_papers(
    seed: int, kind: str, scheme: str
) -> None:
    """One dispatch per cycle, no more visits than planned, and closing with all or at the tail."""
    report = run(fleet=random_fleet(seed, kind), **settings_of(scheme, seed))
    assert not commands_of(report, commands.Extend)
    assert not commands_of(report, commands.Prefetch)
    dispatched = [command.cycle for command in commands_of(report, commands.Dispatch)]
    assert all(before < after for before, after in pairwise(dispatched))
    for command in commands_of(report, commands.Aggregate):
        assert command.late.learners.size == 0
    for cycle in report.cycles:
        work = cycle.assignments
        if not len(work):
            continue
        assert (work.visits <= work.planned_visits).all()
        counted = work.with_status("counted")
        arrived_s = (work.arrived_s - work.dispatched_s)[counted]
        if counted.all():
            assert cycle.cycle_s == pytest.approx(arrived_s.max())
        else:
            assert cycle.cycle_s == pytest.approx(cycle.deadline_s + cycle.tail_s)
        # A learner is idle from the end of its plan on.
        phases_s = work.phases[counted].sum(axis=1)
        assert work.phases.shape[1] == len(PHASES)
        np.testing.assert_allclose(phases_s, arrived_s, rtol=1e-6, atol=1e-6)


@settings(max_examples=cases(60), deadline=None)
@given(seed=st.integers(0, 10**6), scheme=st.sampled_from(SCHEMES), federated=st.booleans())
def test_the_rules_of_the_papers_give_the_times_of_their_cost_model(
    seed: int, scheme: str, federated: bool
) -> None:
    """On devices of constant speed, compared with the equations of the papers.

    The deadline leaves time for equal shares on all devices. Batches of one sample let no learner
    halt within a batch of the end of its plan.
    """
    fleet = random_fleet(seed, "constant")
    mode = "federated" if federated else "parallelized"
    chosen = settings_of(scheme, seed) | {"mode": mode, "deadline_s": 30.0, "batch": 1}
    report, task = run(fleet=fleet, **chosen), make_task(**chosen)
    held = benchmark_shards(task, fleet)
    dispatched = commands_of(report, commands.Dispatch)
    averaged = commands_of(report, commands.Aggregate)
    assert len(dispatched) == len(averaged) == len(report.cycles) == 4
    for plan, average, cycle in zip(dispatched, averaged, report.cycles, strict=True):
        took_s, samples = paper_cycle(task, fleet, plan, held)
        work = cycle.assignments
        np.testing.assert_array_equal(work.visits, plan.passes * samples)
        np.testing.assert_array_equal(average.weights, samples)
        np.testing.assert_allclose(work.arrived_s - work.dispatched_s, took_s, rtol=1e-9)
        assert cycle.cycle_s == pytest.approx(max(took_s), rel=1e-9)


def benchmark_shards(task: Task, fleet: Fleet) -> list[set[int]]:
    """Return the shards that each learner holds before the first cycle."""
    if task.mode == "federated" or task.scheme == "equal":
        return [set() for _ in range(fleet.learners)]
    subsets = subset_shards(task, np.arange(fleet.learners))
    return [set(subsets[learner].tolist()) for learner in range(fleet.learners)]


def paper_cycle(
    task: Task, fleet: Fleet, plan: commands.Dispatch, held: list[set[int]]
) -> tuple[list[float], list[int]]:
    """Return the seconds and the samples of each learner; it then holds its shards.

    t_k = 2 (model over the link) + d_k' (shard over the link) + passes d_k (seconds of a sample),
    where d_k' are the shards that it does not hold.
    """
    took_s, trained = [], []
    for row, learner in enumerate(plan.learners.tolist()):
        shards, latency_s = set(plan.shards[row].tolist()), float(fleet.latency_s[learner])
        byte_s = 8 / float(fleet.downlink_bps[learner])
        new = set() if task.mode == "federated" else shards - held[learner]
        samples = task.shard_samples * len(shards)
        transfers_s = 2 * (latency_s + task.model_bytes * byte_s)
        transfers_s += len(new) * (latency_s + task.shard_bytes * byte_s)
        sample_s = float(fleet.sample_seconds(task)[learner])
        took_s.append(transfers_s + int(plan.passes[row]) * samples * sample_s)
        trained.append(samples)
        held[learner] |= new
    return took_s, trained

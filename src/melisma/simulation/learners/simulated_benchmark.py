"""Benchmarks and bounds of simulated learners: what they report before a cycle."""

import numpy as np

from melisma.cycle import commands
from melisma.cycle.events import COSTS, PARTS
from melisma.cycle.learner import (
    SUBSET_SHARDS,
    CostHistory,
    benchmark_s,
    shard_bound,
    subset_shards,
)
from melisma.cycle.ragged import blocks
from melisma.fleet.array_types import Floats, Ints
from melisma.simulation.learners.benchmark_timeline import (
    BenchmarkTimeline,
    BenchmarkWork,
    benchmark_timeline,
)
from melisma.simulation.learners.simulated_learners import SimulatedLearners


def measure(
    simulated: SimulatedLearners, learners: Ints, at_s: float, seconds: float
) -> tuple[Floats, Floats]:
    """Run the benchmark; return when each learner is done, and the costs it measured."""
    ends_s = np.empty(learners.size)
    costs = np.empty((len(COSTS), len(PARTS), learners.size))
    for rows in blocks(learners.size):
        ends_s[rows] = _measure(simulated, learners[rows], at_s, seconds)
        costs[:, :, rows] = simulated.report_costs(learners[rows])
    simulated.caches.update_index()
    return ends_s, costs


def _measure(simulated: SimulatedLearners, learners: Ints, at_s: float, seconds: float) -> Floats:
    """Run the benchmark of learners that need one; return when each can report its costs."""
    known = simulated.know_costs(learners)
    if not known.any():
        return _benchmark(simulated, learners, np.full(learners.size, at_s), seconds)
    begin_s = np.maximum(at_s, simulated.free_s[learners])
    ready_s = simulated.sleep.end_s(learners, begin_s, np.zeros(learners.size))
    if not known.all():
        new = learners[~known]
        ready_s[~known] = _benchmark(simulated, new, np.full(new.size, at_s), seconds)
    return ready_s


def ask_bounds(
    simulated: SimulatedLearners,
    learners: Ints,
    at_s: float,
    instruction: commands.AskBound,
    held: Ints,
) -> tuple[Floats, Ints]:
    """Return when each learner answers, and the shards that it can train in time."""
    simulated.set_length(instruction.deadline_s)
    ready_s, bounds = np.empty(learners.size), np.empty(learners.size, np.int64)
    for rows in blocks(learners.size):
        ready_s[rows], bounds[rows] = _compute_bounds(
            simulated, learners[rows], at_s, instruction, held[rows]
        )
    simulated.caches.update_index()
    return ready_s, bounds


def _compute_bounds(
    simulated: SimulatedLearners,
    learners: Ints,
    at_s: float,
    instruction: commands.AskBound,
    held: Ints,
) -> tuple[Floats, Ints]:
    deadline_s, seconds = simulated.task.deadline_s, benchmark_s(simulated.task)
    ready_s = np.maximum(at_s, simulated.free_s[learners])
    ready_s = simulated.sleep.end_s(learners, ready_s, np.zeros(learners.size))
    # A learner that sleeps for ever neither measures itself nor answers.
    awake = np.isfinite(ready_s)
    new = ~simulated.histories.measured[learners] & awake
    if new.any():
        ready_s[new] = _benchmark(simulated, learners[new], ready_s[new], seconds)
    held = np.minimum(held, simulated.caches.counts[learners])
    known, bounds = simulated.histories.measured[learners], np.zeros(learners.size, np.int64)
    if known.any():
        history = simulated.histories.read(learners[known])
        bounds[known] = shard_bound(history, simulated.task, instruction.deadline_s, held[known])
    idle = (bounds == 0) & awake & np.isfinite(ready_s)
    if idle.any() and instruction.deadline_s == deadline_s:
        # Without work no cycle refreshes its costs, so it repeats the benchmark.
        if (idle & new).any():
            simulated.caches.update_index()  # it holds the shards of its first benchmark
        _benchmark(simulated, learners[idle], ready_s[idle], seconds)
    return ready_s, bounds


def _benchmark(
    simulated: SimulatedLearners, learners: Ints, at_s: Floats, seconds: float
) -> Floats:
    """Measure learners on a few shards for up to `seconds`; return when each is done."""
    began_s, clock = np.maximum(at_s, simulated.free_s[learners]), simulated.clock[learners]
    measured = _run_benchmark(simulated, learners, began_s, seconds - (began_s - at_s) * clock)
    history = CostHistory.from_benchmark(
        train_s=measured.train_s * simulated.noise.benchmark_bias[learners],
        ship_s=measured.ship_s,
        down_s=measured.down_s,
        up_s=measured.up_s,
        rest_s=np.zeros(learners.size),
        train_bias=simulated.histories.read(learners).train_bias,
    )
    simulated.histories.record_benchmark(learners, history)
    if simulated.reports is not None:
        simulated.reports.record_benchmark(learners, history)
    simulated.free_s[learners] = simulated.sleep.end_s(learners, began_s, measured.busy_s / clock)
    free_s: Floats = simulated.free_s[learners].copy()
    return free_s


def _run_benchmark(
    simulated: SimulatedLearners, learners: Ints, began_s: Floats, left_s: Floats
) -> BenchmarkTimeline:
    """Return the timeline of each benchmark, and store the shards that it fetches."""
    clock, durations = simulated.clock[learners], simulated.durations(learners, began_s)
    rates = simulated.devices.rates(learners, began_s, clock)
    latency_s = simulated.devices.latency_s[learners] * clock
    if simulated.task.mode == "federated":
        local = np.minimum(simulated.local_shards[learners], SUBSET_SHARDS)
        work = BenchmarkWork(local, np.zeros(learners.size, np.int64), left_s)
        return benchmark_timeline(durations, work, latency_s, simulated.task, rates)
    shards = subset_shards(simulated.task, learners)
    missing = simulated.caches.missing(learners, shards)
    work = BenchmarkWork(shards.counts, shards.row_sums(missing), left_s)
    measured = benchmark_timeline(durations, work, latency_s, simulated.task, rates)
    simulated.caches.store(learners, shards, missing, measured.fetched.astype(np.float64))
    return measured

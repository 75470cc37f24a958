"""Ranges of the numbers that learners report; messages with others are refused where they enter.

They are far wider than any device needs, and narrow enough that no sum, product or quotient of a
few of them overflows.
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from melisma.errors import RefusedError
from melisma.fleet.array_types import Floats
from melisma.fleet.estimates import LEAST_COUNT
from melisma.fleet.task import Task
from melisma.learning.verification.segments import segment_edges
from melisma.live.protocol import EvaluationSums, UpdateCommitment

MIN_TRAIN_S, MAX_COST_S = 1e-9, 1e7  # seconds of one cost, its mean or its spread
MAX_COST_COUNT = 1e6  # cycles that an estimate is worth
MAX_PHASE_S = 1e7  # seconds of one phase of an assignment
# Mean loss of a sample in an evaluation, in size; that of a model which diverges may be huge.
MAX_SAMPLE_LOSS = 1e100
MAX_SAMPLE_LABELS = 10**9  # labels of a sample in an evaluation
PHASE_DIGITS = 9  # phases are rounded to nanoseconds
MAX_BATCHES = 10**6  # of one training that is audited
MAX_LOCAL_SHARDS = 100_000  # shards on one device in federated learning


def check_costs(costs: Floats) -> None:
    """Raise `RefusedError` unless all costs, by parts, are plausible."""
    means, spreads, counts = costs[:, 0], costs[:, 1], costs[:, 2]
    seconds = np.concatenate([means, spreads])
    if not (means[0] >= MIN_TRAIN_S).all() or not ((seconds >= 0) & (seconds <= MAX_COST_S)).all():
        raise RefusedError(
            f"invalid costs {means.ravel().tolist()} with spreads {spreads.ravel().tolist()}: use "
            f"train_s >= {MIN_TRAIN_S:g} and at most {MAX_COST_S:g} seconds each"
        )
    if not ((counts >= LEAST_COUNT) & (counts <= MAX_COST_COUNT)).all():
        raise RefusedError(
            f"invalid counts {counts.ravel().tolist()} of costs: "
            f"use {LEAST_COUNT:g} to {MAX_COST_COUNT:g}"
        )


def check_commitment(commitment: UpdateCommitment) -> None:
    """Raise `RefusedError` for what no training can have been: to repeat it might never end."""
    batches, attempts = commitment.batches, commitment.attempts
    if batches > min(max(commitment.visits, 1), MAX_BATCHES) or len({*attempts}) != len(attempts):
        raise RefusedError(
            f"invalid commitment to {commitment.visits} visits in {batches} batches of "
            f"{len(attempts)} instructions: use each instruction once, and at most {MAX_BATCHES} "
            "batches of at least one sample"
        )
    if len(commitment.digests) != len(segment_edges(batches)):
        raise RefusedError(
            f"invalid commitment with {len(commitment.digests)} digests: use "
            f"{len(segment_edges(batches))} for {batches} batches"
        )


def check_local_shard_samples(task: Task, samples: Sequence[int]) -> None:
    """Raise `RefusedError` unless shards on a device have the size that the task sets."""
    if len(samples) > MAX_LOCAL_SHARDS:
        raise RefusedError(f"{len(samples)} local shards; use at most {MAX_LOCAL_SHARDS}")
    if samples and not any(samples):
        raise RefusedError(f"{len(samples)} local shards have no samples: leave out empty shards")
    if max(samples, default=0) > task.shard_samples:
        raise RefusedError(
            f"a local shard of {max(samples)} samples exceeds shard_samples = "
            f"{task.shard_samples}; split it"
        )


def check_evaluation(sums: EvaluationSums) -> None:
    """Raise `RefusedError` unless the sums of an evaluation are those of some samples.

    How many samples count is limited where scores are combined: a device may have test samples of
    its own, of which it did not tell when it joined.
    """
    if sums.correct > sums.labels:
        raise RefusedError(f"correct = {sums.correct} exceeds labels = {sums.labels}")
    if sums.labels > MAX_SAMPLE_LABELS * sums.samples:
        raise RefusedError(
            f"labels = {sums.labels} of samples = {sums.samples}: use at most "
            f"{MAX_SAMPLE_LABELS:g} labels per sample"
        )
    if not abs(sums.loss_sum) <= MAX_SAMPLE_LOSS * sums.samples:
        raise RefusedError(
            f"loss_sum = {sums.loss_sum:g} of samples = {sums.samples}: use at most "
            f"{MAX_SAMPLE_LOSS:g} per sample, or finite = false"
        )


def check_phases(phases: Sequence[float]) -> list[float]:
    """Return the seconds of phases, rounded; raise `RefusedError` unless they are plausible."""
    if not all(isfinite(phase) and 0 <= phase <= MAX_PHASE_S for phase in phases):
        raise RefusedError(f"invalid phases {list(phases)}: use 0 to {MAX_PHASE_S:g} seconds each")
    return [round(phase, PHASE_DIGITS) for phase in phases]

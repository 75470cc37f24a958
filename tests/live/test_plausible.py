"""Numbers that no device can measure are refused where messages enter."""

from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.errors import RefusedError
from melisma.learning.verification.segments import segment_edges
from melisma.live.plausible import (
    check_commitment,
    check_costs,
    check_evaluation,
    check_local_shard_samples,
    check_phases,
)
from melisma.live.protocol import EvaluationSums, UpdateCommitment
from melisma.testing import make_task

GOOD = np.array([[0.5, 0.1, 1.0], [0.0, 0.0, 0.1], [0.2, 0.0, 8.0]])[:, :, None]


def test_usual_costs_are_accepted() -> None:
    check_costs(GOOD)


@pytest.mark.parametrize("value", [-1.0, 1e300, np.nan, np.inf])
@pytest.mark.parametrize("cost", range(3))
@pytest.mark.parametrize("part", range(3))
def test_a_number_that_cannot_be_is_refused(cost: int, part: int, value: float) -> None:
    costs = GOOD.copy()
    costs[cost, part] = value
    with pytest.raises(RefusedError, match="invalid"):
        check_costs(costs)


@pytest.mark.parametrize("train_s", [0.0, 1e-300])
def test_training_takes_time(train_s: float) -> None:
    costs = GOOD.copy()
    costs[0, 0] = train_s
    with pytest.raises(RefusedError, match="train_s"):
        check_costs(costs)


def test_local_shards_have_the_size_of_the_task() -> None:
    task: Any = msgspec.structs.replace(make_task(), shard_samples=100)
    check_local_shard_samples(task, (100, 37))
    with pytest.raises(RefusedError, match="shard_samples = 100"):
        check_local_shard_samples(task, (100, 10**9))
    with pytest.raises(RefusedError, match="2 local shards have no samples"):
        check_local_shard_samples(task, (0, 0))
    with pytest.raises(RefusedError, match="use at most 100000"):
        check_local_shard_samples(task, (100,) * 100_001)


def test_phases_are_rounded_and_limited() -> None:
    assert check_phases((1.23456789012, 5e-324)) == [1.23456789, 0.0]
    with pytest.raises(RefusedError, match="phases"):
        check_phases((1e9,))


def test_sums_of_an_evaluation_are_those_of_its_samples() -> None:
    sums = EvaluationSums(cycle=1, samples=10, loss_sum=-2.5, correct=9, labels=10)
    for valid in ({}, {"loss_sum": 0.0, "finite": False}, {"labels": 0, "correct": 0}):
        check_evaluation(msgspec.structs.replace(sums, **valid))
    check_evaluation(EvaluationSums(cycle=1, samples=0, loss_sum=0.0, correct=0, labels=0))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"correct": 11}, "correct = 11 exceeds labels = 10"),
        ({"loss_sum": np.nan}, "loss_sum = nan"),
        ({"loss_sum": -np.inf}, "loss_sum = -inf"),
        ({"loss_sum": 1e300}, "loss_sum = 1e[+]300 of samples = 10: use at most 1e[+]100"),
        ({"samples": 0, "labels": 0, "correct": 0}, "loss_sum = 2.5 of samples = 0"),
        ({"samples": 0, "loss_sum": 0.0}, "labels = 10 of samples = 0"),
        ({"labels": 2**62}, "use at most 1e[+]09 labels per sample"),
    ],
)
def test_sums_that_no_samples_have_are_refused(change: dict[str, Any], problem: str) -> None:
    sums = EvaluationSums(cycle=1, samples=10, loss_sum=2.5, correct=9, labels=10)
    with pytest.raises(RefusedError, match=problem):
        check_evaluation(msgspec.structs.replace(sums, **change))


COMMITMENT = UpdateCommitment(
    cycle=1,
    attempt=1,
    visits=100,
    batches=10,
    attempts=(1, 2),
    changes=(),
    digests=("0" * 64,) * len(segment_edges(10)),
    environment="torch cpu",
)


def test_a_commitment_to_a_training_that_could_be_is_accepted() -> None:
    check_commitment(COMMITMENT)


@pytest.mark.parametrize(
    "change",
    [
        {"batches": 101},
        {"visits": 2**53, "batches": 2**53},
        {"attempts": (1,) * 60_000},
        {"digests": COMMITMENT.digests[:1]},
    ],
    ids=["empty batches", "endless", "repeated work", "few digests"],
)
def test_commitments_whose_repetition_might_never_end_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="invalid commitment"):
        check_commitment(msgspec.structs.replace(COMMITMENT, **change))

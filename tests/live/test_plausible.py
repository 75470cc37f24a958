"""Numbers that no device can measure are refused where messages enter."""

from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.errors import RefusedError
from melisma.live.plausible import check_costs, check_local_shard_samples, check_phases
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

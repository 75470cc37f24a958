import numpy as np
import pytest

from melisma.cycle import ragged
from melisma.cycle.ragged import RaggedArray
from melisma.runs.shard_sizes import ShardSizes


@pytest.mark.parametrize("block", [1, 2, 100])
def test_samples_are_summed_over_the_dealt_shards(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(ragged, "BLOCK", block)
    dealt = RaggedArray.from_rows([np.array([0, 2]), np.array([], np.int64), np.array([1, 2, 0])])
    sizes = ShardSizes(np.array([5, 6, 7]))
    assert sizes.samples_in(np.array([4, 0, 1]), dealt).tolist() == [12, 0, 18]


def test_shards_on_devices_are_numbered_per_device() -> None:
    sizes, learners = ShardSizes(np.empty(0, np.int64)), np.array([3, 1])
    sizes.add(learners, RaggedArray.from_rows([np.array([5, 6]), np.array([7])]))
    dealt = RaggedArray.from_rows([np.array([1]), np.array([0])])
    assert sizes.samples_in(learners, dealt).tolist() == [6, 7]


def test_a_learner_that_joins_again_replaces_its_shards() -> None:
    sizes, learner = ShardSizes(np.empty(0, np.int64)), np.array([2])
    for samples in ([5, 6], [1, 2], [3, 4, 5]):
        sizes.add(learner, RaggedArray.from_rows([np.array(samples)]))
        all_shards = RaggedArray.from_rows([np.arange(len(samples))])
        assert sizes.samples_in(learner, all_shards).tolist() == [sum(samples)]

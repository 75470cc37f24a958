import numpy as np
import pytest

from melisma.cycle import ragged
from melisma.cycle.local_shards import LocalShards, ShardSizes
from melisma.cycle.ragged import RaggedArray


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


def test_each_learner_is_dealt_all_its_shards_before_any_again() -> None:
    shards, learners = LocalShards(), np.array([3, 1])
    shards.add(learners, RaggedArray.from_rows([np.arange(1, 6), np.arange(10, 13)]), seed=1)
    assert shards.count_of(np.array([0, 1, 3, 9])).tolist() == [0, 3, 5, 0]
    dealt = [shards.deal(learners, np.array([2, 1])) for _ in range(6)]
    for row, count in enumerate([5, 3]):
        order = np.concatenate([each[row] for each in dealt])
        assert sorted(order[:count]) == [*range(count)]
        assert order[count:].tolist() == order[: order.size - count].tolist()


def test_a_learner_that_joins_again_is_dealt_its_new_shards_from_the_start() -> None:
    shards, learners = LocalShards(), np.array([0, 1])
    shards.add(learners, RaggedArray.from_rows([np.arange(4), np.arange(3)]), seed=1)
    first = shards.deal(learners, np.array([3, 2]))
    shards.add(np.array([0]), RaggedArray.from_rows([np.arange(4)]), seed=1)
    again = shards.deal(learners, np.array([3, 1]))
    assert again[0].tolist() == first[0].tolist()
    assert sorted([*first[1], *again[1]]) == [0, 1, 2]
    shards.add(np.array([0]), RaggedArray.from_rows([np.array([8, 9])]), seed=1)
    dealt = shards.deal(np.array([0]), np.array([2]))
    assert shards.samples_in(np.array([0]), dealt).tolist() == [17]
    with pytest.raises(ValueError, match="more shards than are on its device"):
        shards.deal(np.array([0]), np.array([3]))

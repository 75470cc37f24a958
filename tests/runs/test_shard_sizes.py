import numpy as np
import pytest

from melisma.cycle import ragged
from melisma.cycle.ragged import RaggedArray
from melisma.runs.shard_sizes import ShardSizes


@pytest.mark.parametrize("block", [1, 2, 100])
def test_samples_are_those_of_the_shards_dealt(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(ragged, "BLOCK", block)
    dealt = RaggedArray.of([np.array([0, 2]), np.array([], np.int64), np.array([1, 2, 0])])
    held = ShardSizes(np.array([5, 6, 7]))
    assert held.samples_in(np.array([4, 0, 1]), dealt).tolist() == [12, 0, 18]


def test_shards_on_devices_are_numbered_on_each() -> None:
    held, both = ShardSizes(np.empty(0, np.int64)), np.array([3, 1])
    held.add(both, RaggedArray.of([np.array([5, 6]), np.array([7])]))
    dealt = RaggedArray.of([np.array([1]), np.array([0])])
    assert held.samples_in(both, dealt).tolist() == [6, 7]


def test_who_comes_again_says_its_shards_anew() -> None:
    held, one = ShardSizes(np.empty(0, np.int64)), np.array([2])
    for sizes in ([5, 6], [1, 2], [3, 4, 5]):
        held.add(one, RaggedArray.of([np.array(sizes)]))
        whole = RaggedArray.of([np.arange(len(sizes))])
        assert held.samples_in(one, whole).tolist() == [sum(sizes)]

import numpy as np
import pytest

from melisma.allocation import earliest as module
from melisma.allocation.costs import CycleCosts
from melisma.allocation.earliest import earliest_deadline_s


@pytest.mark.parametrize("few", [0, 3, 2**16])
def test_no_deadline_before_the_earliest_leaves_room(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(module, "FEW", few)
    rng = np.random.default_rng(2)
    for _ in range(300):
        size = int(rng.integers(1, 9))
        train_s, ship_s, fixed_s = np.round(rng.uniform(0.1, 3, (3, size)), 1)
        costs = CycleCosts(train_s, ship_s, fixed_s, rng.integers(0, 5, size))
        high = rng.integers(1, 60, size)
        low, shards = (
            np.minimum(rng.integers(0, 4, size), high),
            int(rng.integers(1, high.sum() + 1)),
        )

        found = earliest_deadline_s(costs, low, high, shards)
        for deadline_s, enough in ((found, True), (float(np.nextafter(found, 0)), False)):
            most = np.minimum(costs.most_shards(1, deadline_s, 100), high)
            assert bool(np.all(most >= low) and most.sum() >= shards) is enough


def test_steps_below_the_rounding_of_the_whole_come_to_an_end() -> None:
    costs = CycleCosts(np.full(2, 1e-25), np.zeros(2), np.full(2, 10.0), held=np.zeros(2, np.int64))
    high = np.array([2**50, 2**50])
    assert earliest_deadline_s(costs, np.array([1, 1]), high, 2**50) == pytest.approx(10.0)
